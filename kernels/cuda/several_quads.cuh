// Products of several requests with packed weights by warpgroups, as quads.cuh has them of one. There a vector fills two of the
// eight columns of operand B and each warp has tiles of a chunk of its own, so that three quarters of all sums are nobody's. Here
// the requests fill the columns, so the warps of a warpgroup have the tiles of one chunk, two each; of few tiles several chunks.
// Each sum is made of the same products in the same order as alone, and each warp keeps apart what other warps add up there: it
// has the same bits.
#pragma once
#include "requests.cuh"
#include "wgmma.h"

namespace several {

using packed::COLUMN_BYTES;
using packed::multiply_rows;
using ::multiply_rows;

enum : u32 { BLOCK_BYTES = 8 * COLUMN_BYTES, PIECE_BYTES = REQUESTS * BLOCK_BYTES, PRODUCT_BYTES = 2 * PIECE_BYTES };
static_assert(2 * PRODUCT_BYTES == QUAD_OPERAND_BYTES, "32 columns of four chunks, both parts of each, of all requests");

// A quad of all vectors: for each product of 16 columns two pieces of eight, in each of them columns of B: chunk after chunk, in
// blocks of eight, which are four requests. Each chunk has them in another order, turned round: else the lanes that store one
// request's chunks would meet in one bank. Of two requests, two chunks share a block.
constexpr int BLOCKS = ceil_div(REQUESTS, 4);  // of a chunk
DEVICE int block_of(int chunk, int request) { return REQUESTS < 4 ? chunk / 2 : chunk * BLOCKS + request / 4; }
DEVICE int pair_of_block(int chunk, int request) { return (REQUESTS < 4 ? 2 * chunk + request : chunk + request) % 4; }
// The request whose sums of the chunk the lanes 4 g + j have in block `block` of the chunk's; REQUESTS or more: nobody's.
DEVICE u32 request_in(int chunk, int block, u32 j) {
    return REQUESTS < 4 ? j - 2 * u32(chunk) & 3 : 4 * u32(block) + (j - u32(chunk) & 3);
}

// Four numbers of a request's chunk, from column 4 `four` on, into the vectors' operand.
DEVICE void store_quarter(u8* operand, int chunk, int request, u32 four, const Split& first, const Split& last) {
    const bool odd = four & 1;  // these store low parts first: other banks than their neighbours'
    const int of_quad = chunk % QUAD_CHUNKS;
    u8* to = operand + chunk / QUAD_CHUNKS * QUAD_OPERAND_BYTES + odd * PRODUCT_BYTES + block_of(of_quad, request) * BLOCK_BYTES +
             pair_of_block(of_quad, request) * 2 * COLUMN_BYTES + four / 2 * 4;
    u8 *now = to + odd * COLUMN_BYTES, *then = to + !odd * COLUMN_BYTES;
    *reinterpret_cast<u32*>(now) = odd ? first.low : first.high;
    *reinterpret_cast<u32*>(then) = odd ? first.high : first.low;
    *reinterpret_cast<u32*>(now + PIECE_BYTES) = odd ? last.low : last.high;
    *reinterpret_cast<u32*>(then + PIECE_BYTES) = odd ? last.high : last.low;
}

// The descriptor of the columns from a block on: pieces lie PIECE_BYTES apart, blocks side by side, nothing is swapped about.
DEVICE u64 columns_descriptor(const u8* operand, int quad, int block) {
    const u32 at = shared_address(operand) + u32(quad) * u32(QUAD_OPERAND_BYTES) + u32(block) * BLOCK_BYTES;
    return u64(BLOCK_BYTES >> 4) << 32 | descriptor_word(at, PIECE_BYTES);
}

// How a warpgroup takes a quad of a group of T tiles: in rounds of so many chunks, of which each warp has two tiles.
template <int T>
struct Rounds {
    static constexpr int CHUNKS = T > 4 ? 1 : T > 2 ? 2 : 4, WARPS_A_CHUNK = QUAD_CHUNKS / CHUNKS, COUNT = QUAD_CHUNKS / CHUNKS;
    static constexpr int COLUMN_BLOCKS = ceil_div(CHUNKS * REQUESTS, 4);

    // Of a warp: which of a round's chunks it has, and its first tile.
    DEVICE static int chunk(u32 warp) { return int(warp % QUAD_CHUNKS) / WARPS_A_CHUNK; }
    DEVICE static int tile(u32 warp) { return int(warp % WARPS_A_CHUNK) * 2; }
};

// A round on its way: weights must stay in registers until their products have ended.
template <int STORAGE, int T, bool APART>
struct Round {
    using Map = packed::SlotMap<STORAGE, T, APART>;
    using Cut = Rounds<T>;
    static constexpr int WORDS = packed::words(STORAGE);

    u32 weights[8];
    float sums[4 * Cut::COLUMN_BLOCKS], scales[2];

    // The warp's tiles of a chunk of a slot, and all its vectors. Returns what depends on all loads.
    DEVICE u32 begin(const Core& core, const u8* unit, const u8* of_unit, const u8* of_run, u64 vectors) {
        const int tile = Cut::tile(core.warp);
        u32 word[2][WORDS] = {}, loaded = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            scales[h] = 0.0f;
            if (tile + h >= T) continue;
            const u32 t = u32(tile + h);
            packed::load_words<STORAGE>(word[h], core.lane, unit + t * Map::NEXT_UNIT);
            scales[h] = packed::Scales<STORAGE>::of_row(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES,
                                                        core.lane >> 2, 0);
            loaded |= __float_as_uint(scales[h]) | word[h][0] | word[h][WORDS - 1];
        }
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint2 w = packed::operands<STORAGE>(word[h], step);
                weights[4 * step + h] = w.x;
                weights[4 * step + 2 + h] = w.y;
            }
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) asm volatile("" : "+r"(weights[k])::"memory");  // before the products begin
        hold();
        products_begin();
        multiply_rows(sums, weights, vectors, 0);
        multiply_rows(sums, weights + 4, vectors + (PRODUCT_BYTES >> 4), 1);
        products_commit();
        return loaded;
    }
    // Once the products have ended.
    DEVICE void add_to(float (&rows)[2][BLOCKS], u32 warp) {
        hold();
        const int chunk = Cut::chunk(warp);
#pragma unroll
        for (int c = 0; c < Cut::CHUNKS; ++c) {
            if (c != chunk) continue;  // registers have no addresses
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* sum = sums + 4 * (block_of(c, 0) + b) + 2 * h;
                    rows[h][b] = fmaf(scales[h], sum[0] + sum[1], rows[h][b]);
                }
            }
        }
    }

private:
    // The compiler may not move what is done with sums across it: to where products are on their way.
    DEVICE void hold() {
#pragma unroll
        for (int k = 0; k < 4 * Cut::COLUMN_BLOCKS; ++k) asm volatile("" : "+f"(sums[k])::"memory");
    }
};

// The weights of a group of so many chunks, straight from the slots. Tiles share runs, or have each its own: APART, as experts' do.
template <int STORAGE, int CHUNKS, bool APART>
class QuadWeights : public SlotInPlace<STORAGE, APART> {
    using SlotInPlace<STORAGE, APART>::loaded_;
    // Of rounds on their way. Experts' vectors come in no windows, whose words take registers too.
    static constexpr int REGISTERS = APART ? 104 : 48;

public:
    // A thread's sums: of its row of two tiles, of each round of a quad and as many requests as blocks.
    template <int T>
    struct Sums {
        float rows[Rounds<T>::COUNT][2][BLOCKS] = {};

        // Leaves those of each request's rows in shared memory, where those warps leave them that have them alone: one a chunk of
        // a quad. `pairs(request, warp)` is where.
        template <class Pairs>
        DEVICE void leave(const Core& core, const Pairs& pairs) const {
            constexpr float BACK = packed::reduced(STORAGE) * packed::lowered();
            const int tile = Rounds<T>::tile(core.warp);
#pragma unroll
            for (int i = 0; i < Rounds<T>::COUNT; ++i) {
                const int chunk = i * Rounds<T>::CHUNKS + Rounds<T>::chunk(core.warp);
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
                    const u32 request = request_in(chunk, b, core.lane & 3);
                    if (request >= REQUESTS) continue;
                    float* of_warp = reinterpret_cast<float*>(pairs(request, core.warp / QUAD_CHUNKS * QUAD_CHUNKS + u32(chunk)));
                    float* mine = of_warp + tile * TILE_ROWS + (core.lane >> 2);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (tile + h < T) mine[h * TILE_ROWS] = rows[i][h][b] * BACK;
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
        return smaller(rounds, larger(1, REGISTERS / int(sizeof(Round<STORAGE, T, APART>) / sizeof(u32))));
    }

    // A turn from `from` on in its slot, and from `chunk` on in vectors of which the window begins with chunk `window`.
    template <int T>
    struct TurnOfAll {
        using Cut = packed::Turn<STORAGE, T, APART>;
        using Map = typename Cut::Map;
        static constexpr int IN_A_QUAD = Rounds<T>::COUNT, ALL = Cut::CHUNKS / QUAD_CHUNKS * IN_A_QUAD, MOST = on_their_way<T>(ALL);

        const Core& core;
        const u8* from;
        int chunk, window;
        u32 loaded = 0;
        Round<STORAGE, T, APART> rounds[MOST];

        // Round I begins, and the one that began so many before it is added up.
        template <int I = 0>
        DEVICE void run(Sums<T>& sums) {
            constexpr int DONE = I + 1 - MOST;
            if constexpr (I < ALL) begin(rounds[I % MOST], I / IN_A_QUAD, I % IN_A_QUAD * Rounds<T>::CHUNKS);
            if constexpr (DONE >= 0) {
                products_wait<smaller(MOST, ALL - DONE) - 1>();
                rounds[DONE % MOST].add_to(sums.rows[DONE % IN_A_QUAD], core.warp);
            }
            if constexpr (DONE < ALL - 1) run<I + 1>(sums);
        }
        DEVICE void begin(Round<STORAGE, T, APART>& round, int quad, int of_quad) {
            const u32 own = u32(of_quad + Rounds<T>::chunk(core.warp)), here = u32(quad) * Cut::QUAD_BYTES;
            const u8* unit = from + here + Map::unit(own) + core.lane * lane_bytes(STORAGE);
            // Of a chunk that is not there scales could be anything; the first one's will do, as its part of the vector is zero.
            const bool real = chunk + quad * QUAD_CHUNKS + int(own) < CHUNKS;
            const u8* of_unit = from + (real ? here + Map::unit_scales(own) : Map::unit_scales(0));
            const u8* of_run = from + (real ? here + Map::run_scales(own) : Map::run_scales(0));
            const u64 vectors = columns_descriptor(core.shared.operand(), (chunk - window) / QUAD_CHUNKS + quad, block_of(of_quad, 0));
            loaded |= round.begin(core, unit, of_unit, of_run, vectors);
        }
    };
};

}  // namespace several
