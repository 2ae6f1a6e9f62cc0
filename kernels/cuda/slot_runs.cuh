// Products with weights in FP8 by warpgroups, straight from the slots: wgmma reads both operands from shared memory, and no warp loads
// or unpacks a weight.
//
// The vector comes as digits (digits.cuh) with a size for each run of 128 columns, which is also what a scale of the weights is for. So
// a run is four products, one of each of its chunks, that the tensor cores add up themselves. They cut off what is below 2^-13 of the
// largest summand, in each digit's sum: some 2^-14 of a row's sum, where a vector rounded to FP16 would be off by 2^-12.
//
// A product has 64 rows. In groups of many tiles those are eight tiles in one run, two a warp; in groups of few, eight runs of a
// tile, of which warp w has two, and the columns of all eight. What a group has not is multiplied as well, whatever lies there, and so
// is each row with the columns of others: nobody looks at those sums. Of several requests: several_slots.cuh.
#pragma once
#include "digits.cuh"
#include "quads.cuh"

namespace packed {

// Operand B: four columns of each vector's run, its digits. Eight lie together: of two vectors those of a run, or of one those of a pair
// of runs. A chunk's are two pieces of sixteen numbers each.
template <int VECTORS>
struct RunColumns {
    enum : u32 {  // constants would be symbols
        BLOCK_BYTES = 8 * Digits::COLUMN_BYTES,
        PIECE_BYTES = larger(1, VECTORS / 2) * BLOCK_BYTES,
        CHUNK_BYTES = 2 * PIECE_BYTES,
        TOGETHER = VECTORS == 1 ? 2 : 1,        // runs whose columns lie together
        NEXT_BYTES = QUAD_CHUNKS * CHUNK_BYTES  // from there to the next ones
    };
    static_assert(NEXT_BYTES == TOGETHER * VECTORS * QUAD_CHUNKS * VECTOR_CHUNK_BYTES, "as much as in sixteen bits");

    // Four numbers of a chunk, from its column 4 `four` on; the chunk is so many runs further than `chunk`, an even number.
    DEVICE static void store(Shared& shared, int chunk, int vector, u32 four, const Digits& digits, int runs = 0) {
        const u32 run = u32(chunk) / QUAD_CHUNKS, of_run = u32(chunk) % QUAD_CHUNKS;
        const u32 block = VECTORS == 1 ? 0 : u32(vector) / 2, half = (VECTORS == 1 ? run : u32(vector)) & 1;
        u8* columns = shared.operand() + run / TOGETHER * NEXT_BYTES + of_run * CHUNK_BYTES + (four & 1) * PIECE_BYTES + block * BLOCK_BYTES;
        const int further = runs / int(TOGETHER) * int(NEXT_BYTES);
        digits.store(columns + half * (BLOCK_BYTES / 2) + four / 2 * 4 + further, (four & 1) | turned(of_run, u32(vector)));
        if (of_run == 0 && four == 0) sizes(shared, vector)[int(run) + runs] = digits.size;
    }
    // A vector's sizes, run by run.
    DEVICE static float* sizes(Shared& shared, int vector) { return shared.sizes() + vector * (STORED_CHUNKS / QUAD_CHUNKS); }
    // The lower word of a descriptor, of the first run, or pair of runs.
    DEVICE static u32 first(Shared& shared) { return descriptor_word(shared_address(shared.operand()), PIECE_BYTES); }

private:
    // Else lanes that store a vector's chunks side by side, or several vectors' blocks, would meet in one bank.
    DEVICE static u32 turned(u32 of_run, u32 vector) { return VECTORS == 1 ? of_run & 2 : (of_run & 1) * 2 ^ (vector & 2); }
};

// As the format's products want them: four numbers of a chunk that is so many quads further, an even number, than `chunk`.
template <int STORAGE, int VECTORS>
DEVICE void store_columns(Shared& shared, int chunk, int vector, u32 four, const Digits& digits, int quads = 0) {
    if constexpr (from_slots(STORAGE)) RunColumns<VECTORS>::store(shared, chunk, vector, four, digits, quads);
    else DigitColumns<VECTORS>::store(shared, chunk, vector, four, digits, quads);
}

// How the rows of a group of T tiles become those of products. BY_RUNS: several runs'.
template <int STORAGE, int T, bool APART>
struct SlotCut {
    using Map = SlotMap<STORAGE, T, APART>;
    static constexpr bool BY_RUNS = T <= HALF_TILES;
    static constexpr int ROW_BLOCKS = 8;  // of a product: of eight rows each
    static constexpr int RUNS = Map::CHUNKS / QUAD_CHUNKS, PRODUCTS = ceil_div(RUNS, ROW_BLOCKS);
    static constexpr bool TILES_IN_TURN = PRODUCTS == 1;  // of few: the warpgroups take them in turn, or else a tile's products
    static_assert(Map::FORM.run == QUAD_CHUNKS && Map::CHUNKS % QUAD_CHUNKS == 0, "a scale for each run, and whole ones in a slot");
    static_assert(!BY_RUNS || RUNS % 2 == 0, "of pairs of runs, whose columns lie side by side, a slot has both");

    // How far behind a slot's begin products reach, for what nobody looks at: each of eight tiles, or of eight runs.
    static constexpr u32 REACH_OF_TILES = (ROW_BLOCKS - 1) * Map::NEXT_UNIT + RUNS * Map::RUN_BYTES;
    static constexpr u32 REACH = BY_RUNS ? (T - 1) * Map::NEXT_UNIT + PRODUCTS * ROW_BLOCKS * Map::RUN_BYTES : REACH_OF_TILES;
    DEVICE static constexpr bool stays_in_shared(u32 reach) { return (SLOTS - 1) * SLOT_BYTES + reach <= sizeof(Shared); }
    static_assert(stays_in_shared(REACH), "nor do they reach out of shared memory");
    static_assert(3 * RunColumns<1>::NEXT_BYTES <= PARTIAL_BYTES, "nor do columns of eight runs that begin with a vector's last pair");

    // Of many tiles: a warpgroup's first run of a slot that begins with the vectors' run `first`. One has their even runs, the other the odd ones.
    DEVICE static int own_run(u32 group, int first) { return RUNS % 2 ? int(group ^ (u32(first) & 1u)) : int(group); }
};

// A run's four products with BLOCKS blocks of eight columns each, of so many vectors side by side.
template <class Map, int VECTORS, int BLOCKS>
struct RunSums {
    static constexpr u32 NEXT_CHUNK = Map::unit(1) - Map::unit(0);
    float sums[4 * BLOCKS];

    // `rows`, `columns`: lower words of descriptors; blocks of eight rows or columns lie so far apart.
    template <u32 NEXT_ROWS, u32 NEXT_COLUMNS>
    DEVICE void begin(u32 rows, u32 columns) {
        rows = uniform(rows), columns = uniform(columns);
        hold();
        product<0, NEXT_ROWS, NEXT_COLUMNS>(rows, columns);
#pragma unroll
        for (u32 chunk = 1; chunk < QUAD_CHUNKS; ++chunk) {
            product<1, NEXT_ROWS, NEXT_COLUMNS>(rows + chunk * (NEXT_CHUNK >> 4), columns + chunk * (RunColumns<VECTORS>::CHUNK_BYTES >> 4));
        }
    }
    // The compiler may not move what is done with sums across it: to where products are on their way.
    DEVICE void hold() {
#pragma unroll
        for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
    }
    // Both digits that the lane has of a row, of the warp's upper eight or its lower ones.
    DEVICE float digits(int block, int lower) const { return two_digits(sums + 4 * block + 2 * lower); }

private:
    template <int ADDS, u32 NEXT_ROWS, u32 NEXT_COLUMNS>
    DEVICE void product(u32 rows, u32 columns) {
        static_assert(NEXT_COLUMNS >> 4 < 1 << 14 && NEXT_ROWS >> 4 < 1 << 14, "a descriptor has no more");
        multiply_e4m3<ADDS>(sums, u64(NEXT_ROWS >> 4) << 32 | rows, u64(NEXT_COLUMNS >> 4) << 32 | columns);
    }
};

// A thread's sum of its row, as it is left. The compiler could fuse this product with the sum over lanes that follows, for one request and not for
// several, or the other way round.
DEVICE float worth_as_left(float sum, float worth) { return __fmul_rn(sum, worth); }

// A thread's sums: of many tiles of its row of its warp's two tiles, of few of its row of each.
template <int T>
struct RunRows {
    static constexpr int ROWS = T > HALF_TILES ? 2 : T;
    float rows[ROWS] = {};

    // Depends on all that was added to them, and so on all that was loaded for it.
    DEVICE u32 bits() const {
        u32 bits = 0;
#pragma unroll
        for (const float& row : rows) bits |= __float_as_uint(row);
        return bits;
    }
    // Leaves the warp's sums in shared memory: [part][row]. `pairs(part)` is where.
    template <class Pairs>
    DEVICE void leave(const Core& core, const Pairs& pairs) const {
        const u32 group = core.warp / QUAD_CHUNKS, row = core.lane >> 2, column = core.lane & 3;
        const float worth = worth_of_digits(core.lane);
        const auto part = [&](u32 which) { return reinterpret_cast<float*>(pairs(which)) + row; };
        if constexpr (T > HALF_TILES) {
            const bool own = column / 2 == group;  // others have the columns of the other warpgroup's runs
#pragma unroll
            for (int h = 0; h < ROWS; ++h) {
                const int tile = int(core.warp % QUAD_CHUNKS) * 2 + h;
                if (tile < T) part(group * QUAD_CHUNKS + column)[tile * TILE_ROWS] = own ? worth_as_left(rows[h], worth) : 0.0f;
            }
        } else {
#pragma unroll
            for (int t = 0; t < T; ++t) {
                float sum = worth_as_left(rows[t], worth);
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                if (column == 0) part(core.warp)[t * TILE_ROWS] = sum;
            }
        }
    }
};

// What all who multiply runs of a slot find in it.
template <int STORAGE, int T, bool APART>
struct SlotRuns {
    using Cut = SlotCut<STORAGE, T, APART>;
    using Map = typename Cut::Map;

    const Core& core;

    DEVICE const u8* slot() const { return core.shared.ring[core.cursor.slot]; }
    DEVICE u32 rows() const { return descriptor_word(shared_address(slot()), 128); }  // a unit's pieces lie side by side
    // Of the thread's row of a tile in a run, by rows that are even and odd.
    DEVICE float scale(u32 tile, int run) const {
        const u32 at = Map::run_scales(0) + tile * Map::NEXT_RUN_SCALES + (core.lane >> 2 & 1) * 4;
        return *reinterpret_cast<const float*>(slot() + at + u32(run) * Map::RUN_BYTES);
    }
    // The warp's, of the two: what the compiler cannot know.
    DEVICE u32 warpgroup() const { return __shfl_sync(ALL_LANES, core.warp / QUAD_CHUNKS, 0) & 1; }
};

// The runs of a slot that is there, up to `end`, times those of a vector that shared memory has whole, of which the slot's first one is
// run `first`.
template <int STORAGE, int T, bool APART>
struct SlotTurns : SlotRuns<STORAGE, T, APART> {
    using Base = SlotRuns<STORAGE, T, APART>;
    using typename Base::Cut, typename Base::Map;
    using Base::core, Base::rows, Base::scale;

    int first, end;

    DEVICE void run(RunRows<T>& sums) {
        const u32 group = Base::warpgroup();
        if constexpr (Cut::BY_RUNS) by_runs(group, sums);
        else by_tiles(group, sums);
    }

private:
    // Of the pair of runs of which `even` is the first.
    DEVICE u32 columns(int even) const { return RunColumns<1>::first(core.shared) + u32(first + even) * (RunColumns<1>::NEXT_BYTES >> 5); }
    DEVICE float size(int run) const { return RunColumns<1>::sizes(core.shared, 0)[first + run]; }

    // The warpgroups take runs in turn (own_run), whose columns are other lanes'. Two at a time.
    DEVICE void by_tiles(u32 group, RunRows<T>& sums) {
        const int own = Cut::own_run(group, first);
        const u32 tile = core.warp % QUAD_CHUNKS * 2;
#pragma unroll
        for (int k = 0; k < Cut::RUNS; k += 4) {
            const bool there[2] = {own + k < end, k + 2 < Cut::RUNS && own + k + 2 < end};
            if (!there[0] && !there[1]) continue;
            const int run[2] = {there[0] ? own + k : own + k + 2, there[1] ? own + k + 2 : own + k};
            RunSums<Map, 1, 1> turn[2];
            products_begin();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].template begin<Map::NEXT_UNIT, 0>(rows() + u32(run[i]) * (Map::RUN_BYTES >> 4), columns(run[i] - int(group)));
            }
            products_commit();
            float scales[2][2], sizes[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) scales[i][h] = scale(tile + u32(h), run[i]);
                sizes[i] = there[i] ? size(run[i]) : 0.0f;
            }
            products_wait<0>();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].hold();
                // A size is a power of two, so the first product is exact. Were it size times scale, both would be waited for between products.
#pragma unroll
                for (int h = 0; h < 2; ++h) sums.rows[h] = fmaf(turn[i].digits(0, h) * sizes[i], scales[i][h], sums.rows[h]);
            }
        }
    }

    // The warpgroups take a tile's products of eight runs in turn, or else the tiles: it is in the order of sums which of them has a product,
    // and where a tile stands in its group may differ from launch to launch (distinct_experts.cuh). Two at a time.
    DEVICE void by_runs(u32 group, RunRows<T>& sums) {
        constexpr bool TILES_IN_TURN = Cut::TILES_IN_TURN;
        constexpr int EACH = ceil_div(Cut::PRODUCTS, 2);  // products of a tile that are a warpgroup's, at most
        constexpr int ALL = TILES_IN_TURN ? ceil_div(T, 2) : T * EACH;
        const int own = int(core.warp % QUAD_CHUNKS * 2 + (core.lane >> 1 & 1));  // the lane's run of eight
        const auto tile = [&](int n) { return TILES_IN_TURN ? n * 2 + int(group) : n / EACH; };
        const auto at = [&](int n) { return TILES_IN_TURN ? 0 : (n % EACH * 2 + int(group)) * Cut::ROW_BLOCKS; };
        const auto any = [&](int n) { return n < ALL && tile(n) < T && at(n) < end; };
#pragma unroll
        for (int n = 0; n < ALL; n += 2) {
            const bool there[2] = {any(n), any(n + 1)};
            if (!there[0] && !there[1]) continue;
            const int which[2] = {there[0] ? n : n + 1, there[1] ? n + 1 : n};
            RunSums<Map, 1, Cut::ROW_BLOCKS / 2> turn[2];
            products_begin();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 tiles_at = u32(tile(which[i])) * Map::NEXT_UNIT + u32(at(which[i])) * Map::RUN_BYTES;
                turn[i].template begin<Map::RUN_BYTES, RunColumns<1>::NEXT_BYTES>(rows() + (tiles_at >> 4), columns(at(which[i])));
            }
            products_commit();
            float scales[2], sizes[2];
            u32 counts[2];  // all bits or none, of what counts
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool counted = there[i] && at(which[i]) + own < end;
                const int run = counted ? at(which[i]) + own : 0;
                scales[i] = scale(u32(tile(which[i])), run);
                sizes[i] = size(run);
                counts[i] = counted ? ~0u : 0u;
            }
            products_wait<0>();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].hold();
                const float product = __uint_as_float(__float_as_uint(__fmul_rn(own_digits(turn[i]) * sizes[i], scales[i])) & counts[i]);
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    if (t == tile(n + i)) sums.rows[t] = __fadd_rn(sums.rows[t], product);  // registers have no addresses
                }
            }
        }
    }

    // Of eight runs' rows and columns those that meet: warp w's are in block w, of its upper rows in the first lanes of four.
    DEVICE float own_digits(const RunSums<Map, 1, Cut::ROW_BLOCKS / 2>& turn) const {
        const bool lower = core.lane & 2;
        float of[QUAD_CHUNKS];
#pragma unroll
        for (int w = 0; w < QUAD_CHUNKS; ++w) of[w] = lower ? turn.digits(w, 1) : turn.digits(w, 0);
        const u32 warp = core.warp % QUAD_CHUNKS;
        return warp & 2 ? (warp & 1 ? of[3] : of[2]) : (warp & 1 ? of[1] : of[0]);
    }
};

// The products of a group with one vector, which is in shared memory whole.
template <int STORAGE, bool APART>
struct SlotProducts {
    template <int T>
    using Sums = RunRows<T>;

    template <int T>
    DEVICE void begin(Core&, int, int) {}

    // Adds this warp's part of each row's product to `sums`. All warps have stored their part of the vector.
    template <int T>
    DEVICE void multiply(Core& core, int, int chunks, bool, Sums<T>& sums) {
        using Cut = SlotCut<STORAGE, T, APART>;
        const int runs = ceil_div(chunks, QUAD_CHUNKS);
#pragma unroll 1
        for (int first = 0; first < runs; first += Cut::RUNS) {
            core.wait_full();
            SlotTurns<STORAGE, T, APART> turns{{core}, first, runs % Cut::RUNS ? smaller(Cut::RUNS, runs - first) : Cut::RUNS};
            turns.run(sums);
            core.free_slot_after(sums.bits());
        }
    }

    // Leaves the warp's sums of each row in shared memory: [part][row].
    template <int T>
    DEVICE void leave(Core& core, const Sums<T>& sums) const {
        sums.leave(core, [&](u32 part) { return core.shared.partial(core.group & 1) + part * PAIRS; });
    }
};

}  // namespace packed
