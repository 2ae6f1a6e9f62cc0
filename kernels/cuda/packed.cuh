// Products with packed weights: unpacked in registers on their way to the tensor cores, scaled where sums leave them. FP8 in decode goes
// there without (slot_runs.cuh).
//
// A number becomes an operand in FP16 without rounding, whatever the model's type, by the fewest shifts and masks: they leave
// it divided by a power of two, which whole sums are multiplied by. Numbers that share a scale are added up apart from others
// and meet it in FP32, so that a product is as exact as one with 16-bit weights.
// Of the sixteen rows of operand A a vector fills two, the high and the low parts of its numbers: here a warp's chunk e of
// a slot fills rows e and 8 + e. So the lanes 4 e + j have the sums of chunk e, and all scales of up to eight chunks meet their
// sums at once.
//
// Prefill has tokens in all of these rows. It multiplies with numbers times their scales, rounded once to sixteen bits.
#pragma once
#include "core.cuh"

namespace packed {

// The words of a unit that a lane has: row lane / 4, columns 8 j .. 8 j + 7.
DEVICE constexpr int words(int storage) { return ceil_div(unit_form(storage).unit, 128); }

// What activations are divided by: those of a model in BF16 may be larger than FP16 holds.
DEVICE constexpr float lowered() { return model::WEIGHTS_BF16 ? 16.0f : 1.0f; }

// What an operand is the number divided by.
DEVICE constexpr float reduced(int storage) { return storage == STORAGE_FP8_BLOCK ? 256.0f : storage == STORAGE_MXFP4 ? 16384.0f : 1.0f; }

// Whether something is taken off each number besides.
DEVICE constexpr bool has_offsets(int storage) { return storage == STORAGE_Q4_K; }

// The operands of one of a unit's two products: columns 4 `step` .. 4 `step` + 3 of the lane's eight.
template <int STORAGE>
DEVICE uint2 operands(const u32* word, int step);

// E4M3: as FP16 its seven bits at 13 .. 7 are the number times 2^-8, also where it is subnormal.
template <>
DEVICE uint2 operands<STORAGE_FP8_BLOCK>(const u32* word, int step) {
    const auto two = [&](u32 bytes) { return (bytes & 0x80008000u) | (bytes >> 1 & 0x3f803f80u); };
    return make_uint2(two(__byte_perm(word[step], 0, 0x1404)), two(__byte_perm(word[step], 0, 0x3424)));
}

DEVICE u32 add_halves(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Bytes raised by 128 as FP16: below 0x64 they are the numbers plus 1024 + 128.
template <>
DEVICE uint2 operands<STORAGE_Q8_0>(const u32* word, int step) {
    constexpr u32 MINUS_1152 = 0xe480e480u;
    const auto two = [&](u32 bytes) { return add_halves(__byte_perm(word[step], 0x64646464u, bytes), MINUS_1152); };
    return make_uint2(two(0x4140), two(0x4342));
}

// The lower four bits of a pair, as FP16: below 0x64 they are the numbers plus 1024.
DEVICE u32 nibbles(u32 w, int pair) { return (w >> 4 * pair & 0x000f000fu) | 0x64006400u; }

template <>
DEVICE uint2 operands<STORAGE_Q4_K>(const u32* word, int step) {
    constexpr u32 MINUS_1024 = 0xe400e400u;
    return make_uint2(add_halves(nibbles(word[0], 2 * step), MINUS_1024), add_halves(nibbles(word[0], 2 * step + 1), MINUS_1024));
}

// Two upper bits beside them; numbers are raised by 32.
template <>
DEVICE uint2 operands<STORAGE_Q6_K>(const u32* word, int step) {
    constexpr u32 MINUS_1056 = 0xe420e420u;
    const u32 upper = __byte_perm(word[1], 0, 0x4140);
    const auto two = [&](int i) {
        return add_halves(nibbles(word[0], i) | (upper << 4 >> 2 * i & 0x00300030u), MINUS_1056);
    };
    return make_uint2(two(2 * step), two(2 * step + 1));
}

// E2M1 at the bits of E5M2's least exponents: the number times 2^-14 (units.mxfp4_words). Columns 4 `step` .. 4 `step` + 3 of the lane's
// eight, a byte each.
DEVICE u32 e5m2_of_mxfp4(u32 w, int step) {
    constexpr u32 BITS = 0x8e8e8e8eu;
    return (step ? (w << 5 | w >> 27) ^ w << 7 : w) & BITS;
}

// E5M2 is the upper byte of FP16.
template <>
DEVICE uint2 operands<STORAGE_MXFP4>(const u32* word, int step) {
    const u32 four = e5m2_of_mxfp4(word[0], step);
    return make_uint2(__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424));
}

// The scales of two rows, 2 j and 2 j + 1, of a unit; and of one row. `of_unit` and `of_run` is where those of a tile lie,
// `part` which of a row's scales is asked for.
template <int STORAGE>
struct Scales;

template <>
struct Scales<STORAGE_Q4_K> {
    u32 bytes;    // scale, offset; of two rows
    uint2 halves; // their factors
    DEVICE void load(const u8* of_unit, const u8* of_run, u32 j, u32) {
        bytes = reinterpret_cast<const u32*>(of_unit)[j];
        halves = reinterpret_cast<const uint2*>(of_run)[j];
    }
    DEVICE u32 loaded() const { return bytes | halves.x | halves.y; }
    DEVICE float2 pair() const { return make_float2(f16_low(halves.x) * float(bytes & 0xff), f16_low(halves.y) * float(bytes >> 16 & 0xff)); }
    DEVICE float2 offsets() const { return make_float2(f16_high(halves.x) * float(bytes >> 8 & 0xff), f16_high(halves.y) * float(bytes >> 24)); }
    DEVICE static float of_row(const u8* of_unit, const u8* of_run, u32 row, u32) {
        return f16_low(reinterpret_cast<const u32*>(of_run)[row]) * float(of_unit[2 * row]);
    }
    DEVICE static float offset_of_row(const u8* of_unit, const u8* of_run, u32 row) {
        return f16_high(reinterpret_cast<const u32*>(of_run)[row]) * float(of_unit[2 * row + 1]);
    }
};

template <>
struct Scales<STORAGE_Q6_K> {
    u32 bytes;   // of two rows, the one asked for at 0 and at 16
    u32 halves;  // their factors
    DEVICE void load(const u8* of_unit, const u8* of_run, u32 j, u32 part) {
        bytes = reinterpret_cast<const u32*>(of_unit)[j] >> 8 * part;
        halves = reinterpret_cast<const u32*>(of_run)[j];
    }
    DEVICE u32 loaded() const { return bytes | halves; }
    DEVICE float2 pair() const {
        return make_float2(f16_low(halves) * float(int(bytes << 24) >> 24), f16_high(halves) * float(int(bytes << 8) >> 24));
    }
    DEVICE static float of_row(const u8* of_unit, const u8* of_run, u32 row, u32 part) {
        return f16_low(reinterpret_cast<const u16*>(of_run)[row]) * float(int(u32(of_unit[2 * row + part]) << 24) >> 24);
    }
};

template <>
struct Scales<STORAGE_FP8_BLOCK> {
    float2 even_odd;
    DEVICE void load(const u8*, const u8* of_run, u32, u32) { even_odd = *reinterpret_cast<const float2*>(of_run); }
    DEVICE float2 pair() const { return even_odd; }
    DEVICE static float of_row(const u8*, const u8* of_run, u32 row, u32) { return reinterpret_cast<const float*>(of_run)[row & 1]; }
};

template <>
struct Scales<STORAGE_Q8_0> {
    u32 halves;
    DEVICE void load(const u8* of_unit, const u8*, u32 j, u32) { halves = reinterpret_cast<const u32*>(of_unit)[j]; }
    DEVICE float2 pair() const { return make_float2(f16_low(halves), f16_high(halves)); }
    DEVICE static float of_row(const u8* of_unit, const u8*, u32 row, u32) { return f16_low(reinterpret_cast<const u16*>(of_unit)[row]); }
};

template <>
struct Scales<STORAGE_MXFP4> {
    u16 exponents;
    DEVICE void load(const u8* of_unit, const u8*, u32 j, u32) { exponents = reinterpret_cast<const u16*>(of_unit)[j]; }
    DEVICE float2 pair() const { return make_float2(scale(exponents & 0xff), scale(exponents >> 8)); }
    DEVICE static float of_row(const u8* of_unit, const u8*, u32 row, u32) { return scale(of_unit[row]); }

private:
    // 2^(e - 127), but nothing where the format means 2^-127.
    DEVICE static float scale(u32 e) { return __uint_as_float(e << 23); }
};

// Where things of the first tile lie in a slot of a group of T tiles, and how far those of the next are from them; chunks count
// from the slot's first. Tiles share runs, or have each its own, one tile after the other: APART.
template <int STORAGE, int T, bool APART>
struct SlotMap {
    static constexpr UnitForm FORM = unit_form(STORAGE);
    static constexpr int CHUNKS = chunks_a_slot(T, STORAGE, APART);
    static constexpr int EACH = ceil_div(CHUNKS, WARPS);  // chunks of a slot that fall to one warp, at most
    static constexpr int TOGETHER = APART ? 1 : T;        // tiles of a run
    static constexpr u32 RUN_BYTES = run_bytes(STORAGE, TOGETHER);
    static constexpr u32 TILE = group_bytes(STORAGE, 1, CHUNKS);
    static constexpr u32 NEXT_UNIT = APART ? TILE : FORM.unit;
    static constexpr u32 NEXT_UNIT_SCALES = APART ? TILE : FORM.unit_scales;
    static constexpr u32 NEXT_RUN_SCALES = APART ? TILE : FORM.run_scales;

    DEVICE static constexpr u32 unit(u32 chunk) {
        return chunk / u32(FORM.run) * RUN_BYTES + chunk % u32(FORM.run) * (TOGETHER * FORM.unit);
    }
    DEVICE static constexpr u32 unit_scales(u32 chunk) {
        return chunk / u32(FORM.run) * RUN_BYTES + FORM.run * TOGETHER * FORM.unit + chunk % u32(FORM.run) * (TOGETHER * FORM.unit_scales);
    }
    DEVICE static constexpr u32 run_scales(u32 chunk) {
        return chunk / u32(FORM.run) * RUN_BYTES + FORM.run * TOGETHER * (FORM.unit + FORM.unit_scales);
    }
};

// The words of a unit that a lane has, from where its first one lies.
template <int STORAGE>
DEVICE void load_words(u32 (&to)[words(STORAGE)], u32 lane, const u8* from) {
    if constexpr (unit_form(STORAGE).unit % 128) {  // the upper bits lie behind all lower ones
        to[0] = *reinterpret_cast<const u32*>(from);
        to[1] = *reinterpret_cast<const u16*>(from + 128 - 2 * lane);
    } else if constexpr (in_pieces(STORAGE)) {
        to[0] = *reinterpret_cast<const u32*>(from);
        to[1] = *reinterpret_cast<const u32*>(from + 128);
    } else if constexpr (words(STORAGE) == 2) {
        const uint2 w = *reinterpret_cast<const uint2*>(from);
        to[0] = w.x;
        to[1] = w.y;
    } else {
        to[0] = *reinterpret_cast<const u32*>(from);
    }
}

DEVICE Operand only_of(const Operand& a, bool here) {
    return make_uint4(here ? a.x : 0, here ? a.y : 0, here ? a.z : 0, here ? a.w : 0);
}

// Units of a slot that fall to one warp, at most, in groups of any size that this model has.
template <int STORAGE, bool APART, int T = MAX_TILES>
DEVICE constexpr int most_units() {
    if constexpr (T == 0) {
        return 1;
    } else if constexpr (chunks_a_slot(T, STORAGE, APART) == 0) {
        return most_units<STORAGE, APART, T - 1>();  // no group is as large: the host has seen to it
    } else {
        return larger(SlotMap<STORAGE, T, APART>::EACH * T, most_units<STORAGE, APART, T - 1>());
    }
}

// A warp's sums for T tiles: lane 4 e + j those of the chunks e of all slots, rows 2 j and 2 j + 1 of each tile.
template <int STORAGE, int T>
struct Sums {
    float2 rows[T];

    DEVICE Sums() {
#pragma unroll
        for (int t = 0; t < T; ++t) rows[t] = make_float2(0.0f, 0.0f);
    }
    // The lanes 0 .. 3 get the sums over all chunks. All lanes of the warp call it.
    DEVICE void join() {
#pragma unroll
        for (int t = 0; t < T; ++t) {
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) {
                rows[t].x += __shfl_xor_sync(ALL_LANES, rows[t].x, offset);
                rows[t].y += __shfl_xor_sync(ALL_LANES, rows[t].y, offset);
            }
        }
    }
    DEVICE float2 pair(int t) const {
        constexpr float BACK = reduced(STORAGE) * lowered();
        return make_float2(rows[t].x * BACK, rows[t].y * BACK);
    }
};

// A warp's part of one slot in registers, as it lies in memory.
template <int STORAGE, bool APART>
struct SlotWeights {
    static constexpr int WORDS = words(STORAGE);
    static constexpr bool WALKS = false;
    static constexpr u32 PARTS = scales_of_a_chunk(STORAGE);
    template <int T>
    using Map = SlotMap<STORAGE, T, APART>;
    template <int T>
    using Sums = packed::Sums<STORAGE, T>;

    u32 word[most_units<STORAGE, APART>()][WORDS] = {};
    Scales<STORAGE> scales[MAX_TILES] = {};  // of the chunk whose sums this lane gets

    template <int T>
    DEVICE static constexpr int chunks_a_slot(int = T) {
        return Map<T>::CHUNKS;
    }

    // Takes chunks first .. last - 1 of a group from the slot at the cursor, and frees it. Past the warp's last chunk:
    // what an earlier group left there. Whatever its bits, they are finite numbers, and `multiply` takes them times zero.
    template <int T>
    DEVICE void load(Core& core, int first, int last, int = T) {
        using Map = SlotWeights::Map<T>;
        const u32 mine = own_chunk<T>(core, first), row = core.lane >> 2, e = row / PARTS;
        const u32 scaled = e < Map::EACH && first + int(mine + e * WARPS) < last ? mine + e * WARPS : mine;
        const u32 units = Map::unit(mine) + core.lane * lane_bytes(STORAGE);
        const u32 unit_scales = Map::unit_scales(scaled), run_scales = Map::run_scales(scaled);
        core.wait_full();
        if (first + int(mine) < last) {
            const u8* slot = core.shared.ring[core.cursor.slot];
#pragma unroll
            for (int e = 0; e < Map::EACH; ++e) {
                const u8* from = slot + units + Map::unit(u32(e * WARPS));
#pragma unroll
                for (int t = 0; t < T; ++t) load_words<STORAGE>(word[e * T + t], core.lane, from + t * Map::NEXT_UNIT);
            }
            const u8 *of_unit = slot + unit_scales, *of_run = slot + run_scales;
#pragma unroll
            for (int t = 0; t < T; ++t) {
                scales[t].load(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES, core.lane & 3, row % PARTS);
            }
        }
        core.free_slot();
    }

    template <int T>
    DEVICE void multiply(const Core& core, int first, int last, Sums<T>& sums) const {
        using Map = SlotWeights::Map<T>;
        const int mine = first + int(own_chunk<T>(core, first)), row = int(core.lane >> 2) / PARTS;
        if (mine >= last) return;
        Operand own[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        const bool in_part = PARTS == 1 || (core.lane >> 1 & 1) == (core.lane >> 2 & 1);  // half of the columns a row
        if (in_part && row < Map::EACH && mine + row * WARPS < last) {
            const u8* from = core.shared.operand() + (mine + row * WARPS) * VECTOR_CHUNK_BYTES + (core.lane & 3) * 16;
            own[0] = *reinterpret_cast<const Operand*>(from);
            own[1] = *reinterpret_cast<const Operand*>(from + VECTOR_STEP_BYTES);
        }
        // Few tiles get two chains each, so that one product need not wait for the one before.
        constexpr int CHAINS = T <= 4 ? 2 : 1;
        float chain[CHAINS][T][4] = {}, ones[4] = {};  // sums of the vector itself
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {  // outside the tiles: the next product of a chain waits for the one before
                const Operand a = only_of(own[step], row == e);
                if constexpr (has_offsets(STORAGE)) mma_f16(ones, a.x, a.y, a.z, a.w, 0x3c003c00u, 0x3c003c00u);
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    const uint2 w = operands<STORAGE>(word[e * T + t], step);
                    mma_f16(chain[step * (CHAINS - 1)][t], a.x, a.y, a.z, a.w, w.x, w.y);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < T; ++t) {
            const float2 scale = scales[t].pair();
            float2 sum = make_float2(chain[0][t][0] + chain[0][t][2], chain[0][t][1] + chain[0][t][3]);
            if constexpr (CHAINS == 2) {
                sum.x += chain[1][t][0] + chain[1][t][2];
                sum.y += chain[1][t][1] + chain[1][t][3];
            }
            if constexpr (has_offsets(STORAGE)) {
                const float2 offset = scales[t].offsets();
                sums.rows[t].x = fmaf(-offset.x, ones[0] + ones[2], sums.rows[t].x);
                sums.rows[t].y = fmaf(-offset.y, ones[1] + ones[3], sums.rows[t].y);
            }
            sums.rows[t].x = fmaf(scale.x, sum.x, sums.rows[t].x);
            sums.rows[t].y = fmaf(scale.y, sum.y, sums.rows[t].y);
        }
    }

private:
    // The first of the warp's chunks from `first` on, counted from there.
    template <int T>
    DEVICE static u32 own_chunk(const Core& core, int first) {
        return Map<T>::CHUNKS % WARPS ? core.warp - u32(first) & (WARPS - 1) : core.warp;
    }
};

// For prefill: the operands of one unit as 16-bit weights, each rounded once.
template <int STORAGE, int T, bool APART>
DEVICE uint4 rounded(const u8* slot, u32 chunk, int tile, u32 lane) {
    using Map = SlotMap<STORAGE, T, APART>;
    const u8* unit = slot + Map::unit(chunk) + tile * Map::NEXT_UNIT;
    const u8* of_unit = slot + Map::unit_scales(chunk) + tile * Map::NEXT_UNIT_SCALES;
    const u8* of_run = slot + Map::run_scales(chunk) + tile * Map::NEXT_RUN_SCALES;
    const float scale = Scales<STORAGE>::of_row(of_unit, of_run, lane >> 2, lane >> 1 & 1) * reduced(STORAGE);
    float offset = 0.0f;
    if constexpr (has_offsets(STORAGE)) offset = Scales<STORAGE>::offset_of_row(of_unit, of_run, lane >> 2);
    u32 word[words(STORAGE)];
    if constexpr (in_pieces(STORAGE)) {
        load_words<STORAGE>(word, lane, unit + 4 * lane);
    } else if constexpr (Map::FORM.unit % 128) {
        word[0] = reinterpret_cast<const u32*>(unit)[lane];
        word[1] = reinterpret_cast<const u16*>(unit + 128)[lane];
    } else {
#pragma unroll
        for (int i = 0; i < words(STORAGE); ++i) word[i] = reinterpret_cast<const u32*>(unit)[lane * words(STORAGE) + i];
    }
    const uint2 first = operands<STORAGE>(word, 0), last = operands<STORAGE>(word, 1);
    const auto scaled = [&](u32 pair) {
        const float low = f16_low(pair) * scale - offset, high = f16_high(pair) * scale - offset;
        return model::WEIGHTS_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
    };
    return make_uint4(scaled(first.x), scaled(first.y), scaled(last.x), scaled(last.y));
}

}  // namespace packed
