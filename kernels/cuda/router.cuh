// The router: one exchange after attention's output, from which every SM finds the same experts by itself. Of decode with router
// biases only: without them scores travel beside attention's output (folded_router.cuh), and choosing is as here.
//
// Waits for: the residual stream after attention. Computes: an SM its rows of the router, in FP32, from the vector that it stages
// for gate_up anyway. Publishes: their scores. Then one warp of each SM waits for all scores and picks the largest, of equal
// ones the lower number (engine/experts.py), and tells the SM's producer, which holds nothing but addresses back.
#pragma once
#include "candidates.cuh"
#include "matvec.cuh"

namespace router {

// Behind the norms: [LAYERS][EXPERTS][HIDDEN].
DEVICE const u16* row_of(const Params& p, int layer, int expert) {
    const size_t norms = 2 * model::LAYERS + 1;
    return p.norms + (norms + size_t(layer) * model::EXPERTS + expert) * model::HIDDEN;
}
DEVICE int expert_of(const Core& core, int row) { return row * model::SMS + int(core.place.sm); }
DEVICE bool has_row(const Core& core, int row) { return row < experts::ROWS && expert_of(core, row) < model::EXPERTS; }

// Asks for the SM's rows early: nobody else has read them.
DEVICE void prefetch(const Core& core, int layer) {
    constexpr int HALVES = SECTOR_BYTES / int(sizeof(u16));
#pragma unroll
    for (int r = 0; r < experts::ROWS; ++r) {
        const int expert = expert_of(core, r);
        for (int i = int(threadIdx.x) * HALVES; expert < model::EXPERTS && i < model::HIDDEN; i += CONSUMERS * HALVES) {
            prefetch_sector(row_of(core.params, layer, expert) + i);
        }
    }
}

DEVICE float dot(const float4& v, uint2 weights) {
    return v.x * weight_low(weights.x) + v.y * weight_high(weights.x) + v.z * weight_low(weights.y) + v.w * weight_high(weights.y);
}

// Leaves the warp's part of each of the SM's scores and of the sum of squares, and then has `store` stage the vector for gate_up.
template <class Store>
DEVICE void stage(Core& core, int layer, const u16* norm_weights, const Store& store) {
    constexpr int PIECES = Pieces<model::HIDDEN>::COUNT;
    constexpr bool BY_QUADS = staged_by_quads(experts::STORAGE<GATE_UP>);
    float4 values[PIECES];
    uint2 norm[PIECES], rows[experts::ROWS][PIECES];
    load_norm<model::HIDDEN, BY_QUADS>(core, norm_weights, norm);
#pragma unroll
    for (int r = 0; r < experts::ROWS; ++r) {
        const int expert = smaller(expert_of(core, r), model::EXPERTS - 1);
        load_norm<model::HIDDEN, BY_QUADS>(core, row_of(core.params, layer, expert), rows[r]);
    }
    fetch_stream<BY_QUADS>(core, core.mail(layer) + mail::STREAM_AFTER_ATTENTION, values);
    core.profile.input_ready();
    constexpr int SQUARES = experts::ROWS;  // behind the rows
    float sums[experts::ROWS + 1] = {};
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        sums[SQUARES] += dot_self(values[i]);
        scale_by(values[i], norm[i]);
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) sums[r] += dot(values[i], rows[r][i]);
    }
    warp_sums(sums);
    if (core.lane == 0) {
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) core.score_parts(r)[core.warp] = sums[r];
        core.squares_left()[core.warp] = sums[SQUARES];
    }
    store(values);
}

// By the first warp, a lane a row. `bias` is the lane's.
DEVICE void post_scores(Core& core, int layer, float bias) {
    const int expert = expert_of(core, int(core.lane));
    if (!has_row(core, int(core.lane))) return;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += core.score_parts(int(core.lane))[w];
    const float score = sum * inverse_rms(core.squares_left()) + bias;
    post(core.mail(layer) + mail::SCORES + expert, tagged(score, core.epoch));
}

// By all warps, once they have left their parts. The first one posts: only it has to wait for the others' parts.
DEVICE void hand_in_scores(Core& core, int layer, float bias) {
    constexpr int BARRIER = 2;  // of one request: several have teams
    if (core.warp != 0) {
        asm volatile("bar.arrive %0, %1;" ::"n"(BARRIER), "n"(CONSUMERS) : "memory");
        return;
    }
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(CONSUMERS) : "memory");
    post_scores(core, layer, bias);
}

// All scores, as integers in their order: lane l has those of experts l, l + 32, ..
struct Keys {
    static constexpr int EACH = ceil_div(model::EXPERTS, 32);
    static_assert(EACH <= 32, "a bit a word");
    u32 of[larger(1, EACH)];

    DEVICE static Keys of_scores(const float* scores, u32 lane) {
        Keys keys;
#pragma unroll
        for (int i = 0; i < EACH; ++i) keys.of[i] = i * 32 + int(lane) < model::EXPERTS ? key(scores[i * 32 + lane]) : 0u;
        return keys;
    }
    Keys() = default;
    // Once all scores are there.
    DEVICE Keys(Core& core, int layer) {
        const u32* from = core.mail(layer) + mail::SCORES + core.lane;
        u32 missing = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            of[i] = 0;
            if (i * 32 + int(core.lane) < model::EXPERTS) missing |= 1u << i;
        }
        const u32 here = missing;
        Spin spin(core.params, core.place, WAIT_SCORES);
        while (__any_sync(ALL_LANES, missing)) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                if (missing >> i & 1u) of[i] = load_relaxed(from + i * 32);
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                if (((of[i] ^ core.epoch) & 1u) == 0) missing &= ~(1u << i);
            }
            if (spin.hopeless()) missing = 0;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) of[i] = here >> i & 1u ? key(untagged(of[i])) : 0u;
    }
    DEVICE static u32 key(float score) { return ordered(score + 0.0f); }  // no negative zero
    // The best score that is left, for the slot `slot`. It is taken out: the key becomes a mark, `slot` + 1, which no score has. Others with
    // the same key are marked too: to look for them in each take would make the chain of takes twice as long.
    DEVICE u32 take(int slot) {
        u32 best = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) best = of[i] > best ? of[i] : best;
        best = __reduce_max_sync(ALL_LANES, best);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (of[i] == best && best > model::CHOSEN) of[i] = u32(slot) + 1;
        }
        return best;
    }
    DEVICE bool taken(int i) const { return of[i] - 1 < model::CHOSEN; }
    // Whether no take has marked several. `last` is what the last one returned.
    DEVICE bool all_differ(u32 last) const {
        int count = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) count += __popc(__ballot_sync(ALL_LANES, taken(i)));
        return count == model::CHOSEN && last > model::CHOSEN;
    }
    // Who is met, slot by slot.
    DEVICE void write(u32 lane, int* chosen) const {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (taken(i)) chosen[of[i] - 1] = i * 32 + int(lane);
        }
    }
    // The same where some score alike: of those the lower number goes first. `score` is what the take of the lane's slot returned; returns
    // the score of who is there now.
    DEVICE u32 write_alike(u32 lane, u32 score, int* chosen) const {
        u32 settled = 0;
        int slot = 0;
#pragma unroll 1
        for (u32 mark = 1; mark <= model::CHOSEN; ++mark) {
            const u32 marked = __shfl_sync(ALL_LANES, score, int(mark) - 1);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const u32 alike = __ballot_sync(ALL_LANES, of[i] == mark);
                const int mine = slot + __popc(alike & ((1u << lane) - 1u));
                if (of[i] == mark && mine < model::CHOSEN) chosen[mine] = i * 32 + int(lane);
                if (int(lane) >= slot) settled = marked;
                slot += __popc(alike);
            }
        }
        return settled;
    }
};

// By a warp: who is met; of each slot's lane how much it counts. `known` is called as soon as the experts are, and says what
// scores are to be multiplied by.
template <class Known>
DEVICE float choose(Keys keys, u32 lane, int* chosen, const Known& known) {
    const Keys all = keys;
    u32 mine = 0, top = 0, last = 0;
#pragma unroll 1  // the chain of takes is as long, and its code is there once
    for (int slot = 0; slot < model::CHOSEN; ++slot) {
        last = keys.take(slot);
        if (slot == 0) top = last;
        if (int(lane) == slot) mine = last;
    }
    if (keys.all_differ(last)) {
        keys.write(lane, chosen);
    } else {
        mine = keys.write_alike(lane, mine, chosen);
    }
    __syncwarp();
    const float scale = known();
    const float largest = from_ordered(top);
    const float weight = int(lane) < model::CHOSEN ? __expf((from_ordered(mine) - largest) * scale) : 0.0f;
    float total = weight;
    if constexpr (!model::RENORMALISE) {
        total = 0.0f;
#pragma unroll
        for (int i = 0; i < Keys::EACH; ++i) {
            if (i * 32 + int(lane) < model::EXPERTS) total += __expf((from_ordered(all.of[i]) - largest) * scale);
        }
    }
    return weight / warp_sum(total);
}

// By the first warp. The producer needs no weights, and nothing more of the layer before.
DEVICE void choose_experts(Core& core, int layer) {
    experts::Routing& routing = core.shared.routing;
    const float weight = choose(Keys(core, layer), core.lane, routing.met.chosen, [&] {
        barrier_arrive(&routing.known);
        return 1.0f;
    });
    if (int(core.lane) < model::CHOSEN) routing.met.weights[core.lane] = weight;
}

// By all SMs, for each has rows of the router, or tiles of the experts, or neither and may leave.
DEVICE void run(Core& core, int layer, const u16* norm_weights) {
    const bool meets = core.share(GATE_UP).tiles || core.share(DOWN).tiles;
    if (!meets && !has_row(core, 0)) return;
    ++core.staged;
    float bias = 0.0f;
    if constexpr (experts::BIASED) {
        if (has_row(core, int(core.lane))) bias = experts::router_bias(core.params, layer, expert_of(core, int(core.lane)));
    }
    stage(core, layer, norm_weights, [&](auto& values) {
        if (has_row(core, 0)) hand_in_scores(core, layer, bias);  // all SMs wait for them: the operand has the time of their way
        store_operand<model::HIDDEN, experts::STORAGE<GATE_UP>>(core, values);
    });
    consumers_sync();
    if (core.warp == 0 && meets) choose_experts(core, layer);
    if (!core.share(GATE_UP).tiles) consumers_sync();  // `down` needs to know who is met; elsewhere gate_up has parted them
}

}  // namespace router
