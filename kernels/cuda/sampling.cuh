// The next token, by the same rule and the same random numbers as every backend (engine/sampling.py).
//
// Greedy and plain temperature: each SM keeps the best of its own vocabulary rows, all SMs exchange one word and take
// the largest. top-k, top-p and min-p: one SM searches thresholds over the scores of all SMs, which takes a barrier.
#pragma once
#include "rows.cuh"

DEVICE u32 ordered(float v) {
    const u32 bits = __float_as_uint(v);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Larger scores first, then lower ids. The lowest bit is free for the parity of the pass.
DEVICE u64 candidate(float score, int id) { return u64(ordered(score)) << 32 | u64(0x7fffffffu - u32(id)) << 1; }
DEVICE int candidate_id(u64 word) { return int(0x7fffffffu - (u32(word) >> 1)); }

// Two of the four random words of Philox4x32-10 for ids `id` and `id + 1`, `id` even.
DEVICE uint2 philox_pair(int id, int position, u32 key0, u32 key1) {
    u32 a = u32(id) >> 2, b = u32(position), c = 0, d = 0;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 low0 = 0xD2511F53u * a, high0 = __umulhi(0xD2511F53u, a);
        const u32 low1 = 0xCD9E8D57u * c, high1 = __umulhi(0xCD9E8D57u, c);
        a = high1 ^ b ^ key0;
        b = low1;
        c = high0 ^ d ^ key1;
        d = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return id & 2 ? make_uint2(c, d) : make_uint2(a, b);
}

DEVICE float gumbel(u32 word) {
    const float u = (float(word >> 9) + 0.5f) * 1.1920928955078125e-07f;
    return -logf(-logf(u));
}

DEVICE float penalised(float logit, float penalty) { return logit > 0.0f ? logit / penalty : logit * penalty; }

// The vocabulary rows of a pair of head rows: the first one's id, or -1 if the pair is padding, and how many they are.
struct HeadPair {
    int id;
    bool both;

    DEVICE HeadPair(int pair, int rank) {
        const int part = pair / (HEAD_PART_TILES * (TILE_ROWS / 2));
        const int within = 2 * pair_in_lane(pair, part, HEAD_PART_TILES);
        id = rank * model::VOCAB_SHARE + part * HEAD_PART + within;
        if (within >= HEAD_PART || id >= model::VOCAB) id = -1;
        both = within + 1 < HEAD_PART && id + 1 < model::VOCAB;
    }
};

// Which ids the sequence holds, for the rows of this SM. All consumer threads.
DEVICE void remember(Core& core, int id) {
    const int local = id - core.params.rank * model::VOCAB_SHARE;
    if (local < 0 || local >= model::VOCAB_SHARE) return;
    const int head_tile = local / HEAD_PART * HEAD_PART_TILES + local % HEAD_PART / TILE_ROWS;
    int before = 0;
    for (int seat = 0; seat < model::SEATS; ++seat) {
        const Share share = core.shared.shares[seat][HEAD];
        const int tile = head_tile - share.first;
        if (tile >= 0 && tile < share.tiles) {
            const int row = (before + tile) * TILE_ROWS + local % HEAD_PART % TILE_ROWS;
            atomicOr(&core.shared.seen[row / 32], 1u << row % 32);
        }
        before += share.tiles;
    }
}

struct HeadFinish {
    static constexpr bool PRESCALED = model::HEAD_PRESCALED;

    Core& core;
    float* kept;       // row of raw logits to keep, or null
    u64 best = 0;

    DEVICE void prepare(int) {}
    DEVICE float score(float logit, int local_row) const {
        const Sampling& s = core.params.sampling;
        if (s.repetition_penalty != 1.0f && (core.shared.seen[local_row / 32] >> local_row % 32 & 1u)) {
            logit = penalised(logit, s.repetition_penalty);
        }
        return s.temperature > 0.0f ? logit / s.temperature : logit;
    }
    DEVICE void consider(float value, int id) {
        const u64 word = candidate(value, id);
        if (word > best) best = word;
    }
    DEVICE void post(int pair, float a, float b) {
        const HeadPair rows(pair, core.params.rank);
        const int id = rows.id;
        const bool both = rows.both;
        if (id < 0) return;
        const float scale = PRESCALED ? 1.0f : inverse_rms(core.shared.squares[core.staged & 1]);
        a *= scale;
        b *= scale;
        if (kept) {
            kept[id] = a;
            if (both) kept[id + 1] = b;
        }
        const Sampling& s = core.params.sampling;
        const int before = core.seat ? core.shared.shares[0][HEAD].tiles : 0;
        const int local = (pair + (before - core.share(HEAD).first) * (TILE_ROWS / 2)) * 2;
        a = score(a, local);
        b = score(b, local + 1);
        if (s.filtered) {
            core.params.logits[id] = a;
            if (both) core.params.logits[id + 1] = b;
            return;
        }
        if (s.temperature > 0.0f) {
            if (id & 1) {  // an odd slice of the vocabulary begins at an odd id
                a += gumbel(philox_pair(id - 1, core.position + 1, s.seed_low, s.seed_high).y);
                b += gumbel(philox_pair(id + 1, core.position + 1, s.seed_low, s.seed_high).x);
            } else {
                const uint2 words = philox_pair(id, core.position + 1, s.seed_low, s.seed_high);
                a += gumbel(words.x);
                b += gumbel(words.y);
            }
        }
        consider(a, id);
        if (both) consider(b, id + 1);
    }
};

DEVICE u64 warp_max(u64 v) {
    const u32 high = __reduce_max_sync(ALL_LANES, u32(v >> 32));
    const u32 low = __reduce_max_sync(ALL_LANES, u32(v >> 32) == high ? u32(v) : 0u);
    return u64(high) << 32 | low;
}

// The candidates of a pass: a word of every SM of every GPU, then one with bits of Verdict. They lie in two arrays that
// passes use in turn. An SM that has no part in the layers is waited for nowhere but here, so that the others may have come
// to the next exchange while it still reads the words of this one; to come to the one after they need its next candidate.
// Zeros, with which both begin, are not fresh in the first pass of either.
struct Ballot {
    static constexpr int SENDERS = model::RANKS * model::SMS;

    u32 first, parity;
    DEVICE explicit Ballot(u32 serial) : first((serial & 1u) * (SENDERS + 1)), parity((serial + 1u) >> 1 & 1u) {}
    DEVICE bool fresh(u64 word) const { return ((u32(word) ^ parity) & 1u) == 0; }
};

// The largest candidate, the word beside them, and whether the launch is to end as it is: an SM that has given up posts a
// candidate as well. All lanes of one warp; loads overlap.
struct Exchanged {
    u64 top;
    u32 word;
    bool aborted;
};

DEVICE Exchanged collect(Core& core, const Ballot& ballot) {
    constexpr int COUNT = Ballot::SENDERS;
    constexpr int EACH = ceil_div(COUNT + 1, 32);
    static_assert(EACH <= 64, "one bit a word");
    const u64* from = core.params.candidates + ballot.first + core.lane;
    u64 words[EACH];
    u64 missing = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        words[i] = 0;
        if (i * 32 + int(core.lane) <= COUNT) missing |= 1ull << i;
    }
    u32 aborted = 0, given_up = 0;
    bool near_missing = true;
    Spin spin(core.params, core.place, WAIT_CANDIDATE);
    while (__any_sync(ALL_LANES, missing != 0)) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (missing >> i & 1u) words[i] = load_far(from + i * 32);
        }
        aborted = load_relaxed(&core.params.control->aborted);  // after each word, but on the same trip
        bool near = false;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (ballot.fresh(words[i])) missing &= ~(1ull << i);
            near |= (missing >> i & 1u) && (i * 32 + int(core.lane)) / model::SMS == core.params.rank;
        }
        if constexpr (model::PROFILE && model::RANKS > 1) {
            core.profile.looked(near_missing);
            near_missing = __any_sync(ALL_LANES, near);
        }
        if (missing && spin.hopeless()) {
            missing = 0;
            given_up = 1;
        }
    }
    acquire_fence();  // each lane for the SMs whose words it has read
    __syncwarp();
    core.profile.peers_ready();
    core.profile.input_ready();
    u64 top = 0;
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int sender = i * 32 + int(core.lane);
        if (sender == COUNT) word = u32(words[i]);
        if (sender < COUNT && words[i] > top) top = words[i];
    }
    return {warp_max(top), __shfl_sync(ALL_LANES, word, COUNT % 32), __any_sync(ALL_LANES, given_up || aborted) != 0};
}

// A draw from what top-k, top-p and min-p leave, by one SM's consumer threads over all scores.
namespace filtered {

// Walks down a radix tree over the 32 bits of `ordered(score)`, eight bits a level. `weight` says what a score adds
// to its bin; the search finds the largest value v such that the weight of all larger ones is still `below` target.
template <class Weight>
DEVICE u32 threshold(Core& core, const float* scores, u64 target, Weight weight) {
    u64* bins = reinterpret_cast<u64*>(core.shared.filter());
    u64* state = bins + 256;
    u32 prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = int(threadIdx.x); i < 256; i += CONSUMERS) bins[i] = 0;
        consumers_sync();
        for (int i = int(threadIdx.x); i < model::VOCAB; i += CONSUMERS) {
            const float score = __ldcg(scores + i);
            const u32 key = ordered(score);
            const bool here = shift == 24 || key >> (shift + 8) == prefix;
            if (here) {
                const u64 w = weight(score, key);
                if (w) atomicAdd(bins + (key >> shift & 255u), w);
            }
        }
        consumers_sync();
        if (threadIdx.x == 0) {
            u64 sum = above;
            int bin = 255;
            int last = -1;  // lowest occupied bin so far whose larger ones stay below the target
            u64 last_sum = above;
            for (; bin >= 0; --bin) {
                if (!bins[bin]) continue;
                if (last >= 0 && sum >= target) break;
                last = bin;
                last_sum = sum;
                sum += bins[bin];
            }
            state[0] = u64(last < 0 ? 0 : last);
            state[1] = last_sum;
        }
        consumers_sync();
        prefix = prefix << 8 | u32(state[0]);
        above = state[1];
        consumers_sync();
    }
    return prefix;
}

template <class Value>
DEVICE u64 block_sum(Core& core, Value value) {
    u64 sum = 0;
    for (int i = int(threadIdx.x); i < model::VOCAB; i += CONSUMERS) sum += value(i);
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    consumers_sync();
    if (core.lane == 0) core.shared.best[core.warp] = sum;
    consumers_sync();
    u64 total = 0;
    for (int w = 0; w < WARPS; ++w) total += core.shared.best[w];
    consumers_sync();
    return total;
}

template <class Value>
DEVICE u64 block_max(Core& core, Value value) {
    u64 best = 0;
    for (int i = int(threadIdx.x); i < model::VOCAB; i += CONSUMERS) {
        const u64 v = value(i);
        if (v > best) best = v;
    }
    best = warp_max(best);
    consumers_sync();
    if (core.lane == 0) core.shared.best[core.warp] = best;
    consumers_sync();
    best = 0;
    for (int w = 0; w < WARPS; ++w) {
        if (core.shared.best[w] > best) best = core.shared.best[w];
    }
    consumers_sync();
    return best;
}

// Probabilities are summed in fixed point, so that the order of additions does not matter.
constexpr float FIXED_POINT = 1099511627776.0f;  // 2^40

DEVICE int draw(Core& core) {
    const Sampling& s = core.params.sampling;
    const float* scores = core.params.logits;
    const u32 top_key = u32(block_max(core, [&](int i) { return u64(ordered(__ldcg(scores + i))); }));
    const float top = __uint_as_float(top_key & 0x80000000u ? top_key ^ 0x80000000u : ~top_key);
    u32 floor_key = 0;
    if (s.top_k > 0 && s.top_k < model::VOCAB) {
        floor_key = threshold(core, scores, u64(s.top_k), [](float, u32) { return u64(1); });
    }
    const auto weight = [&](float score, u32 key) {
        return key < floor_key ? u64(0) : u64(expf(score - top) * FIXED_POINT);
    };
    u32 nucleus_key = floor_key;
    if (s.top_p < 1.0f) {
        const u64 total = block_sum(core, [&](int i) {
            const float score = __ldcg(scores + i);
            return weight(score, ordered(score));
        });
        nucleus_key = threshold(core, scores, u64(double(total) * double(s.top_p)), weight);
        if (nucleus_key < floor_key) nucleus_key = floor_key;
    }
    const u64 best = block_max(core, [&](int i) {
        const float score = __ldcg(scores + i);
        if (ordered(score) < nucleus_key || expf(score - top) < s.min_p) return u64(0);
        const uint2 words = philox_pair(i & ~1, core.position + 1, s.seed_low, s.seed_high);
        return candidate(score + gumbel(i & 1 ? words.y : words.x), i);
    });
    return candidate_id(best);
}

}  // namespace filtered

// What a block is told about the pass just done. STOP_ASKED also goes around with the candidates, beside the parity.
enum Verdict : u32 { STOP_ASKED = 2, STOP_ID = 4, ABORTED = 8 };

struct Chosen {
    int id;
    bool stop_asked, ends, aborted;
};

// The ids that end a sequence, looked up by one warp. The first ones are asked for before the token is known.
class StopIds {
public:
    DEVICE explicit StopIds(const Core& core) : params_(core.params), lane_(int(core.lane)), own_(at(lane_)) {}
    DEVICE bool have(int id) const {
        bool found = own_ == id;
        for (int i = lane_ + 32; i < params_.stop_count; i += 32) found |= at(i) == id;
        return __any_sync(ALL_LANES, found) != 0;
    }

private:
    DEVICE int at(int i) const { return i < params_.stop_count ? __ldg(params_.stop_ids + i) : -1; }

    const Params& params_;
    const int lane_, own_;
};

// A word for every GPU, at the same place of `which` of its mailboxes.
DEVICE void tell_all(const Params& params, u64* Peer::*which, int at, u64 word) {
    post_far(params.peers[params.rank].*which + at, word);
    for_each_peer(params, [&](const Peer& peer) { post_far(peer.*which + at, word); });
}

// Waits for the token that the first SM draws. All lanes of one warp.
DEVICE int drawn(Core& core, bool& aborted) {
    Spin spin(core.params, core.place, WAIT_TOKEN);
    u64 word = load_far(core.params.choice);
    while (u32(word >> 32) != core.serial) {
        if (spin.hopeless()) break;
        word = load_far(core.params.choice);
    }
    const bool late = u32(word >> 32) != core.serial || load_relaxed(&core.params.control->aborted);
    aborted |= __any_sync(ALL_LANES, late) != 0;
    return int(u32(word));
}

// What the first warp does of `choose`: posts the SM's candidate, waits for all others, and leaves token and verdict.
DEVICE void elect(Core& core, bool first, bool filter, u32 stop_flag) {
    const Ballot ballot(core.serial);
    const u64 best = warp_max(core.lane < WARPS && !filter ? core.shared.best[core.lane] : 0);
    if (core.lane == 0) {
        tell_all(core.params, &Peer::candidates, int(ballot.first) + core.params.rank * model::SMS + int(core.place.sm),
                 (best & ~1ull) | ballot.parity);
        if (first) {
            tell_all(core.params, &Peer::candidates, int(ballot.first) + Ballot::SENDERS,
                     (stop_flag ? u32(STOP_ASKED) : 0u) | ballot.parity);
        }
    }
    const StopIds stop_ids(core);
    const Exchanged all = collect(core, ballot);
    bool aborted = all.aborted;
    const u32 id = u32(filter ? drawn(core, aborted) : candidate_id(all.top));
    const u32 token = id < u32(model::VOCAB) ? id : 0u;
    const bool ends = stop_ids.have(int(token));
    if (core.lane == 0) {
        core.shared.token = token;
        core.shared.verdict = (all.word & STOP_ASKED) | (ends ? STOP_ID : 0u) | (aborted ? ABORTED : 0u);
    }
}

// Waits for: the best candidate of every SM of every GPU. This exchange is also what lets the next pass overwrite the
// mailboxes: what an SM read of them has arrived before it posts, for which no fence is needed. With the one before it
// (decode::release_cache) and the one in `collect` it makes this pass's cache entries visible to the next.
// `meanwhile` is called by the other warps; all threads of a block are told the same.
template <class Meanwhile>
DEVICE Chosen choose(Core& core, u64 mine, u32 stop_flag, const Meanwhile& meanwhile) {
    mine = warp_max(mine);
    if (core.lane == 0) core.shared.best[core.warp] = mine;
    const bool filter = core.params.sampling.filtered != 0;
    const bool first = core.place.sm == 0 && core.params.rank == 0;
    if (filter) core.node_barrier(); else consumers_sync();
    if (filter && first) {
        const int id = filtered::draw(core);
        if (threadIdx.x == 0) tell_all(core.params, &Peer::choice, 0, u64(core.serial) << 32 | u32(id));
    }
    if (core.warp == 0) {
        elect(core, first, filter, stop_flag);
    } else {
        meanwhile();
    }
    consumers_sync();  // the barrier above, in the next pass, parts these reads from what is written then
    const u32 verdict = core.shared.verdict;
    return {int(core.shared.token), (verdict & STOP_ASKED) != 0, (verdict & STOP_ID) != 0, (verdict & ABORTED) != 0};
}
