// Products of several requests with weights in FP8 by warpgroups, straight from the slots, with the requests' digits. As slot_runs.cuh has
// them of one, but the columns of all requests are those of a product, and its rows the tiles of one run, also of few. So a run is
// multiplied once for all, where with a request's columns of eight runs seven eighths would be nobody's.
//
// Each sum is made of the same products in the same order as alone. Of few tiles lanes have there one of a slot's runs each; so what
// they add up is kept apart here.
#pragma once
#include "requests.cuh"
#include "slot_runs.cuh"

namespace several {

// How a warpgroup takes a slot of a group of T tiles: in turns of two runs. Of many tiles the warpgroups have even and odd runs of the
// vectors, as alone; of few they have pairs of the slot's runs in turn.
template <int STORAGE, int T, bool APART>
struct RunTurns {
    using Alone = packed::SlotCut<STORAGE, T, APART>;
    using Map = typename Alone::Map;
    static constexpr bool BY_RUNS = Alone::BY_RUNS;
    static constexpr int RUNS_A_TURN = 4;                                          // of both warpgroups
    static constexpr int TURNS_APART = 4;                                          // alone pair p of a slot's runs is warp p % 8's
    static constexpr int COUNT = ceil_div(Alone::RUNS, RUNS_A_TURN);
    static constexpr int BLOCKS = REQUESTS / 2;                                    // of eight columns
    static constexpr int PARTS = BY_RUNS ? 2 * smaller(COUNT, TURNS_APART) : 1;  // sums of a row and request that are kept apart
    // Few tiles APART lie so far from each other that a product of eight of them would reach out of shared memory for those that are not there.
    // Then each tile has products of its own: the first block of rows is the tile's, and the first warps have its sums.
    static constexpr bool EACH = BY_RUNS && !Alone::stays_in_shared(Alone::REACH_OF_TILES);
    static constexpr int TILES = EACH ? T : smaller(T, 2);  // that a warp has
    static constexpr int ROUNDS = EACH ? T : 1;
    static constexpr u32 NEXT_ROWS = EACH ? Map::unit(1) - Map::unit(0) : Map::NEXT_UNIT;
    static_assert(!EACH || Alone::stays_in_shared(SLOT_BYTES + Alone::ROW_BLOCKS * NEXT_ROWS), "nor do those reach further");

    DEVICE static u32 first_tile(u32 warp) { return warp % QUAD_CHUNKS * (EACH ? T : 2); }

    // Of a warpgroup's turn `turn`: how far its run `i` lies behind its first run of the slot, and with which of the sums it goes.
    DEVICE static constexpr int run(int turn, int i) { return RUNS_A_TURN * turn + (BY_RUNS ? i : 2 * i); }
    DEVICE static constexpr int part(int turn, int i) { return BY_RUNS ? 2 * (turn % TURNS_APART) + i : 0; }
    // Its first run, in a slot that begins with the vectors' run `first`.
    DEVICE static int begin(u32 group, int first) {
        return BY_RUNS ? 2 * int(group) : Alone::own_run(group, first);
    }
};

// A thread's sums: of its row of its warp's tiles, and a request in each block.
template <int STORAGE, int T, bool APART>
struct RunRows {
    using Turns = RunTurns<STORAGE, T, APART>;
    float rows[Turns::PARTS][Turns::TILES][Turns::BLOCKS] = {};

    // Leaves those of each request's rows in shared memory, where it leaves them alone. `pairs(request, part)` is where.
    template <class Pairs>
    DEVICE void leave(const Core& core, const Pairs& pairs) const {
        const u32 group = core.warp / QUAD_CHUNKS, first = Turns::first_tile(core.warp);
        const float worth = packed::worth_of_digits(core.lane);
#pragma unroll
        for (int b = 0; b < Turns::BLOCKS; ++b) {
            const u32 request = 2 * u32(b) + (core.lane >> 1 & 1);
#pragma unroll
            for (int h = 0; h < Turns::TILES; ++h) {
                const u32 tile = first + u32(h);
                if (tile >= T) continue;
                const auto row = [&](u32 part) -> float& {
                    return reinterpret_cast<float*>(pairs(request, part))[tile * TILE_ROWS + (core.lane >> 2)];
                };
                const auto sum_of = [&](int part) { return packed::worth_as_left(rows[part][h][b], worth); };
                if constexpr (Turns::BY_RUNS) leave_pairs(group, tile, core.lane, sum_of, row);
                else leave_digits(group, core.lane & 1, sum_of(0), row);
            }
        }
    }

private:
    // Alone a warpgroup's lanes have its runs' columns, or those of the other one's runs, which count nothing.
    template <class Row>
    DEVICE static void leave_digits(u32 group, u32 digits, float sum, const Row& row) {
        row(group * QUAD_CHUNKS + group * 2 + digits) = sum;
        row(group * QUAD_CHUNKS + (group ^ 1) * 2 + digits) = 0.0f;
    }
    // Alone warp w of a warpgroup has pair w of eight runs; the warpgroups have the tiles in turn, or eight runs each.
    template <class Sum, class Row>
    DEVICE static void leave_pairs(u32 group, u32 tile, u32 lane, const Sum& sum_of, const Row& row) {
        constexpr bool TILES_IN_TURN = Turns::Alone::TILES_IN_TURN;
#pragma unroll
        for (int i = 0; i < (TILES_IN_TURN ? 2 : Turns::TURNS_APART); ++i) {
            float sum = 0.0f;
            if (2 * i < Turns::PARTS) {
                float of[2];
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    of[k] = sum_of(2 * i + k);
                    of[k] += __shfl_xor_sync(ALL_LANES, of[k], 1);
                }
                sum = of[0] + of[1];
            }
            if (lane & 1) continue;
            const u32 pair = 2 * u32(i) + group, other = TILES_IN_TURN ? QUAD_CHUNKS : 0;
            row(pair + (tile & 1) * other) = sum;
            if (TILES_IN_TURN) row(pair + (tile & 1 ^ 1) * other) = 0.0f;
        }
    }
};

// The weights of a group, straight from the slots. Tiles share runs, or have each its own: APART, as experts' do.
template <int STORAGE, bool APART>
class SlotWeightsOfAll : public SlotInPlace<STORAGE, APART> {
    using SlotInPlace<STORAGE, APART>::loaded_;
    using Columns = packed::RunColumns<REQUESTS>;

public:
    template <int T>
    using Sums = RunRows<STORAGE, T, APART>;

    // Chunks from `begin` to `end`, in a slot that begins with `first`, times those of a window that begins with `window`.
    template <int T>
    DEVICE void multiply_in_window(const Core& core, int first, int begin, int end, int window, Sums<T>& sums) {
        Slot<T> slot{{core}, (begin - first) / QUAD_CHUNKS, ceil_div(end - first, QUAD_CHUNKS), (first - window) / QUAD_CHUNKS};
        slot.multiply(first / QUAD_CHUNKS, sums);
        loaded_ |= slot.loaded;
    }

private:
    // Runs `begin` to `end` of a slot, which begins with the window's run `window`: less than 0 if it began in the window before.
    template <int T>
    struct Slot : packed::SlotRuns<STORAGE, T, APART> {
        using Turns = RunTurns<STORAGE, T, APART>;
        using Alone = typename Turns::Alone;
        using Map = typename Turns::Map;
        using Products = packed::RunSums<Map, REQUESTS, Turns::BLOCKS>;
        static constexpr int TILES = Turns::TILES / Turns::ROUNDS;  // of a warp in a product

        int begin, end, window;
        u32 loaded = 0;  // depends on all loads that may hang

        DEVICE void multiply(int first, Sums<T>& sums) {
            const int own = Turns::begin(this->warpgroup(), first);
#pragma unroll
            for (int turn = 0; turn < Turns::COUNT; ++turn) take(own, turn, sums);
        }

    private:
        DEVICE bool has(int run) const { return run >= begin && run < end; }
        DEVICE u32 columns(int run) const { return Columns::first(this->core.shared) + u32(window + run) * (Columns::NEXT_BYTES >> 4); }
        DEVICE void take(int own, int turn, Sums<T>& sums) {
            const int at[2] = {own + Turns::run(turn, 0), own + Turns::run(turn, 1)};
            const bool there[2] = {has(at[0]), Turns::run(turn, 1) < Alone::RUNS && has(at[1])};
            if (!there[0] && !there[1]) return;
            const int run[2] = {there[0] ? at[0] : at[1], there[1] ? at[1] : at[0]};
#pragma unroll
            for (int round = 0; round < Turns::ROUNDS; ++round) multiply_runs(run, there, turn, round, sums);
        }
        DEVICE void multiply_runs(const int (&run)[2], const bool (&there)[2], int turn, int round, Sums<T>& sums) {
            Products products[2];
            products_begin();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 at = u32(run[i]) * Map::RUN_BYTES + u32(round) * Map::NEXT_UNIT;
                products[i].template begin<Turns::NEXT_ROWS, Columns::BLOCK_BYTES>(this->rows() + (at >> 4), columns(run[i]));
            }
            products_commit();
            float scales[2][TILES], sizes[2][Turns::BLOCKS];
#pragma unroll
            for (int i = 0; i < 2; ++i) load(run[i], round, scales[i], sizes[i]);
            products_wait<0>();
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                products[i].hold();
                if (there[i]) add(products[i], scales[i], sizes[i], sums.rows[Turns::part(turn, i)], round);
            }
        }
        DEVICE void load(int run, int round, float (&scales)[TILES], float (&sizes)[Turns::BLOCKS]) {
            const u32 tile = (Turns::EACH ? 0 : Turns::first_tile(this->core.warp)) + u32(round);
#pragma unroll
            for (int h = 0; h < TILES; ++h) {
                scales[h] = this->scale(tile + u32(h), run);
                loaded |= __float_as_uint(scales[h]);
            }
#pragma unroll
            for (int b = 0; b < Turns::BLOCKS; ++b) {
                sizes[b] = Columns::sizes(this->core.shared, 2 * b + int(this->core.lane >> 1 & 1))[window + run];
            }
        }
        DEVICE static void add(const Products& products, const float (&scales)[TILES], const float (&sizes)[Turns::BLOCKS],
                               float (&rows)[Turns::TILES][Turns::BLOCKS], int round) {
#pragma unroll
            for (int b = 0; b < Turns::BLOCKS; ++b) {
#pragma unroll
                for (int h = 0; h < TILES; ++h) {
                    const float factor = scales[h] * sizes[b], digits = products.digits(b, h);
                    // Sizes are powers of two: the same bits as alone, where they are multiplied by first. Of few tiles a mask stands there
                    // between product and sum (by_runs), so they are rounded apart.
                    float& sum = rows[round + h][b];
                    sum = Turns::BY_RUNS ? __fadd_rn(sum, __fmul_rn(factor, digits)) : fmaf(factor, digits, sum);
                }
            }
        }
    };
};

}  // namespace several
