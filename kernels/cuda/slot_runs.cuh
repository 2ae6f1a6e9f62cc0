// Products with weights in FP8 by warpgroups, straight from the slots: wgmma reads both operands from shared memory, and no warp loads
// or unpacks a weight.
//
// The vector comes as digits (digits.cuh) with a size for each run of 128 columns, which is also what a scale of the weights is for. So
// a run is four products, one of each of its chunks, that the tensor cores add up themselves. They cut off what is below 2^-13 of the
// largest summand, in each digit's sum: some 2^-14 of a row's sum, where a vector rounded to FP16 would be off by 2^-12.
//
// A product has 64 rows. In groups of many tiles those are eight tiles in one run, two a warp; in groups of few, eight runs of a
// tile, of which warp w has two, and the columns of all eight. What a group has not is multiplied as well, whatever lies there, and so
// is each row with the columns of others: nobody looks at those sums.
#pragma once
#include "digits.cuh"
#include "quads.cuh"

namespace packed {

// Operand B of each vector: of each run four columns, its digits, beside those of its neighbour. A chunk's are two pieces of sixteen
// numbers.
struct RunColumns {
    enum : u32 {  // constants would be symbols
        PIECE_BYTES = 8 * Digits::COLUMN_BYTES,
        CHUNK_BYTES = 2 * PIECE_BYTES,
        PAIR_BYTES = QUAD_CHUNKS * CHUNK_BYTES,
        VECTOR_BYTES = STORED_CHUNKS * VECTOR_CHUNK_BYTES
    };
    static_assert(PAIR_BYTES == 2 * QUAD_CHUNKS * VECTOR_CHUNK_BYTES, "as much as in sixteen bits");

    // Four numbers of a chunk, from its column 4 `four` on; the chunk is so many runs further than `chunk`, an even number.
    DEVICE static void store(Shared& shared, int chunk, int vector, u32 four, const Digits& digits, int runs = 0) {
        const u32 run = u32(chunk) / QUAD_CHUNKS, of_run = u32(chunk) % QUAD_CHUNKS;
        u8* columns = shared.operand() + u32(vector) * VECTOR_BYTES + run / 2 * PAIR_BYTES + of_run * CHUNK_BYTES + (four & 1) * PIECE_BYTES;
        digits.store(columns + (run & 1) * (PIECE_BYTES / 2) + four / 2 * 4 + runs / 2 * int(PAIR_BYTES), (four & 1) | (of_run & 2));
        if (of_run == 0 && four == 0) sizes(shared, vector)[int(run) + runs] = digits.size;
    }
    // A vector's sizes, run by run.
    DEVICE static float* sizes(Shared& shared, int vector) { return shared.sizes() + vector * (STORED_CHUNKS / QUAD_CHUNKS); }
    // The lower word of a descriptor, of the first vector's first pair of runs.
    DEVICE static u32 first(Shared& shared) { return descriptor_word(shared_address(shared.operand()), PIECE_BYTES); }
};

// As the format's products want them: four numbers of a chunk that is so many quads further, an even number, than `chunk`.
template <int STORAGE, int VECTORS>
DEVICE void store_columns(Shared& shared, int chunk, int vector, u32 four, const Digits& digits, int quads = 0) {
    if constexpr (from_slots(STORAGE)) RunColumns::store(shared, chunk, vector, four, digits, quads);
    else DigitColumns<VECTORS>::store(shared, chunk, vector, four, digits, quads);
}

// How the rows of a group of T tiles become those of products. BY_RUNS: several runs'.
template <int STORAGE, int T, bool APART>
struct SlotCut {
    using Map = SlotMap<STORAGE, T, APART>;
    static constexpr bool BY_RUNS = T <= HALF_TILES;
    static constexpr int ROW_BLOCKS = 8;  // of a product: of eight rows each
    static constexpr int RUNS = Map::CHUNKS / QUAD_CHUNKS, PRODUCTS = ceil_div(RUNS, ROW_BLOCKS);
    static constexpr u32 NEXT_CHUNK = Map::unit(1) - Map::unit(0);
    static constexpr u32 NEXT_BLOCK = BY_RUNS ? Map::RUN_BYTES : Map::NEXT_UNIT;
    static_assert(Map::FORM.run == QUAD_CHUNKS && Map::CHUNKS % QUAD_CHUNKS == 0, "a scale for each run, and whole ones in a slot");
    static_assert(!BY_RUNS || RUNS % 2 == 0, "of pairs of runs, whose columns lie side by side, a slot has both");

    // How far behind a slot's begin products reach, for what nobody looks at.
    static constexpr u32 REACH = BY_RUNS ? (T - 1) * Map::NEXT_UNIT + PRODUCTS * ROW_BLOCKS * Map::RUN_BYTES
                                         : (ROW_BLOCKS - 1) * Map::NEXT_UNIT + RUNS * Map::RUN_BYTES;
    static_assert((SLOTS - 1) * SLOT_BYTES + REACH <= sizeof(Shared), "nor do they reach out of shared memory");
    static_assert(3 * RunColumns::PAIR_BYTES <= PARTIAL_BYTES, "nor do columns of eight runs that begin with a vector's last pair");
};

// A run's four products with BLOCKS blocks of eight columns each.
template <int STORAGE, int T, bool APART, int BLOCKS>
struct RunSums {
    using Cut = SlotCut<STORAGE, T, APART>;
    float sums[4 * BLOCKS];

    // `rows`, `columns`: lower words of descriptors; blocks of columns lie NEXT_COLUMNS apart.
    template <u32 NEXT_COLUMNS>
    DEVICE void begin(u32 rows, u32 columns) {
        hold();
        product<0, NEXT_COLUMNS>(rows, columns);
#pragma unroll
        for (u32 chunk = 1; chunk < QUAD_CHUNKS; ++chunk) {
            product<1, NEXT_COLUMNS>(rows + chunk * (Cut::NEXT_CHUNK >> 4), columns + chunk * (RunColumns::CHUNK_BYTES >> 4));
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
    template <int ADDS, u32 NEXT_COLUMNS>
    DEVICE void product(u32 rows, u32 columns) {
        static_assert(NEXT_COLUMNS >> 4 < 1 << 14 && Cut::NEXT_BLOCK >> 4 < 1 << 14, "a descriptor has no more");
        multiply_e4m3<ADDS>(sums, u64(Cut::NEXT_BLOCK >> 4) << 32 | rows, u64(NEXT_COLUMNS >> 4) << 32 | columns);
    }
};

// A thread's sums, of each vector: of many tiles of its row of its warp's two tiles, of few of its row of each.
template <int T, int VECTORS>
struct RunRows {
    static constexpr int ROWS = T > HALF_TILES ? 2 : T;
    float rows[VECTORS][ROWS] = {};

    // Leaves the warp's sums in shared memory: [part][row]. `pairs(vector, part)` is where.
    template <class Pairs>
    DEVICE void leave(const Core& core, const Pairs& pairs) const {
        const u32 group = core.warp / QUAD_CHUNKS, row = core.lane >> 2, column = core.lane & 3;
        const float worth = worth_of_digits(core.lane);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            const auto part = [&](u32 which) { return reinterpret_cast<float*>(pairs(u32(v), which)) + row; };
            if constexpr (T > HALF_TILES) {
                const bool own = column / 2 == group;  // others have the columns of the other warpgroup's runs
#pragma unroll
                for (int h = 0; h < ROWS; ++h) {
                    const int tile = int(core.warp % QUAD_CHUNKS) * 2 + h;
                    if (tile < T) part(group * QUAD_CHUNKS + column)[tile * TILE_ROWS] = own ? rows[v][h] * worth : 0.0f;
                }
            } else {
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    float sum = rows[v][t] * worth;
                    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                    if (column == 0) part(core.warp)[t * TILE_ROWS] = sum;
                }
            }
        }
    }
};

// The runs of a slot that is there, times those of the vectors, of which shared memory has those from run `window` on: runs `begin`
// .. `end` - 1 of the slot, whose first one is the vectors' run `first`.
template <int STORAGE, int T, bool APART, int VECTORS>
struct SlotTurns {
    using Cut = SlotCut<STORAGE, T, APART>;
    using Map = typename Cut::Map;

    const Core& core;
    int first, begin, end, window;
    u32 loaded = 0;  // depends on all loads that may hang

    DEVICE void run(RunRows<T, VECTORS>& sums) {
        const u32 group = __shfl_sync(ALL_LANES, core.warp / QUAD_CHUNKS, 0) & 1;  // of the two: what the compiler cannot know
        if constexpr (Cut::BY_RUNS) by_runs(group, sums);
        else by_tiles(group, sums);
    }

private:
    DEVICE const u8* slot() const { return core.shared.ring[core.cursor.slot]; }
    DEVICE u32 rows() const { return descriptor_word(shared_address(slot()), 128); }  // a unit's pieces lie side by side
    // Of the pair of runs of which `even` is the first.
    DEVICE u32 columns(int even) const {
        return RunColumns::first(core.shared) + u32(first + even - window) * (RunColumns::PAIR_BYTES >> 5);
    }
    DEVICE bool has(int run) const { return run >= begin && run < end; }
    // Of the thread's row of a tile in a run, by rows that are even and odd.
    DEVICE float scale(u32 tile, int run) {
        const u32 at = Map::run_scales(0) + tile * Map::NEXT_RUN_SCALES + (core.lane >> 2 & 1) * 4;
        const float of_run = *reinterpret_cast<const float*>(slot() + at + u32(run) * Map::RUN_BYTES);
        loaded |= __float_as_uint(of_run);
        return of_run;
    }
    DEVICE float size(int vector, int run) const { return RunColumns::sizes(core.shared, vector)[first + run - window]; }

    // The warpgroups take runs in turn, one the vectors' even ones and the other the odd ones, whose columns are other lanes'. Two at a time.
    DEVICE void by_tiles(u32 group, RunRows<T, VECTORS>& sums) {
        const int own = Cut::RUNS % 2 ? int(group ^ (u32(first) & 1u)) : int(group);
        const u32 tile = core.warp % QUAD_CHUNKS * 2;
#pragma unroll
        for (int k = 0; k < Cut::RUNS; k += 4) {
            const bool there[2] = {has(own + k), k + 2 < Cut::RUNS && has(own + k + 2)};
            if (!there[0] && !there[1]) continue;
            const int run[2] = {there[0] ? own + k : own + k + 2, there[1] ? own + k + 2 : own + k};
            RunSums<STORAGE, T, APART, VECTORS> turn[2];
            products_begin();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].template begin<RunColumns::VECTOR_BYTES>(rows() + u32(run[i]) * (Map::RUN_BYTES >> 4), columns(run[i] - int(group)));
            }
            products_commit();
            float scales[2][2], sizes[2][VECTORS];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int h = 0; h < 2; ++h) scales[i][h] = scale(tile + u32(h), run[i]);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) sizes[i][v] = there[i] ? size(v, run[i]) : 0.0f;
            }
            products_wait<0>();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].hold();
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) sums.rows[v][h] = fmaf(scales[i][h] * sizes[i][v], turn[i].digits(v, h), sums.rows[v][h]);
                }
            }
        }
    }

    // The warpgroups take a tile's products of eight runs in turn, or else the tiles: it is in the order of sums which of them has a product,
    // and where a tile stands in its group may differ from launch to launch (distinct_experts.cuh). Of each all vectors. Two at a time.
    DEVICE void by_runs(u32 group, RunRows<T, VECTORS>& sums) {
        constexpr bool TILES_IN_TURN = Cut::PRODUCTS == 1;
        constexpr int EACH = ceil_div(Cut::PRODUCTS, 2);  // products of a tile that are a warpgroup's, at most
        constexpr int ALL = (TILES_IN_TURN ? ceil_div(T, 2) : T * EACH) * VECTORS;
        const int own = int(core.warp % QUAD_CHUNKS * 2 + (core.lane >> 1 & 1));  // the lane's run of eight
        const auto tile = [&](int n) { return TILES_IN_TURN ? n / VECTORS * 2 + int(group) : n / VECTORS / EACH; };
        const auto at = [&](int n) { return TILES_IN_TURN ? 0 : (n / VECTORS % EACH * 2 + int(group)) * Cut::ROW_BLOCKS; };
        const auto any = [&](int n) { return n < ALL && tile(n) < T && at(n) < end && at(n) + Cut::ROW_BLOCKS > begin; };
#pragma unroll
        for (int n = 0; n < ALL; n += 2) {
            const bool there[2] = {any(n), any(n + 1)};
            if (!there[0] && !there[1]) continue;
            const int which[2] = {there[0] ? n : n + 1, there[1] ? n + 1 : n};
            RunSums<STORAGE, T, APART, Cut::ROW_BLOCKS / 2> turn[2];
            products_begin();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 tiles_at = u32(tile(which[i])) * Map::NEXT_UNIT + u32(at(which[i])) * Map::RUN_BYTES;
                const u32 vectors_at = u32(which[i] % VECTORS) * RunColumns::VECTOR_BYTES;
                turn[i].template begin<RunColumns::PAIR_BYTES>(rows() + (tiles_at >> 4), columns(at(which[i])) + (vectors_at >> 4));
            }
            products_commit();
            float factors[2];
            u32 counts[2];  // all bits or none, of what counts
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool counted = there[i] && has(at(which[i]) + own);
                const int run = counted ? at(which[i]) + own : begin;
                factors[i] = scale(u32(tile(which[i])), run) * size(which[i] % VECTORS, run);
                counts[i] = counted ? ~0u : 0u;
            }
            products_wait<0>();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                turn[i].hold();
                const float product = __uint_as_float(__float_as_uint(factors[i] * own_digits(turn[i])) & counts[i]);
#pragma unroll
                for (int t = 0; t < T; ++t) {
                    if (t == tile(n + i)) sums.rows[(n + i) % VECTORS][t] += product;  // registers have no addresses
                }
            }
        }
    }

    // Of eight runs' rows and columns those that meet: warp w's are in block w, of its upper rows in the first lanes of four.
    DEVICE float own_digits(const RunSums<STORAGE, T, APART, Cut::ROW_BLOCKS / 2>& turn) const {
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
    using Sums = RunRows<T, 1>;

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
            SlotTurns<STORAGE, T, APART, 1> turns{core, first, 0, runs % Cut::RUNS ? smaller(Cut::RUNS, runs - first) : Cut::RUNS, 0};
            turns.run(sums);
            core.free_slot_after(turns.loaded);
        }
    }

    // Leaves the warp's sums of each row in shared memory: [part][row].
    template <int T>
    DEVICE void leave(Core& core, const Sums<T>& sums) const {
        sums.leave(core, [&](u32, u32 part) { return core.shared.partial(core.group & 1) + part * PAIRS; });
    }
};

}  // namespace packed
