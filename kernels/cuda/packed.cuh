// Products with packed weights: unpacked in registers on their way to the tensor cores, scaled where sums leave them.
//
// A number becomes an operand of sixteen bits without rounding, by shifts and masks that leave it times a power of two; what
// that takes away is in RAISED, by which activations are multiplied, and in the scales on the tape. Numbers that share
// a scale are added up apart from others and meet them in FP32, so that a product is as exact as one with 16-bit weights.
// Of the sixteen rows of operand A a vector fills two, the high and the low parts of its numbers: here a warp's chunk e of
// a slot fills rows e and 8 + e. So the lanes 4 e + j have the sums of chunk e, and all scales of up to eight chunks meet their
// sums at once.
//
// Prefill has tokens in all of these rows. It multiplies with numbers times their scales, rounded once to sixteen bits.
#pragma once
#include "core.cuh"

namespace packed {

// The words of a unit that a lane has: row lane / 4, columns 8 j .. 8 j + 7.
DEVICE constexpr int words(int storage) { return unit_form(storage).unit / 128; }

// What activations are multiplied by: an operand that was unpacked is the number divided by RAISED and by what the scale on
// the tape has more.
DEVICE constexpr float raised(int storage) {
    constexpr float TO_100 = 1.2676506002282294e30f;  // 2^100
    return storage == STORAGE_FP8_BLOCK || (storage == STORAGE_MXFP4 && model::WEIGHTS_BF16) ? TO_100 : 1.0f;
}

// The operands of one of a unit's two products: columns 4 `step` .. 4 `step` + 3 of the lane's eight.
template <int STORAGE>
DEVICE uint2 operands(const u32* word, int step);

// E4M3 as BF16: its seven bits at 10 .. 4 are the number times 2^-120, also where it is subnormal.
template <>
DEVICE uint2 operands<STORAGE_FP8_BLOCK>(const u32* word, int step) {
    static_assert(model::WEIGHTS_BF16 || !(ALL_STORAGES >> STORAGE_FP8_BLOCK & 1), "FP16 has too few exponents");
    const u32 w = word[step];
    return make_uint2(w & 0x87f087f0u, (w << 4 & 0x80f080f0u) | (w >> 4 & 0x07000700u));
}

DEVICE u32 add_halves(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Bytes raised by 128 as FP16: below 0x64 they are the numbers plus 1024 + 128.
template <>
DEVICE uint2 operands<STORAGE_Q8_0>(const u32* word, int step) {
    static_assert(!model::WEIGHTS_BF16 || !(ALL_STORAGES >> STORAGE_Q8_0 & 1), "BF16 has too few bits");
    constexpr u32 MINUS_1152 = 0xe480e480u;
    const auto two = [&](u32 bytes) { return add_halves(__byte_perm(word[step], 0x64646464u, bytes), MINUS_1152); };
    return make_uint2(two(0x4140), two(0x4342));
}

// E2M1, pair by pair at the bits that the type has for its least exponents: times 2^-14 as FP16, 2^-126 as BF16.
template <>
DEVICE uint2 operands<STORAGE_MXFP4>(const u32* word, int step) {
    const u32 w = word[0];
    const auto pair = [&](int i) {
        const u32 sign = w << i & 0x80008000u;
        if constexpr (model::WEIGHTS_BF16) {
            return sign | ((i ? w << 3 * i - 3 : w >> 3) & 0x01c001c0u);
        } else {
            return sign | (w << 3 * i & 0x0e000e00u);
        }
    };
    return make_uint2(pair(2 * step), pair(2 * step + 1));
}

// The scales of two rows, 2 j and 2 j + 1, of a unit; and of one row. `of_unit` and `of_run` is where those of a tile lie.
template <int STORAGE>
struct Scales;

template <>
struct Scales<STORAGE_FP8_BLOCK> {
    float2 even_odd;
    DEVICE void load(const u8*, const u8* of_run, u32) { even_odd = *reinterpret_cast<const float2*>(of_run); }
    DEVICE float2 pair() const { return even_odd; }
    DEVICE static float of_row(const u8*, const u8* of_run, u32 row) { return reinterpret_cast<const float*>(of_run)[row & 1]; }
};

template <>
struct Scales<STORAGE_Q8_0> {
    u32 halves;
    DEVICE void load(const u8* of_unit, const u8*, u32 j) { halves = reinterpret_cast<const u32*>(of_unit)[j]; }
    DEVICE float2 pair() const { return make_float2(f16_low(halves), f16_high(halves)); }
    DEVICE static float of_row(const u8* of_unit, const u8*, u32 row) { return f16_low(reinterpret_cast<const u16*>(of_unit)[row]); }
};

template <>
struct Scales<STORAGE_MXFP4> {
    u16 exponents;
    DEVICE void load(const u8* of_unit, const u8*, u32 j) { exponents = reinterpret_cast<const u16*>(of_unit)[j]; }
    DEVICE float2 pair() const { return make_float2(scale(exponents & 0xff), scale(exponents >> 8)); }
    DEVICE static float of_row(const u8* of_unit, const u8*, u32 row) { return scale(of_unit[row]); }

private:
    // 2^(e - 127), and what the operand and RAISED lack. The exponent 0 is a subnormal number.
    DEVICE static float scale(u32 e) {
        constexpr float BACK = model::WEIGHTS_BF16 ? 67108864.0f : 16384.0f;  // 2^26, 2^14
        return __uint_as_float(e ? e << 23 : 1u << 22) * BACK;
    }
};

// Where things lie in a slot of a group of T tiles; chunks count from the slot's first.
template <int STORAGE, int T>
struct SlotMap {
    static constexpr UnitForm FORM = unit_form(STORAGE);
    static constexpr u32 RUN_BYTES = run_bytes(STORAGE, T);
    static constexpr int CHUNKS = chunks_a_slot(T, STORAGE);
    static constexpr int EACH = ceil_div(CHUNKS, WARPS);  // chunks of a slot that fall to one warp, at most

    DEVICE static constexpr u32 unit(u32 chunk) { return chunk / u32(FORM.run) * RUN_BYTES + chunk % u32(FORM.run) * (T * FORM.unit); }
    DEVICE static constexpr u32 unit_scales(u32 chunk) {
        return chunk / u32(FORM.run) * RUN_BYTES + FORM.run * T * FORM.unit + chunk % u32(FORM.run) * (T * FORM.unit_scales);
    }
    DEVICE static constexpr u32 run_scales(u32 chunk) {
        return chunk / u32(FORM.run) * RUN_BYTES + FORM.run * T * (FORM.unit + FORM.unit_scales);
    }
};

// Units of a slot that fall to one warp, at most, in groups of any size that this model has.
template <int STORAGE, int T = MAX_TILES>
DEVICE constexpr int most_units() {
    if constexpr (T == 0) {
        return 1;
    } else if constexpr (chunks_a_slot(T, STORAGE) == 0) {
        return most_units<STORAGE, T - 1>();  // no group is as large: the host has seen to it
    } else {
        return larger(SlotMap<STORAGE, T>::EACH * T, most_units<STORAGE, T - 1>());
    }
}

// A warp's sums for T tiles: lane 4 e + j those of the chunks e of all slots, rows 2 j and 2 j + 1 of each tile.
template <int T>
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
    DEVICE float2 pair(int t) const { return rows[t]; }
};

// A warp's part of one slot in registers, as it lies in memory.
template <int STORAGE>
struct SlotWeights {
    static constexpr int WORDS = words(STORAGE);
    template <int T>
    using Sums = packed::Sums<T>;

    u32 word[most_units<STORAGE>()][WORDS] = {};
    Scales<STORAGE> scales[MAX_TILES] = {};  // of the chunk whose sums this lane gets

    template <int T>
    DEVICE static constexpr int chunks_a_slot() {
        return SlotMap<STORAGE, T>::CHUNKS;
    }

    // Takes chunks first .. last - 1 of a group from the slot at the cursor, and frees it. Past the warp's last chunk:
    // what an earlier group left there. Whatever its bits, they are finite numbers, and `multiply` takes them times zero.
    // Tiles lie side by side: experts, whose tiles lie APART, are in 16 bits.
    template <int T, bool APART>
    DEVICE void load(Core& core, int first, int last) {
        static_assert(!APART, "packed tiles lie side by side");
        using Map = SlotMap<STORAGE, T>;
        const u32 mine = own_chunk<T>(core, first), row = core.lane >> 2;
        const bool scales_row = row < Map::EACH && first + int(mine + row * WARPS) < last;
        const u32 scaled = scales_row ? mine + row * WARPS : mine;
        const u32 units = Map::unit(mine) + core.lane * (WORDS * 4);
        const u32 unit_scales = Map::unit_scales(scaled), run_scales = Map::run_scales(scaled);
        core.wait_full();
        if (first + int(mine) < last) {
            const u8* slot = core.shared.ring[core.cursor.slot];
#pragma unroll
            for (int e = 0; e < Map::EACH; ++e) {
                const u8* from = slot + units + Map::unit(u32(e * WARPS));
#pragma unroll
                for (int t = 0; t < T; ++t) load_words(word[e * T + t], from + t * u32(Map::FORM.unit));
            }
            const u8 *of_unit = slot + unit_scales, *of_run = slot + run_scales;
#pragma unroll
            for (int t = 0; t < T; ++t) {
                scales[t].load(of_unit + t * u32(Map::FORM.unit_scales), of_run + t * u32(Map::FORM.run_scales), core.lane & 3);
            }
        }
        core.free_slot();
    }

    template <int T>
    DEVICE void multiply(const Core& core, int first, int last, Sums<T>& sums) const {
        using Map = SlotMap<STORAGE, T>;
        const int mine = first + int(own_chunk<T>(core, first)), row = int(core.lane >> 2);
        if (mine >= last) return;
        Operand own[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
        if (row < Map::EACH && mine + row * WARPS < last) {
            const u8* from = core.shared.operand() + (mine + row * WARPS) * CHUNK_OPERAND_BYTES + (core.lane & 3) * 16;
            own[0] = *reinterpret_cast<const Operand*>(from);
            own[1] = *reinterpret_cast<const Operand*>(from + OPERAND_STEP_BYTES);
        }
        // Few tiles get two chains each, so that one product need not wait for the one before.
        constexpr int CHAINS = T <= 4 ? 2 : 1;
        float chain[CHAINS][T][4] = {};
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {  // outside the tiles: the next product of a chain waits for the one before
                const Operand a = only_of(own[step], row == e);
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    const uint2 w = operands<STORAGE>(word[e * T + t], step);
                    mma_weights(chain[step * (CHAINS - 1)][t], a, w.x, w.y);
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
            sums.rows[t].x = fmaf(scale.x, sum.x, sums.rows[t].x);
            sums.rows[t].y = fmaf(scale.y, sum.y, sums.rows[t].y);
        }
    }

private:
    // The first of the warp's chunks from `first` on, counted from there.
    template <int T>
    DEVICE static u32 own_chunk(const Core& core, int first) {
        return SlotMap<STORAGE, T>::CHUNKS % WARPS ? core.warp - u32(first) & (WARPS - 1) : core.warp;
    }
    DEVICE static Operand only_of(const Operand& a, bool here) {
        return make_uint4(here ? a.x : 0, here ? a.y : 0, here ? a.z : 0, here ? a.w : 0);
    }
    DEVICE static void load_words(u32 (&to)[WORDS], const u8* from) {
        if constexpr (WORDS == 2) {
            const uint2 w = *reinterpret_cast<const uint2*>(from);
            to[0] = w.x;
            to[1] = w.y;
        } else {
            to[0] = *reinterpret_cast<const u32*>(from);
        }
    }
};

// For prefill: the operands of one unit as 16-bit weights, each rounded once.
template <int STORAGE, int T>
DEVICE uint4 rounded(const u8* slot, u32 chunk, int tile, u32 lane) {
    using Map = SlotMap<STORAGE, T>;
    const u8* unit = slot + Map::unit(chunk) + tile * Map::FORM.unit;
    const float scale = Scales<STORAGE>::of_row(slot + Map::unit_scales(chunk) + tile * Map::FORM.unit_scales,
                                                slot + Map::run_scales(chunk) + tile * Map::FORM.run_scales, lane >> 2);
    const u32* word = reinterpret_cast<const u32*>(unit) + lane * words(STORAGE);
    const uint2 first = operands<STORAGE>(word, 0), last = operands<STORAGE>(word, 1);
    const auto scaled = [&](u32 pair) {
        const float low = weight_low(pair) * raised(STORAGE) * scale, high = weight_high(pair) * raised(STORAGE) * scale;
        return model::WEIGHTS_BF16 ? pack_bf16(low, high) : pack_f16(low, high);
    };
    return make_uint4(scaled(first.x), scaled(first.y), scaled(last.x), scaled(last.y));
}

}  // namespace packed
