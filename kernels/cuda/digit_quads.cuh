// Products with weights in MXFP4 by warpgroups, with a vector's digits; quads.cuh has those with numbers of sixteen bits.
//
// A chunk of the vector fills four columns of operand B, its digits; two chunks fill eight, a block, and two blocks are a quad. Operand
// A is 64 rows: two tiles in each of a warpgroup's warps, all of one chunk, or of few tiles those of two or four chunks. So of the sums
// of a product a half is a chunk's own, in two of four lanes; the others have a product with another chunk's columns: finite, and
// nobody looks at it. The next product leaves its own chunk's sums in those other lanes: blocks have their chunks in another order in
// turn. So each lane takes what is its own of two products, and scales it once.
//
// Both warps of a scheduler are in this loop at a time, and it is their instructions that take the time: addresses go on by a step, and
// nothing is worked out anew that is the same in each turn.
#pragma once
#include "digits.cuh"
#include "quads.cuh"

namespace packed {

// How a warpgroup's warps share a quad of a group of T tiles.
template <int T>
struct DigitRounds {
    static constexpr int CHUNKS = T > 4 ? 1 : T > 2 ? 2 : 4;  // of a round
    static constexpr u32 WARPS_A_CHUNK = QUAD_CHUNKS / CHUNKS;

    // Of a warp: which of a round's chunks it has, and its first tile.
    DEVICE static u32 chunk(u32 warp) { return warp % QUAD_CHUNKS / WARPS_A_CHUNK; }
    DEVICE static u32 tile(u32 warp) { return warp % WARPS_A_CHUNK * 2; }
    // The first of the two neighbours that it multiplies. Where there are not two from its own on, it takes some of other warps along,
    // and nobody looks at those sums.
    DEVICE static u32 first(u32 warp) { return T % (2 * WARPS_A_CHUNK) == 0 || T == 1 ? tile(warp) : smaller(int(tile(warp)), T - 2); }
    // Whether the first or the second one of them is its own.
    DEVICE static bool own(u32 warp, int h) { return first(warp) + h >= tile(warp) && first(warp) + h < T; }
};

// What a lane has of a turn, from where that begins.
template <int STORAGE, int T, bool APART>
struct DigitPlaces {
    using Map = SlotMap<STORAGE, T, APART>;
    using Rounds = DigitRounds<T>;

    // The chunk of a quad whose sums are the lane's, in a half.
    DEVICE static u32 chunk(const Core& core, int half) {
        const u32 warp = Rounds::chunk(core.warp), round = (core.lane >> 1 & 1) ^ (T > 4 ? half : int(warp));
        return T > 4 ? 2 * half + round : T > 2 ? 2 * round + warp : warp;
    }
    // The words of its first tile, of a half's first round.
    DEVICE static u32 units(const Core& core) {
        return Map::unit(T > 4 ? 0 : Rounds::chunk(core.warp)) + Rounds::first(core.warp) * Map::NEXT_UNIT + core.lane * lane_bytes(STORAGE);
    }
    DEVICE static u32 scales(const Core& core, int half) {
        return Map::unit_scales(chunk(core, half)) + Rounds::first(core.warp) * Map::NEXT_UNIT_SCALES + (core.lane >> 2);
    }
    DEVICE static u32 size(const Core& core) { return DigitColumns<1>::place(chunk(core, 0), 0); }
    // Whether what is its own of a half's sums is in the second round, or block.
    DEVICE static bool second(const Core& core, int half) {
        return T > 2 ? (core.lane >> 1 & 1) ^ (T > 4 ? half : int(Rounds::chunk(core.warp))) : core.warp >> 1 & 1;
    }
};

// Half of a turn on its way: of many tiles a block of a quad, of few a quad.
template <int STORAGE, int T, bool APART, int HALF>
struct DigitHalf {
    using Cut = Turn<STORAGE, T, APART>;
    using Map = typename Cut::Map;
    using Columns = DigitColumns<1>;
    static constexpr int ROUNDS = T > 2 ? 2 : 1, BLOCKS = T > 2 ? 1 : 2, QUAD = Cut::quad(HALF);
    static constexpr u32 HERE = QUAD * Cut::QUAD_BYTES;
    static constexpr int NEXT_TILE = T > 1;

    u32 word[ROUNDS][2][words(STORAGE)], rows[ROUNDS][4];
    float sums[ROUNDS][4 * BLOCKS], scales[2];

    // From where the lane's parts of the turn lie (DigitPlaces), `of_unit` those of this half. Returns what depends on all loads that
    // may hang.
    DEVICE u32 load(const u8* unit, const u8* of_unit, const float* sizes) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const u8* from = unit + HERE + Map::unit(T > 4 ? 2 * HALF + r : 2 * r);
#pragma unroll
            for (int h = 0; h < 2; ++h) load_words<STORAGE>(word[r][h], 0, from + h * NEXT_TILE * Map::NEXT_UNIT);
        }
        const float size = sizes[T > 4 ? 2 * HALF : QUAD * QUAD_CHUNKS];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            scales[h] = Scales<STORAGE>::of_row(of_unit + HERE + h * NEXT_TILE * Map::NEXT_UNIT_SCALES, nullptr, 0, 0) * size;
        }
        return __float_as_uint(scales[0]) | __float_as_uint(scales[1]);
    }
    // Both halves are loaded before: the compiler moves no load of the other one to before these products. `columns` is the turn's
    // descriptor.
    DEVICE void begin(u32 columns) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) unpack_rows(rows[r], word[r]);
        hold();
        products_begin();
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            constexpr u32 BLOCK = Columns::BLOCK_BYTES >> 4;
            multiply_e5m2(sums[r], rows[r], u64(Columns::BLOCK_BYTES >> 4) << 32 | (columns + QUAD * (Columns::QUAD_BYTES >> 4) + (T > 4 ? HALF : T > 2 ? r : 0) * BLOCK));
        }
        products_commit();
    }
    // Once the products have ended.
    DEVICE void add_to(const Core& core, float (&to)[2]) {
        hold();
        const bool second = DigitPlaces<STORAGE, T, APART>::second(core, HALF);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float first = two_digits(sums[0] + 2 * h), other = two_digits(ROUNDS == 2 ? sums[ROUNDS - 1] + 2 * h : sums[0] + 4 * (BLOCKS - 1) + 2 * h);
            to[h] = fmaf(scales[h], second ? other : first, to[h]);
        }
    }

private:
    // The compiler may not move what is done with sums across it: to where products are on their way.
    DEVICE void hold() {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
#pragma unroll
            for (float& sum : sums[r]) asm volatile("" : "+f"(sum)::"memory");
        }
    }
};

// The products of a group, straight from the slots.
template <int STORAGE, bool APART>
struct DigitProducts {
    // A thread's sums: of its row of its warp's two tiles.
    template <int T>
    struct Sums {
        float rows[2] = {};
    };

    template <int T>
    DEVICE void begin(Core&, int, int) {}

    // Adds this warp's part of each row's product to `sums`. All warps have stored their part of the vector.
    template <int T>
    DEVICE void multiply(Core& core, int, int chunks, bool, Sums<T>& sums) {
        using Cut = Turn<STORAGE, T, APART>;
        using Places = DigitPlaces<STORAGE, T, APART>;
        using Columns = DigitColumns<1>;
        constexpr int STEP = Cut::Map::CHUNKS, QUADS = Cut::CHUNKS / QUAD_CHUNKS;
        const u32 units = Places::units(core), scales[2] = {Places::scales(core, 0), Places::scales(core, 1)};
        const u32 missing[2] = {missing_scales<T>(core, chunks, 0), missing_scales<T>(core, chunks, 1)};
        const float* all_sizes = core.shared.sizes() + Places::size(core);
        const u32 all_columns = u32(Columns::descriptor(core.shared, 0, 0));
        DigitHalf<STORAGE, T, APART, 0> one;
        DigitHalf<STORAGE, T, APART, 1> other;
        int mine = __shfl_sync(ALL_LANES, int(core.warp / QUAD_CHUNKS), 0);  // this warpgroup's first turn in a slot: the same for all
#pragma unroll 1
        for (int first = 0; first < chunks; first += STEP) {
            const bool ends = first + STEP >= chunks;
            const int turns = first + STEP <= chunks ? STEP / Cut::CHUNKS : ceil_div(chunks % STEP, Cut::CHUNKS);
            const int in_part = chunks % Cut::CHUNKS && ends ? 1 : -1;  // turns that are left, of the one that is not whole
            const u32 quad = u32(first) / QUAD_CHUNKS + u32(mine) * QUADS;
            const float* sizes = all_sizes + quad * QUAD_CHUNKS;
            u32 columns = all_columns + quad * (Columns::QUAD_BYTES >> 4);
            u32 loaded = 0;
            core.wait_full();
            const u8* from = core.shared.ring[core.cursor.slot] + u32(mine) * Cut::BYTES;
            const u8 *unit = from + units, *of_one = from + scales[0], *of_other = from + scales[1];
#pragma unroll 1
            for (int left = turns - mine; left > 0; left -= 2) {
                if (chunks % Cut::CHUNKS && left == in_part) {
                    of_one -= missing[0];
                    of_other -= missing[1];
                }
                loaded = one.load(unit, of_one, sizes);
                loaded |= other.load(unit, of_other, sizes);
                unit += 2 * Cut::BYTES;
                of_one += 2 * Cut::BYTES;
                of_other += 2 * Cut::BYTES;
                sizes += 2 * QUADS * QUAD_CHUNKS;
                one.begin(columns);
                other.begin(columns);
                columns += 2 * QUADS * (Columns::QUAD_BYTES >> 4);
                products_wait<1>();
                one.add_to(core, sums.rows);
                products_wait<0>();
                other.add_to(core, sums.rows);
            }
            core.free_slot_after(loaded);
            if (STEP / Cut::CHUNKS % 2) mine ^= 1;
        }
    }

    // Leaves the warp's sums of each row in shared memory: [part][row].
    template <int T>
    DEVICE void leave(Core& core, const Sums<T>& sums) const {
        using Rounds = DigitRounds<T>;
        const float worth = worth_of_digits(core.lane, reduced(STORAGE));
        const u32 place = core.lane >> 1 & 1, chunk = T > 4 ? place : DigitPlaces<STORAGE, T, APART>::chunk(core, 0);
        const bool own = T > 2 || DigitColumns<1>::half(chunk) == place;
        const u32 part = core.warp / QUAD_CHUNKS * QUAD_CHUNKS + part_of<T>(chunk, core.lane);
        float* rows = reinterpret_cast<float*>(core.shared.partial(core.group & 1) + part * PAIRS) + (core.lane >> 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = joined<T>(sums.rows[h] * worth);
            if (own && Rounds::own(core.warp, h) && (T > 4 || !(core.lane & 1))) rows[(Rounds::first(core.warp) + h) * TILE_ROWS] = sum;
        }
    }

private:
    // Of a chunk that is not there scales could be anything; the turn's first one's will do, as its part of the vector is zero. How far back
    // those lie, in a group's last turn.
    template <int T>
    DEVICE static u32 missing_scales(const Core& core, int chunks, int half) {
        using Cut = Turn<STORAGE, T, APART>;
        using Map = typename Cut::Map;
        const int chunk = Cut::quad(half) * QUAD_CHUNKS + int(DigitPlaces<STORAGE, T, APART>::chunk(core, half));
        return chunk < chunks % Cut::CHUNKS ? 0 : Cut::quad(half) * Cut::QUAD_BYTES + Map::unit_scales(chunk % QUAD_CHUNKS) - Map::unit_scales(0);
    }
};

}  // namespace packed
