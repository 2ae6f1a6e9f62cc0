// Products of several requests with weights in MXFP4 by warpgroups, with the requests' digits. A product has as columns those of all
// requests, of one chunk, or of few tiles those of two or four chunks. Each sum is made of the same products in the same order as alone
// (digit_quads.cuh), and what other lanes or warps add up there is kept apart: it has the same bits.
#pragma once
#include "digit_quads.cuh"
#include "requests.cuh"

namespace several {

// How a warpgroup takes a quad of a group of T tiles: in rounds of so many chunks, of which each warp has two tiles.
template <int T>
struct DigitRounds {
    static constexpr int CHUNKS = T > 4 ? 1 : T > 2 || REQUESTS > 4 ? 2 : 4, COUNT = QUAD_CHUNKS / CHUNKS;
    static constexpr u32 WARPS_A_CHUNK = QUAD_CHUNKS / CHUNKS;
    static constexpr int BLOCKS = REQUESTS / 2, ALL_BLOCKS = CHUNKS * BLOCKS;  // of eight columns: of a chunk, of a round
    static constexpr int APART = T > 4 ? 2 : COUNT;                            // sums of a row and request

    // Of a warp: which of a round's chunks it has, and its first tile.
    DEVICE static u32 chunk(u32 warp) { return warp % QUAD_CHUNKS / WARPS_A_CHUNK; }
    DEVICE static u32 tile(u32 warp) { return warp % WARPS_A_CHUNK * 2; }
    // Which of the sums a round adds to.
    DEVICE static constexpr int apart(int round) { return T > 4 ? int(packed::DigitColumns<1>::half(u32(round))) : round; }
};

// A round on its way: weights must stay in registers until their products have ended.
template <int STORAGE, int T, bool APART>
struct DigitRound {
    using Map = packed::SlotMap<STORAGE, T, APART>;
    using Cut = DigitRounds<T>;
    static constexpr int WORDS = packed::words(STORAGE);

    u32 weights[4];
    float sums[4 * Cut::ALL_BLOCKS], scales[2], sizes[Cut::BLOCKS];

    // The warp's tiles of a chunk of a slot, all its vectors, and of those in the lane's columns the sizes. Returns what depends on all
    // loads that may hang.
    DEVICE u32 begin(const Core& core, const u8* unit, const u8* of_unit, const u8* of_run, u64 vectors, const float* of_vectors) {
        u32 word[2][WORDS], loaded = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const u32 t = u32(smaller(int(Cut::tile(core.warp)) + h, T - 1));
            packed::load_words<STORAGE>(word[h], core.lane, unit + t * Map::NEXT_UNIT);
            scales[h] = packed::Scales<STORAGE>::of_row(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES,
                                                        core.lane >> 2, 0);
            loaded |= __float_as_uint(scales[h]);
        }
#pragma unroll
        for (int b = 0; b < Cut::BLOCKS; ++b) sizes[b] = of_vectors[2 * b];
        packed::unpack_rows(weights, word);
        hold();
        products_begin();
        multiply_e5m2(sums, weights, vectors);
        products_commit();
        return loaded;
    }
    // Once the products have ended.
    DEVICE void add_to(float (&rows)[2][Cut::BLOCKS], u32 warp) {
        hold();
        const int chunk = int(Cut::chunk(warp));
#pragma unroll
        for (int c = 0; c < Cut::CHUNKS; ++c) {
            if (c != chunk) continue;  // registers have no addresses
#pragma unroll
            for (int b = 0; b < Cut::BLOCKS; ++b) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* digits = sums + 4 * (c * Cut::BLOCKS + b) + 2 * h;
                    rows[h][b] = fmaf(scales[h] * sizes[b], packed::two_digits(digits), rows[h][b]);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < Cut::BLOCKS; ++b) asm volatile("" : "+f"(rows[0][b]), "+f"(rows[1][b])::"memory");  // not after what begins next
    }

private:
    // The compiler may not move what is done with sums across it: to where products are on their way.
    DEVICE void hold() {
#pragma unroll
        for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
    }
};

// The weights of a group of so many chunks, straight from the slots. Tiles share runs, or have each its own: APART, as experts' do.
template <int STORAGE, int CHUNKS, bool APART>
class DigitWeights : public SlotInPlace<STORAGE, APART> {
    using SlotInPlace<STORAGE, APART>::loaded_;
    // Of rounds on their way. Experts' vectors come in no windows, whose words take registers too.
    static constexpr int REGISTERS = APART ? 104 : 40;
    using Columns = packed::DigitColumns<REQUESTS>;

public:
    // A thread's sums: of its row of two tiles, and a request in each block.
    template <int T>
    struct Sums {
        using Cut = DigitRounds<T>;
        float rows[Cut::APART][2][Cut::BLOCKS] = {};

        // Leaves those of each request's rows in shared memory, where it leaves them alone. `pairs(request, part)` is where.
        template <class Pairs>
        DEVICE void leave(const Core& core, const Pairs& pairs) const {
            const float worth = packed::worth_of_digits(core.lane, packed::reduced(STORAGE));
#pragma unroll
            for (int i = 0; i < Cut::APART; ++i) {
                const u32 chunk = u32(i * Cut::CHUNKS) + Cut::chunk(core.warp);
                const u32 part = core.warp / QUAD_CHUNKS * QUAD_CHUNKS + packed::part_of<T>(chunk, core.lane);
#pragma unroll
                for (int b = 0; b < Cut::BLOCKS; ++b) {
                    const u32 request = Columns::vector_in(chunk, u32(b), core.lane >> 1 & 1);
                    float* mine = reinterpret_cast<float*>(pairs(request, part)) + (core.lane >> 2);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const float sum = packed::joined<T>(rows[i][h][b] * worth);
                        const u32 tile = Cut::tile(core.warp) + h;
                        if (tile < T && (T > 4 || !(core.lane & 1))) mine[tile * TILE_ROWS] = sum;
                    }
                }
            }
        }
    };

    // Chunks from `begin` to `end`, in a slot that begins with `first`, times those of a window that begins with `window`.
    template <int T>
    DEVICE void multiply_in_window(const Core& core, int first, int begin, int end, int window, Sums<T>& sums) {
        using Cut = packed::Turn<STORAGE, T, APART>;
        const int warpgroup = __shfl_sync(ALL_LANES, int(core.warp / QUAD_CHUNKS), 0);  // the same for all
        int turn = begin / Cut::CHUNKS;
        turn += (turn ^ warpgroup) & 1;  // the warpgroups take turns, whatever slot these are in
#pragma unroll 1
        for (; turn * Cut::CHUNKS < end; turn += 2) {
            const int chunk = turn * Cut::CHUNKS;
            const u8* from = core.shared.ring[core.cursor.slot] + u32(chunk - first) / QUAD_CHUNKS * Cut::QUAD_BYTES;
            TurnOfAll<T> all{core, from, chunk, window};
            all.run(sums);
            loaded_ |= all.loaded;
        }
    }

private:
    template <int T>
    DEVICE static constexpr int on_their_way(int rounds) {
        return smaller(rounds, larger(1, REGISTERS / int(sizeof(DigitRound<STORAGE, T, APART>) / sizeof(u32))));
    }

    // A turn from `from` on in its slot, and from `chunk` on in vectors of which the window begins with chunk `window`.
    template <int T>
    struct TurnOfAll {
        using Cut = packed::Turn<STORAGE, T, APART>;
        using Map = typename Cut::Map;
        using Rounds = DigitRounds<T>;
        static constexpr int IN_A_QUAD = Rounds::COUNT, ALL = Cut::CHUNKS / QUAD_CHUNKS * IN_A_QUAD, MOST = on_their_way<T>(ALL);

        const Core& core;
        const u8* from;
        int chunk, window;
        u32 loaded = 0;
        DigitRound<STORAGE, T, APART> rounds[MOST];

        // Round I begins, and the one that began so many before it is added up.
        template <int I = 0>
        DEVICE void run(Sums<T>& sums) {
            constexpr int DONE = I + 1 - MOST;
            if constexpr (I < ALL) begin(rounds[I % MOST], u32(I / IN_A_QUAD), u32(I % IN_A_QUAD * Rounds::CHUNKS));
            if constexpr (DONE >= 0) {
                products_wait<smaller(MOST, ALL - DONE) - 1>();
                rounds[DONE % MOST].add_to(sums.rows[Rounds::apart(DONE % IN_A_QUAD)], core.warp);
            }
            if constexpr (DONE < ALL - 1) run<I + 1>(sums);
        }
        DEVICE void begin(DigitRound<STORAGE, T, APART>& round, u32 quad, u32 of_quad) {
            const u32 own = of_quad + Rounds::chunk(core.warp), here = quad * Cut::QUAD_BYTES;
            const u8* unit = from + here + Map::unit(own) + core.lane * lane_bytes(STORAGE);
            // Of a chunk that is not there scales could be anything; the first one's will do, as its part of the vector is zero.
            const bool real = chunk + int(quad * QUAD_CHUNKS + own) < CHUNKS;
            const u8* of_unit = from + (real ? here + Map::unit_scales(own) : Map::unit_scales(0));
            const u8* of_run = from + (real ? here + Map::run_scales(own) : Map::run_scales(0));
            const u32 in_window = u32(chunk - window) / QUAD_CHUNKS + quad;
            const float* sizes = core.shared.sizes() + (in_window * QUAD_CHUNKS + own) * REQUESTS + (core.lane >> 1 & 1);
            const u64 vectors = Columns::descriptor(core.shared, in_window, of_quad * Rounds::BLOCKS);
            loaded |= round.begin(core, unit, of_unit, of_run, vectors, sizes);
        }
    };
};

}  // namespace several
