// What a token scores on the SM that holds its row of the head, and the SM's best candidate (engine/sampling.py).
#pragma once
#include "rows.cuh"

#define INFINITE __int_as_float(0x7f800000)

DEVICE u32 ordered(float v) {
    const u32 bits = __float_as_uint(v);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

DEVICE float from_ordered(u32 key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

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

// Which of this SM's rows of the head the id is; -1 if it is another SM's.
DEVICE int head_row_of(const Core& core, int id) {
    const int local = id - core.params.rank * model::VOCAB_SHARE;
    if (local < 0 || local >= model::VOCAB_SHARE) return -1;
    const int head_tile = local / HEAD_PART * HEAD_PART_TILES + local % HEAD_PART / TILE_ROWS;
    const TileRange share = core.share(HEAD);
    const int tile = head_tile - share.first;
    return tile >= 0 && tile < share.tiles ? tile * TILE_ROWS + local % HEAD_PART % TILE_ROWS : -1;
}

// The other way round: the pair that this even row of the SM begins.
DEVICE HeadPair head_pair_at(const Core& core, int row) {
    return HeadPair(core.share(HEAD).first * (TILE_ROWS / 2) + row / 2, core.params.rank);
}

// Gumbel noise of ids `id` and `id + 1`.
DEVICE float2 gumbel_pair(const Core& core, int id) {
    const Sampling& s = core.params.sampling;
    const int position = core.position + 1;
    if (id & 1) {  // an odd slice of the vocabulary begins at an odd id
        return make_float2(gumbel(philox_pair(id - 1, position, s.seed_low, s.seed_high).y),
                           gumbel(philox_pair(id + 1, position, s.seed_low, s.seed_high).x));
    }
    const uint2 words = philox_pair(id, position, s.seed_low, s.seed_high);
    return make_float2(gumbel(words.x), gumbel(words.y));
}

// Penalties and bias, in the order and with the roundings of the rule.
DEVICE float adjusted(float logit, const RowState& row, const Sampling& s) {
    if (row.uses & SEEN && s.repetition_penalty != 1.0f) logit = penalised(logit, s.repetition_penalty);
    if (const u32 sampled = row.uses & ~SEEN) {
        logit = __fsub_rn(logit, __fadd_rn(__fmul_rn(s.frequency_penalty, float(sampled)), s.presence_penalty));
    }
    return __fadd_rn(logit, row.bias);
}

// What the sequence says of an id, where this SM holds its row.
DEVICE void note_use(const Core& core, int id, bool sampled) {
    const int row = head_row_of(core, id);
    if (row < 0) return;
    u32* uses = &core.rows()[row].uses;
    atomicOr(uses, SEEN);
    if (sampled) atomicAdd(uses, 1u);
}

// Before the first pass, after prefill, whose buffers these are till then. All consumer threads.
DEVICE void begin_rows(Core& core) {
    const Params& params = core.params;
    const int thread = int(threadIdx.x);
    if (thread == 0) core.shared.draw_exchanges[core.own.request] = core.shared.probe_exchanges[core.own.request] = 0;
    if (params.sampling.filtered) {  // padding is never written: it scores less than everything
        for (int i = thread; i < model::HEAD_ROWS; i += CONSUMERS) core.scores()[i] = -INFINITE;
    }
    if (params.sampling.adjusts) {
        for (int i = thread; i < model::HEAD_ROWS; i += CONSUMERS) core.rows()[i] = {0.0f, 0};
        consumers_sync();
        for (int i = thread; i < params.ids_count; i += CONSUMERS) note_use(core, params.ids[i], i >= params.sampled_from);
        for (int i = thread; i < params.bias_count; i += CONSUMERS) {
            const int row = head_row_of(core, params.biases[i].id);
            if (row >= 0) core.rows()[row].bias = params.biases[i].value;
        }
    }
    consumers_sync();
}

// A thread's best candidate, and the key of the largest score that it met.
struct Best {
    u64 candidate = 0;
    u32 top_key = 0;
};

struct HeadFinish {
    static constexpr bool PRESCALED = model::HEAD_PRESCALED;
    static constexpr bool BY_WARP = false;

    Core& core;
    float* kept;       // row of raw logits to keep, or null
    Best found{};

    DEVICE void prepare(int) {}
    DEVICE float score(float logit, int local_row) const {
        const Sampling& s = core.params.sampling;
        if (model::FILTERS && s.adjusts) logit = adjusted(logit, core.rows()[local_row], s);
        return s.temperature > 0.0f ? logit / s.temperature : logit;
    }
    DEVICE void consider(float value, int id) {
        const u64 word = candidate(value, id);
        if (word > found.candidate) found.candidate = word;
    }
    DEVICE void post(int pair, float a, float b) {
        const HeadPair rows(pair, core.params.rank);
        const int id = rows.id;
        const bool both = rows.both;
        if (id < 0) return;
        const float scale = PRESCALED ? 1.0f : inverse_rms(core.squares_left());
        a *= scale;
        b *= scale;
        if constexpr (model::LOGIT_CAP > 0.0f) {
            a = soft_capped(a, model::LOGIT_CAP);
            b = soft_capped(b, model::LOGIT_CAP);
        }
        if (kept) {
            kept[id] = a;
            if (both) kept[id + 1] = b;
        }
        const Sampling& s = core.params.sampling;
        const int local = (pair - core.share(HEAD).first * (TILE_ROWS / 2)) * 2;
        a = score(a, local);
        b = score(b, local + 1);
        if (model::FILTERS && s.filtered) {
            core.scores()[local] = a;
            found.top_key = max(found.top_key, ordered(a));
            if (both) {
                core.scores()[local + 1] = b;
                found.top_key = max(found.top_key, ordered(b));
            }
        }
        if (s.temperature > 0.0f) {
            const float2 noise = gumbel_pair(core, id);
            a += noise.x;
            b += noise.y;
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
