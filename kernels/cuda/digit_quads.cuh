// Products with weights in MXFP4 by warpgroups, with a vector's digits; quads.cuh has those with numbers of sixteen bits.
//
// A chunk of the vector fills four columns of operand B, its digits; two chunks fill eight, a block, and two blocks are a quad. Operand
// A is 64 rows: two tiles in each of a warpgroup's warps, all of one chunk, or of few tiles those of two or four chunks. So of the sums
// of a product a half is a chunk's own, in two of four lanes; the others have a product with another chunk's columns: finite, and
// nobody looks at it. The next product leaves its own chunk's sums in those other lanes: blocks have their chunks in another order in
// turn. So each lane takes what is its own of two products, and scales it once.
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
    // The last tile will do for one that is not there.
    DEVICE static u32 tile(u32 warp, int h) {
        const u32 tile = DigitRounds::tile(warp) + h;
        return T % (2 * WARPS_A_CHUNK) == 0 || tile < T ? tile : T - 1;
    }
};

// Half of a turn on its way: of many tiles a block of a quad, of few a quad.
template <int STORAGE, int T, bool APART, int HALF>
struct DigitHalf {
    using Cut = Turn<STORAGE, T, APART>;
    using Map = typename Cut::Map;
    using Rounds = DigitRounds<T>;
    using Columns = DigitColumns<1>;
    static constexpr int WORDS = words(STORAGE), ROUNDS = T > 2 ? 2 : 1, BLOCKS = T > 2 ? 1 : 2, QUAD = Cut::quad(HALF);

    u32 word[ROUNDS][2][WORDS], rows[ROUNDS][4];
    float sums[ROUNDS][4 * BLOCKS], scales[2];

    // `from` is where the turn begins in its slot, `chunk` its first. Returns what depends on all loads that may hang.
    DEVICE u32 load(const Core& core, const u8* from, int chunk, int chunks) {
        constexpr u32 HERE = QUAD * Cut::QUAD_BYTES;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const u8* unit = from + HERE + Map::unit(chunk_of(r, core.warp)) + core.lane * (WORDS * 4);
#pragma unroll
            for (int h = 0; h < 2; ++h) load_words<STORAGE>(word[r][h], core.lane, unit + Rounds::tile(core.warp, h) * Map::NEXT_UNIT);
        }
        const u32 own = chunk_of(round(core), core.warp);
        const float size = core.shared.sizes()[quad_of(chunk) * QUAD_CHUNKS + Columns::place(own, 0)];
        // Of a chunk that is not there scales could be anything; the first one's will do, as its part of the vector is zero.
        const bool real = chunks % Cut::CHUNKS == 0 || chunk + QUAD * QUAD_CHUNKS + int(own) < chunks;
        const u8* of_unit = from + (real ? HERE + Map::unit_scales(own) : Map::unit_scales(0));
        const u8* of_run = from + (real ? HERE + Map::run_scales(own) : Map::run_scales(0));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 t = Rounds::tile(core.warp, h);
            scales[h] = Scales<STORAGE>::of_row(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES, core.lane >> 2, 0) * size;
        }
        return __float_as_uint(scales[0]) | __float_as_uint(scales[1]);
    }
    // Both halves are loaded before: the compiler moves no load of the other one to before these products.
    DEVICE void begin(const Core& core, int chunk) {
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) unpack_rows(rows[r], word[r]);
        hold();
        products_begin();
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            multiply_e5m2(sums[r], rows[r], Columns::descriptor(core.shared, quad_of(chunk), T > 4 ? HALF : T > 2 ? r : 0));
        }
        products_commit();
    }
    // Once the products have ended.
    DEVICE void add_to(const Core& core, float (&to)[2]) {
        hold();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool last = ROUNDS == 2 ? round(core) : core.warp & 2;  // round, or block
            const float first = two_digits(sums[0] + 2 * h), other = two_digits(ROUNDS == 2 ? sums[ROUNDS - 1] + 2 * h : sums[0] + 4 * (BLOCKS - 1) + 2 * h);
            to[h] = fmaf(scales[h], last ? other : first, to[h]);
        }
    }

private:
    DEVICE static u32 quad_of(int chunk) { return u32(chunk) / QUAD_CHUNKS + QUAD; }
    // The chunk of the quad that a warp has in a round.
    DEVICE static u32 chunk_of(u32 round, u32 warp) {
        return T > 4 ? 2 * HALF + round : T > 2 ? 2 * round + Rounds::chunk(warp) : Rounds::chunk(warp);
    }
    // The round whose sums are the lane's.
    DEVICE static u32 round(const Core& core) {
        const u32 place = core.lane >> 1 & 1;
        return T > 4 ? place ^ HALF : T > 2 ? place ^ Rounds::chunk(core.warp) : 0;
    }
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
        constexpr int STEP = Cut::Map::CHUNKS;
        DigitHalf<STORAGE, T, APART, 0> one;
        DigitHalf<STORAGE, T, APART, 1> other;
        int mine = __shfl_sync(ALL_LANES, int(core.warp / QUAD_CHUNKS), 0);  // this warpgroup's first turn in a slot: the same for all
#pragma unroll 1
        for (int first = 0; first < chunks; first += STEP) {
            const int turns = first + STEP <= chunks ? STEP / Cut::CHUNKS : ceil_div(chunks % STEP, Cut::CHUNKS);
            u32 loaded = 0;
            core.wait_full();
#pragma unroll 1
            for (int turn = mine; turn < turns; turn += 2) {
                const u8* from = core.shared.ring[core.cursor.slot] + u32(turn) * Cut::BYTES;
                const int chunk = first + turn * Cut::CHUNKS;
                loaded = one.load(core, from, chunk, chunks);
                loaded |= other.load(core, from, chunk, chunks);
                one.begin(core, chunk);
                other.begin(core, chunk);
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
        const float worth = worth_of_digits<STORAGE>(core.lane);
        const u32 place = core.lane >> 1 & 1, warp = Rounds::chunk(core.warp), chunk = T > 4 ? place : T > 2 ? 2 * (place ^ warp) + warp : warp;
        const bool own = T > 2 || DigitColumns<1>::half(chunk) == place;
        const u32 part = core.warp / QUAD_CHUNKS * QUAD_CHUNKS + part_of<T>(chunk, core.lane);
        float* rows = reinterpret_cast<float*>(core.shared.partial(core.group & 1) + part * PAIRS) + (core.lane >> 2);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = joined<T>(sums.rows[h] * worth);
            const u32 tile = Rounds::tile(core.warp) + h;
            if (own && tile < T && (T > 4 || !(core.lane & 1))) rows[tile * TILE_ROWS] = sum;
        }
    }
};

}  // namespace packed
