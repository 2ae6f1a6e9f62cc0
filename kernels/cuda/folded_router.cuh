// The router of decode: its scores travel beside attention's output, and one warp of each SM that does nothing else finds out who is
// met, and tells the producer, while the others still multiply.
//
// A score is the router's row times the stream after attention, times the scale of that stream's norm. All but the scale is linear: what
// the stream was before attention adds to it, and what the heads add by way of attention's output. The router's rows times the
// norm times that matrix are made when a model is loaded (engine/backends/cuda/folded_router.py), so whoever has the heads has the scores.
//
// Here is what the consumers do. Where they have tiles they wait for nothing of their own: qkv stages the stream before attention
// (StreamScores), attn_out the heads (stage_heads), gate_up the stream after it (stage). Each thread leaves its part of the SM's
// scores, in FP32, and each warp its squares. routing_warp.cuh has the rest.
#pragma once
#include "router.cuh"

namespace folded_router {

using router::dot, router::row_of;

DEVICE int expert_of(u32 sm, int row) { return row * model::SMS + int(sm); }
DEVICE bool has_row(u32 sm, int row) { return row < experts::ROWS && expert_of(sm, row) < model::EXPERTS; }

// Whether some SM has rows of the router, as the first ones have, but no tiles of a matrix.
DEVICE constexpr bool routes_without_tiles(int phase) { return first_without_tiles(phase) < smaller(model::EXPERTS, model::SMS); }

// Behind all vectors: [LAYERS][EXPERTS][Q_DIM], of this GPU's heads.
constexpr size_t VECTORS = size_t(2 * model::LAYERS + 1) * model::HIDDEN + heads::ROUTERS +
                           size_t(model::LAYERS) * (heads::BIASES + heads::SCALES + heads::SINKS);
DEVICE const float* folded_row(const Params& p, int layer, int expert) {
    const u16* begin = p.norms + (VECTORS + 7) / 8 * 8;
    return reinterpret_cast<const float*>(begin) + (size_t(layer) * model::EXPERTS + expert) * model::Q_DIM;
}
static_assert(!experts::FOLDED || (!model::POST_NORMS && !model::OUT_BIAS), "what attention adds to the stream is linear in the heads");
static_assert(!experts::FOLDED || !in_windows(ATTN_OUT), "the heads are staged whole");

// Asks for `bytes` of a row that no other SM reads.
DEVICE void prefetch_row(const void* row, int bytes) {
    for (int i = int(threadIdx.x) * SECTOR_BYTES; i < bytes; i += CONSUMERS * SECTOR_BYTES) prefetch_sector(static_cast<const u8*>(row) + i);
}
// Asks a phase before for what StreamScores reads.
DEVICE void prefetch_stream(const Core& core, int layer, const u16* norm_weights) {
    constexpr int BYTES = model::HIDDEN * int(sizeof(u16));
    if (layer >= model::LAYERS || !has_row(core.place.sm, 0)) return;
    prefetch_row(norm_weights, BYTES);
#pragma unroll
    for (int r = 0; r < experts::ROWS; ++r) {
        if (has_row(core.place.sm, r)) prefetch_row(row_of(core.params, layer, expert_of(core.place.sm, r)), BYTES);
    }
}
// The same for stage_heads.
DEVICE void prefetch_heads(const Core& core, int layer) {
#pragma unroll
    for (int r = 0; r < experts::ROWS; ++r) {
        if (has_row(core.place.sm, r)) prefetch_row(folded_row(core.params, layer, expert_of(core.place.sm, r)), model::Q_DIM * int(sizeof(float)));
    }
}

DEVICE float dot(const float4& v, const float4& weights) {
    return v.x * weights.x + v.y * weights.y + v.z * weights.z + v.w * weights.w;
}

DEVICE float& part_of_score(Core& core, int row) { return core.shared.routing.decode().sums[row][core.warp * 32 + core.lane]; }

// By all threads: until the warp that routes needs nothing more of what they left for the layer before. It is there long before the stream
// that they wait for next (routing_warp.cuh).
DEVICE void await_routed(const Core& core, int layer) {
    await_in_place(&core.shared.routing.decode().weighed, core.layer_parity(layer - 1), &core.params.control->aborted);
}

// What the stream before attention adds to the SM's scores, from the pieces that qkv stages. Of GPUs that all have the same stream the
// first one counts it.
template <int STORAGE>
class StreamScores {
    static constexpr bool BY_QUADS = staged_by_quads(STORAGE);
    static constexpr int PIECES = Pieces<model::HIDDEN, BY_QUADS>::COUNT;

public:
    DEVICE StreamScores(Core& core, int layer, const u16* norm_weights) : has_(has_row(core.place.sm, 0)) {
        if (!has_) return;
        load_norm<model::HIDDEN, BY_QUADS>(core, norm_weights, norm_);
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) {
            const int expert = smaller(expert_of(core.place.sm, r), model::EXPERTS - 1);
            load_norm<model::HIDDEN, BY_QUADS>(core, row_of(core.params, layer, expert), rows_[r]);
        }
    }
    DEVICE void see(int i, float4 value) {
        if (!has_) return;
        scale_by(value, norm_[i]);
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) sums_[r] += dot(value, rows_[r][i]);
    }
    DEVICE void leave(Core& core) const {
        if (!has_) return;
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) part_of_score(core, r) = model::RANKS == 1 || core.params.rank == 0 ? sums_[r] : 0.0f;
    }

private:
    const bool has_;
    uint2 norm_[PIECES] = {}, rows_[experts::ROWS][PIECES] = {};
    float sums_[experts::ROWS] = {};
};

// Of an SM that has rows of the router but no tiles of qkv. It adds up as those that have: equal rows have equal scores everywhere.
template <int STORAGE>
DEVICE void see_stream(Core& core, int layer, const u32* from, const u16* row, const u16* norm_weights) {
    constexpr bool BY_QUADS = staged_by_quads(STORAGE);
    constexpr int PIECES = Pieces<model::HIDDEN, BY_QUADS>::COUNT;
    if (!has_row(core.place.sm, 0)) return;
    StreamScores<STORAGE> scores(core, layer, norm_weights);
    float4 values[PIECES];
    if (row) {
        fetch_row<model::HIDDEN, BY_QUADS>(core, row, values);
    } else {
        fetch_stream<BY_QUADS>(core, from, values);
    }
    core.profile.input_ready();
#pragma unroll
    for (int i = 0; i < PIECES; ++i) scores.see(i, values[i]);
    scores.leave(core);
}

template <int STORAGE>
using HeadPieces = Pieces<Matrix<ATTN_OUT>::COLUMNS, staged_by_quads(STORAGE)>;

// Waits for the heads, and leaves what they add to the SM's scores.
template <int STORAGE>
DEVICE void see_heads(Core& core, int layer, const u32* from, float4 (&values)[HeadPieces<STORAGE>::COUNT]) {
    constexpr int COUNT = HeadPieces<STORAGE>::COUNT;
    const HeadPieces<STORAGE> pieces(core);
    const bool scores = has_row(core.place.sm, 0);
    float4 rows[experts::ROWS][COUNT];
#pragma unroll
    for (int r = 0; r < experts::ROWS; ++r) {
        const int expert = smaller(expert_of(core.place.sm, r), model::EXPERTS - 1);
        const float4* row = reinterpret_cast<const float4*>(folded_row(core.params, layer, expert));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            rows[r][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (scores && pieces.in_vector(i)) rows[r][i] = __ldg(row + pieces.column(i) / 4);
        }
    }
    fetch<Matrix<ATTN_OUT>::COLUMNS, staged_by_quads(STORAGE)>(core, from, values);
    core.profile.input_ready();
    if (scores) {
#pragma unroll
        for (int r = 0; r < experts::ROWS; ++r) {
            float sum = part_of_score(core, r);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sum += dot(values[i], rows[r][i]);
            part_of_score(core, r) = sum;
        }
    }
    if constexpr (REQUESTS == 1) barrier_arrive(&core.shared.routing.decode().scored);
}

// The same, and stages the heads for attn_out.
template <int STORAGE>
DEVICE void stage_heads(Core& core, int layer, const u32* from) {
    float4 values[HeadPieces<STORAGE>::COUNT];
    see_heads<STORAGE>(core, layer, from, values);
    store_operand<Matrix<ATTN_OUT>::COLUMNS, STORAGE>(core, values);
}

// Stages the stream after attention for gate_up, and leaves its squares. By all SMs that have tiles of the experts.
DEVICE void stage(Core& core, int layer, const u16* norm_weights) {
    if (!core.share(GATE_UP).tiles && !core.share(DOWN).tiles) return;
    ++core.staged;
    stage_normed<model::HIDDEN, experts::STORAGE<GATE_UP>>(core, core.mail(layer) + mail::STREAM_AFTER_ATTENTION, nullptr, norm_weights);
    leave_squares(core);
    if (core.lane != 0) return;
    experts::RoutingInDecode& routing = core.shared.routing.decode();
    routing.squares[core.warp] = core.squares_left()[core.warp];
    barrier_arrive(&routing.squared);
}

// All scores of a layer, by a warp: of each the parts of all GPUs, added in their order.
template <class Warp>
DEVICE router::Keys await_scores(const Warp& warp, const u32* mailbox) {
    constexpr int EACH = larger(1, router::Keys::EACH);
    const u32* from = mailbox + size_t(warp.place.layer) * mail::LAYER + mail::SCORES + warp.lane;
    u32 words[EACH][model::RANKS] = {}, missing = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (i * 32 + int(warp.lane) < model::EXPERTS) missing |= 1u << i;
    }
    const u32 here = missing;
    Spin spin(warp.params, warp.place, WAIT_SCORES);
    while (__any_sync(ALL_LANES, missing)) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
#pragma unroll
            for (int r = 0; r < model::RANKS; ++r) {
                const u32* word = from + r * model::EXPERTS + i * 32;
                if (missing >> i & 1u) words[i][r] = model::RANKS > 1 ? load_far(word) : load_relaxed(word);
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            u32 stale = 0;
#pragma unroll
            for (int r = 0; r < model::RANKS; ++r) stale |= words[i][r] ^ warp.epoch;
            if ((stale & 1u) == 0) missing &= ~(1u << i);
        }
        if (spin.hopeless()) missing = 0;
    }
    router::Keys keys;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < model::RANKS; ++r) sum += untagged(words[i][r]);
        keys.of[i] = here >> i & 1u ? router::Keys::key(sum) : 0u;
    }
    return keys;
}

}  // namespace folded_router
