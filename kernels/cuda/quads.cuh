// Products with packed weights by warpgroups: wgmma, with 64 rows of weights as operand A, unpacked in registers, and the vector
// as operand B in shared memory. Those with Q8_0, and with FP8 where there are norms after modules.
//
// A vector fills two of the eight columns of B, the high and the low parts of its numbers; so four chunks of it lie side by side,
// a quad. Eight units are multiplied at a time: two tiles in each of a warpgroup's warps, of which warp e has chunk e. Its sums
// are in columns 2 e and 2 e + 1, which the lanes 4 g + e have. What the other lanes have is a product with another chunk's
// columns: finite, and nobody looks at it. So sums of a chunk meet their own scale, and a group of few tiles fills the rows as
// well as one of eight.
//
// The warpgroups take a group's quads in turn, of few tiles two at a time. While products are on their way, at most four tiles'
// at once for they hold registers, a warp unpacks the next ones.
#pragma once
#include "packed.cuh"
#include "warpgroups.cuh"

namespace packed {

// 64 rows by 16 columns of FP16 times a vector's eight columns, added to `sums` or not.
DEVICE void multiply_rows(float (&sums)[4], const u32* rows, u64 vector, int adds) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %9, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(vector), "r"(adds));
}

// A quad of the vector: for each product of 16 columns two pieces of eight, each of them eight columns of B, 16 bytes each.
enum : u32 { COLUMN_BYTES = 16, PIECE_BYTES = 8 * COLUMN_BYTES, PRODUCT_BYTES = 2 * PIECE_BYTES, VECTOR_QUAD_BYTES = 2 * PRODUCT_BYTES };  // constants would be symbols
static_assert(VECTOR_QUAD_BYTES == QUAD_CHUNKS * VECTOR_CHUNK_BYTES, "32 columns of four chunks, both parts of each");

// Four numbers of a chunk, from column 4 `four` on, into the vector's operand.
DEVICE void store_quarter(u8* operand, int chunk, u32 four, const Split& first, const Split& last) {
    const bool odd = four & 1;  // these store low parts first: other banks than their neighbours'
    const int column = chunk % QUAD_CHUNKS * 2;
    u8* to = operand + chunk / QUAD_CHUNKS * VECTOR_QUAD_BYTES + odd * PRODUCT_BYTES + column * COLUMN_BYTES + four / 2 * 4;
    u8 *now = to + odd * COLUMN_BYTES, *then = to + !odd * COLUMN_BYTES;
    *reinterpret_cast<u32*>(now) = odd ? first.low : first.high;
    *reinterpret_cast<u32*>(then) = odd ? first.high : first.low;
    *reinterpret_cast<u32*>(now + PIECE_BYTES) = odd ? last.low : last.high;
    *reinterpret_cast<u32*>(then + PIECE_BYTES) = odd ? last.high : last.low;
}

// Its descriptor, for one of a quad's products: pieces lie `PIECE_BYTES` apart, nothing is swapped about. Only the lower word depends on
// where that is.
DEVICE u64 vector_descriptor(const u8* operand, u32 quad, u32 product) {
    const u32 first = descriptor_word(shared_address(operand), PIECE_BYTES);
    return u64(PRODUCT_BYTES >> 4) << 32 | first + quad * u32(VECTOR_QUAD_BYTES >> 4) + product * u32(PRODUCT_BYTES >> 4);
}

// How a group of T tiles is cut: a warpgroup takes a turn at a time, in two halves. Of many tiles the halves are tiles of one
// quad, of few they are two quads.
template <int STORAGE, int T, bool APART>
struct Turn {
    using Map = SlotMap<STORAGE, T, APART>;
    static constexpr bool TWO_QUADS = T <= HALF_TILES;
    static constexpr int CHUNKS = TWO_QUADS ? 2 * QUAD_CHUNKS : QUAD_CHUNKS;
    static constexpr u32 QUAD_BYTES = QUAD_CHUNKS / Map::FORM.run * Map::RUN_BYTES, BYTES = CHUNKS / QUAD_CHUNKS * QUAD_BYTES;
    static_assert(Map::CHUNKS % CHUNKS == 0, "a turn must not reach into the next slot");

    static constexpr int first_tile(int half) { return TWO_QUADS ? 0 : half * HALF_TILES; }
    static constexpr int tiles(int half) { return TWO_QUADS ? T : half ? T - HALF_TILES : HALF_TILES; }
    static constexpr int quad(int half) { return TWO_QUADS ? half : 0; }
};

// One half of a turn on its way: weights must stay in registers until their products have ended. A thread has row lane / 4 of its
// warp's chunk in all tiles, two of them in each step.
template <int STORAGE, int T, bool APART, int HALF>
struct HalfTurn {
    using Cut = Turn<STORAGE, T, APART>;
    using Map = typename Cut::Map;
    static constexpr int TILES = Cut::tiles(HALF), FIRST = Cut::first_tile(HALF), STEPS = ceil_div(TILES, 2), WORDS = words(STORAGE);

    u32 weights[STEPS][8];
    float sums[STEPS][4], scales[TILES];

    // `from` is where the turn begins in its slot, `chunk` its first. Returns what depends on all loads.
    DEVICE u32 begin(const Core& core, const u8* from, int chunk, int chunks) {
        constexpr u32 HERE = Cut::quad(HALF) * Cut::QUAD_BYTES;
        const u32 own = core.warp & (QUAD_CHUNKS - 1);
        // Of a chunk that is not there scales could be anything; the first one's will do, as its part of the vector is zero.
        const bool real = chunks % Cut::CHUNKS == 0 || chunk + Cut::quad(HALF) * QUAD_CHUNKS + int(own) < chunks;
        const u8* unit = from + HERE + Map::unit(own) + FIRST * Map::NEXT_UNIT + core.lane * lane_bytes(STORAGE);
        const u8* of_unit = from + (real ? HERE + Map::unit_scales(own) : Map::unit_scales(0)) + FIRST * Map::NEXT_UNIT_SCALES;
        const u8* of_run = from + (real ? HERE + Map::run_scales(own) : Map::run_scales(0)) + FIRST * Map::NEXT_RUN_SCALES;
        u32 word[2 * STEPS][WORDS] = {}, loaded = 0;
#pragma unroll
        for (int t = 0; t < TILES; ++t) load_words<STORAGE>(word[t], core.lane, unit + t * Map::NEXT_UNIT);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            scales[t] = Scales<STORAGE>::of_row(of_unit + t * Map::NEXT_UNIT_SCALES, of_run + t * Map::NEXT_RUN_SCALES, core.lane >> 2, 0);
            loaded |= __float_as_uint(scales[t]) | word[t][0] | word[t][WORDS - 1];
        }
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
#pragma unroll
            for (int step = 0; step < 2; ++step) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const uint2 w = operands<STORAGE>(word[2 * i + h], step);
                    weights[i][4 * step + h] = w.x;
                    weights[i][4 * step + 2 + h] = w.y;
                }
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) asm volatile("" : "+r"(weights[i][k])::"memory");  // before the products begin
        }
        hold();
        const u32 quad = u32(chunk) / QUAD_CHUNKS + Cut::quad(HALF);
        products_begin();
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            multiply_rows(sums[i], weights[i], vector_descriptor(core.shared.operand(), quad, 0), 0);
            multiply_rows(sums[i], weights[i] + 4, vector_descriptor(core.shared.operand(), quad, 1), 1);
        }
        products_commit();
        return loaded;
    }
    // Once the products have ended.
    DEVICE void add_to(float (&rows)[T]) {
        hold();
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const float sum = sums[t / 2][t % 2 * 2] + sums[t / 2][t % 2 * 2 + 1];
            rows[FIRST + t] = fmaf(scales[t], sum, rows[FIRST + t]);
        }
    }

private:
    // The compiler may not move what is done with sums across it: to where products are on their way.
    DEVICE void hold() {
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
#pragma unroll
            for (int k = 0; k < 4; ++k) asm volatile("" : "+f"(sums[i][k])::"memory");
        }
    }
};

// The products of a group, straight from the slots.
template <int STORAGE, bool APART>
struct QuadProducts {
    // A thread's sums: of its warp's chunks, its row of each tile.
    template <int T>
    struct Sums {
        float rows[T] = {};
    };

    template <int T>
    DEVICE void begin(Core&, int, int) {}

    // Adds this warp's part of each row's product to `sums`. All warps have stored their part of the vector.
    template <int T>
    DEVICE void multiply(Core& core, int, int chunks, bool, Sums<T>& sums) {
        using Cut = Turn<STORAGE, T, APART>;
        constexpr int STEP = Cut::Map::CHUNKS;
        HalfTurn<STORAGE, T, APART, 0> one;
        HalfTurn<STORAGE, T, APART, 1> other;
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
                one.begin(core, from, chunk, chunks);
                loaded = other.begin(core, from, chunk, chunks);
                products_wait<1>();
                one.add_to(sums.rows);
                products_wait<0>();
                other.add_to(sums.rows);
            }
            core.free_slot_after(loaded);
            if (STEP / Cut::CHUNKS % 2) mine ^= 1;
        }
    }

    // Leaves the warp's sums of each row in shared memory: [warp][row].
    template <int T>
    DEVICE void leave(Core& core, const Sums<T>& sums) const {
        constexpr float BACK = reduced(STORAGE) * lowered();
        if ((core.lane & 3) != (core.warp & (QUAD_CHUNKS - 1))) return;
        float* mine = reinterpret_cast<float*>(core.shared.partial(core.group & 1) + core.warp * PAIRS) + (core.lane >> 2);
#pragma unroll
        for (int t = 0; t < T; ++t) mine[t * TILE_ROWS] = sums.rows[t] * BACK;
    }
};
static_assert(WARPS == 2 * QUAD_CHUNKS, "a chunk of a quad for each warp of a warpgroup");

}  // namespace packed
