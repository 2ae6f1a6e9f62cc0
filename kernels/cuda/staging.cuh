// A vector on its way from the mailboxes, or from a row of the embedding, to the operand of a product: fetched by the threads that need
// its pieces, normalised, split into two halves of sixteen bits, and laid into shared memory.
#pragma once
#include "digit_quads.cuh"
#include "slot_runs.cuh"

// The scale of RMSNorm, from the partial sums of squares of the warps.
DEVICE float inverse_rms(const float (&squares)[WARPS]) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w += 4) {  // the compiler does not know that four lie in a word
        const float4 four = *reinterpret_cast<const float4*>(squares + w);
        sum = sum + four.x + four.y + four.z + four.w;
    }
    return rsqrtf(sum * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
}

DEVICE float warp_sum(float v) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(ALL_LANES, v, offset);
    return v;
}

// Of several numbers side by side, so that none waits for another's shuffles.
template <int COUNT>
DEVICE void warp_sums(float (&sums)[COUNT]) {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1) {
#pragma unroll
        for (float& sum : sums) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    }
}

// The four-element pieces of a vector that this thread fetches: piece i lies in chunk warp + 8 (4 i + lane / 8). What all warps
// read, BY_QUADS, each warp fetches in whole quads: in chunk 4 (warp + 8 i) + lane / 8.
template <int COLUMNS, bool BY_QUADS = false>
struct Pieces {
    static constexpr int COUNT = ceil_div(chunks_of(COLUMNS), 4 * WARPS);
    static_assert(COLUMNS % 4 == 0, "vectors are fetched in 16-byte pieces");

    u32 warp, lane;
    DEVICE explicit Pieces(const Core& core) : warp(core.warp), lane(core.lane) {}
    DEVICE int chunk(int i) const {
        return BY_QUADS ? QUAD_CHUNKS * (int(warp) + WARPS * i) + int(lane >> 3) : int(warp) + WARPS * (4 * i + int(lane >> 3));
    }
    DEVICE int column(int i) const { return chunk(i) * CHUNK_COLUMNS + int(lane & 7) * 4; }
    template <int STORAGE>
    DEVICE static constexpr int operand_chunks() {
        return round_up(chunks_of(COLUMNS), by_warpgroups(STORAGE) ? 2 * QUAD_CHUNKS : 1);
    }
    template <int STORAGE>
    DEVICE bool in_operand(int i) const {
        return ends_within(i, operand_chunks<STORAGE>()) || chunk(i) < operand_chunks<STORAGE>();
    }
    DEVICE bool in_vector(int i) const { return ends_within(i, COLUMNS / CHUNK_COLUMNS) || column(i) < COLUMNS; }

private:
    // Whether piece i of all threads lies within so many chunks: what the compiler does not know of a thread's place it would ask
    // each time, and take the pieces one after the other.
    DEVICE static constexpr bool ends_within(int i, int chunks) { return KNOWS_WHOLE && (i + 1) * ROUND_CHUNKS <= chunks; }
    static constexpr bool KNOWS_WHOLE = ONE_WITH_EXPERTS;
};

// With POST_NORMS each thread keeps its own pieces of the stream, the same in all phases.
DEVICE constexpr bool staged_by_quads(int storage) { return by_warpgroups(storage) && !model::POST_NORMS; }

DEVICE float4 plus(const float4& a, const float4& b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float4 sum_as_posted(const float4& a, const float4& b) {
    return make_float4(as_posted(a.x + b.x), as_posted(a.y + b.y), as_posted(a.z + b.z), as_posted(a.w + b.w));
}

// Polls until every piece of `from` carries this pass's parity. The warp stays together, here and in whatever else waits:
// lanes that left the loop one by one would go through what follows one by one as well, which cost a tenth of a token.
// Of a vector that comes in PARTS, from a GPU each, the sum, rounded once: as where rows are finished (rows.cuh).
template <int COLUMNS, bool BY_QUADS = false, int PARTS = 1>
DEVICE void fetch(Core& core, const u32* from, float4 (&values)[Pieces<COLUMNS>::COUNT]) {
    constexpr int COUNT = Pieces<COLUMNS>::COUNT;
    static_assert(PARTS * COUNT <= 32, "a bit a piece");
    const Pieces<COLUMNS, BY_QUADS> pieces(core);
    uint4 words[PARTS * COUNT];
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < PARTS * COUNT; ++i) {
        if (pieces.in_vector(i % COUNT)) missing |= 1u << i;
        words[i] = make_uint4(0, 0, 0, 0);
    }
    Spin spin(core.params, core.place, WAIT_VECTOR);
    while (__any_sync(ALL_LANES, missing)) {
        const bool near_missing = PARTS > 1 && model::PROFILE && (missing >> core.params.rank * COUNT & ((1u << COUNT) - 1u));
#pragma unroll
        for (int i = 0; i < PARTS * COUNT; ++i) {
            const u32* at = from + i / COUNT * COLUMNS + pieces.column(i % COUNT);
            if (missing >> i & 1u) words[i] = PARTS > 1 ? peek4_far(at) : peek4(at);
        }
        const bool hopeless = spin.hopeless();  // between the loads and the first use of any (Spin)
        u32 still = 0;
#pragma unroll
        for (int i = 0; i < PARTS * COUNT; ++i) still |= stale(words[i], core.epoch) << i;
        missing &= still;
        if constexpr (PARTS > 1) core.profile.looked(near_missing);
        if (hopeless) missing = 0;
    }
    if constexpr (PARTS > 1) core.profile.peers_ready();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        values[i] = untagged(words[i]);
#pragma unroll
        for (int p = 1; p < PARTS - 1; ++p) values[i] = plus(values[i], untagged(words[p * COUNT + i]));
        if constexpr (PARTS > 1) values[i] = sum_as_posted(values[i], untagged(words[(PARTS - 1) * COUNT + i]));
    }
}
// The stream, after attention or after the MLP.
template <bool BY_QUADS = false>
DEVICE void fetch_stream(Core& core, const u32* from, float4 (&values)[Pieces<model::HIDDEN>::COUNT]) {
    fetch<model::HIDDEN, BY_QUADS, mail::STREAM_PARTS>(core, from, values);
}

DEVICE float4 times(const float4& v, float scale) { return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale); }

// The row of the embedding table, without waiting.
template <int COLUMNS, bool BY_QUADS = false>
DEVICE void fetch_row(Core& core, const u16* row, float4 (&values)[Pieces<COLUMNS>::COUNT]) {
    const Pieces<COLUMNS, BY_QUADS> pieces(core);
#pragma unroll
    for (int i = 0; i < pieces.COUNT; ++i) {
        uint2 w = make_uint2(0, 0);
        if (pieces.in_vector(i)) w = __ldg(reinterpret_cast<const uint2*>(row + pieces.column(i)));
        values[i] = make_float4(weight_low(w.x), weight_high(w.x), weight_low(w.y), weight_high(w.y));
        if constexpr (model::EMBEDDING_SCALE != 1.0f) values[i] = times(values[i], model::EMBEDDING_SCALE);
    }
}

// As a chunk's digits, or a run's (digits.cuh). Of a long vector so many pieces at a time: all of them side by side are a tenth of a layer's code.
template <int COLUMNS, int STORAGE>
DEVICE void store_digits(Core& core, float4 (&values)[Pieces<COLUMNS>::COUNT]) {
    constexpr int COUNT = Pieces<COLUMNS>::COUNT, AT_ONCE = COUNT > 4 && COUNT % 4 == 0 ? 4 : COUNT;
    constexpr int CHUNKS = Pieces<COLUMNS>::template operand_chunks<STORAGE>();
    const Pieces<COLUMNS, staged_by_quads(STORAGE)> pieces(core);
#pragma unroll 1
    for (int first = 0; first < COUNT; first += AT_ONCE) {
        float4 some[AT_ONCE];
        u32 powers[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) some[i] = values[i];
        packed::powers_of_chunks<chunks_a_size(STORAGE)>(some, powers);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const packed::Digits digits(some[i], powers[i]);
            const bool whole = (COUNT - AT_ONCE + i + 1) * ROUND_CHUNKS <= CHUNKS;  // also the last ones
            if (whole || pieces.template in_operand<STORAGE>(first + i)) {
                constexpr int NEXT = ROUND_CHUNKS / QUAD_CHUNKS;
                packed::store_columns<STORAGE, 1>(core.shared, pieces.chunk(0), 0, core.lane & 7, digits, (first + i) * NEXT);
            }
        }
#pragma unroll
        for (int i = 0; i + AT_ONCE < COUNT; ++i) values[i] = values[i + AT_ONCE];  // registers have no addresses
    }
    fence_operand();
}

// Writes this warp's part of the operand: for each chunk two products of 16 columns. Row 0 has the high parts, row 8
// the low parts; the other rows are zero and exist in registers only. Or digits.
// Only the same warp reads it, after __syncwarp; but with products by warpgroups, quad after quad, all do: after a barrier.
template <int COLUMNS, int STORAGE = STORAGE_F16>
DEVICE void store_operand(Core& core, float4 (&values)[Pieces<COLUMNS>::COUNT]) {
    if constexpr (by_digits(STORAGE)) {
        store_digits<COLUMNS, STORAGE>(core, values);
    } else {
        const Pieces<COLUMNS, staged_by_quads(STORAGE)> pieces(core);
#pragma unroll
        for (int i = 0; i < pieces.COUNT; ++i) {
            if (!pieces.template in_operand<STORAGE>(i)) continue;
            if constexpr (is_packed(STORAGE) && packed::lowered() != 1.0f) values[i] = times(values[i], 1.0f / packed::lowered());
            const auto split = is_packed(STORAGE) ? split_f16 : split_weights_type;
            const Split a = split(values[i].x, values[i].y), b = split(values[i].z, values[i].w);
            const u32 quad = core.lane & 7;
            if constexpr (by_warpgroups(STORAGE)) {
                packed::store_quarter(core.shared.operand(), pieces.chunk(i), quad, a, b);
                continue;
            }
            u8* to = core.shared.operand() + pieces.chunk(i) * VECTOR_CHUNK_BYTES + (quad & 1) * VECTOR_STEP_BYTES + quad / 2 * 16;
            *reinterpret_cast<Operand*>(to) = make_uint4(a.high, a.low, b.high, b.low);
        }
        if constexpr (by_warpgroups(STORAGE)) {
            fence_operand();
        } else {
            __syncwarp();
        }
    }
}

template <int COLUMNS, bool BY_QUADS = false>
DEVICE void load_norm(const Core& core, const u16* weights, uint2 (&norm)[Pieces<COLUMNS>::COUNT]) {
    const Pieces<COLUMNS, BY_QUADS> pieces(core);
#pragma unroll
    for (int i = 0; i < pieces.COUNT; ++i) {
        norm[i] = make_uint2(0, 0);
        if (pieces.in_vector(i)) norm[i] = __ldg(reinterpret_cast<const uint2*>(weights + pieces.column(i)));
    }
}

DEVICE void scale_by(float4& v, uint2 norm) {
    if constexpr (model::NORMS_LESS_ONE) {
        v.x += v.x * weight_low(norm.x);
        v.y += v.y * weight_high(norm.x);
        v.z += v.z * weight_low(norm.y);
        v.w += v.w * weight_high(norm.y);
        return;
    }
    v.x *= weight_low(norm.x);
    v.y *= weight_high(norm.x);
    v.z *= weight_low(norm.y);
    v.w *= weight_high(norm.y);
}

DEVICE float dot_self(const float4& v) { return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w; }

// POST_NORMS: what a module has posted becomes the stream after it. Each thread adds its own pieces of the output, normalised,
// to those of the stream in shared memory, which the next phase finds there; the stream begins as a row of the embedding.
template <int COLUMNS>
DEVICE void add_normed(Core& core, bool begins, const u16* post_norm, float4 (&values)[Pieces<COLUMNS>::COUNT]) {
    const Pieces<COLUMNS> pieces(core);
    float* left = core.shared.residual + model::HIDDEN + (core.staged & 1) * WARPS;
    float inverse = 0.0f;
    if (!begins) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < pieces.COUNT; ++i) squares += dot_self(values[i]);
        squares = warp_sum(squares);
        if (core.lane == 0) left[core.warp] = squares;
        consumers_sync();
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += left[w];
        inverse = rsqrtf(sum * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
    }
#pragma unroll
    for (int i = 0; i < pieces.COUNT; ++i) {
        if (!pieces.in_vector(i)) continue;
        float4* stream = reinterpret_cast<float4*>(core.shared.residual + pieces.column(i));
        if (!begins) {
            scale_by(values[i], __ldg(reinterpret_cast<const uint2*>(post_norm + pieces.column(i))));
            const float4 before = *stream, add = times(values[i], inverse);
            values[i] = make_float4(before.x + add.x, before.y + add.y, before.z + add.z, before.w + add.w);
        }
        *stream = values[i];
    }
}

// RMSNorm's weights go into the operand; its scale is applied to the results (inverse_rms), so that a warp does not
// wait for the others' part of the vector.
// `beside` sees each piece of the vector as it comes.
struct Nobody {
    DEVICE void see(int, const float4&) {}
};
template <int COLUMNS, int STORAGE = STORAGE_F16, class Beside = Nobody>
DEVICE void stage_normed(Core& core, const u32* from, const u16* row, const u16* norm_weights, const u16* post_norm = nullptr,
                         Beside&& beside = Beside()) {
    constexpr bool BY_QUADS = staged_by_quads(STORAGE);
    float4 values[Pieces<COLUMNS>::COUNT];
    uint2 norm[Pieces<COLUMNS>::COUNT];
    load_norm<COLUMNS, BY_QUADS>(core, norm_weights, norm);
    if (row) {
        fetch_row<COLUMNS, BY_QUADS>(core, row, values);
    } else {
        fetch_stream<BY_QUADS>(core, from, values);
    }
    core.profile.input_ready();
    if constexpr (model::POST_NORMS) add_normed<COLUMNS>(core, row != nullptr, post_norm, values);
    core.squares = 0.0f;
#pragma unroll
    for (int i = 0; i < Pieces<COLUMNS>::COUNT; ++i) {
        beside.see(i, values[i]);
        core.squares += dot_self(values[i]);
        scale_by(values[i], norm[i]);
    }
    store_operand<COLUMNS, STORAGE>(core, values);
}

// For inverse_rms. Only those who finish a group need it, so it comes beside the first group's products, or behind them.
DEVICE void leave_squares(Core& core) {
    const float squares = warp_sum(core.squares);
    if (core.lane == 0) core.squares_left()[core.warp] = squares;
}

template <int COLUMNS, int STORAGE = STORAGE_F16>
DEVICE void stage_plain(Core& core, const u32* from) {
    float4 values[Pieces<COLUMNS>::COUNT];
    fetch<COLUMNS, staged_by_quads(STORAGE)>(core, from, values);
    core.profile.input_ready();
    store_operand<COLUMNS, STORAGE>(core, values);
}
