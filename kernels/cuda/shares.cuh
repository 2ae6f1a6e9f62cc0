// Matrix products of few tokens: as in decode each SM multiplies its own share of rows, from its own tape through the ring,
// by up to CHUNK tokens instead of one. It reads each weight once however few tokens there are; with many, reading the
// tokens anew for every few rows is what it waits for, and tiles.cuh is faster.
//
// Operands lie in memory as the tensor cores take them (mma.cuh): for each 32-column chunk, each 16 tokens and each of two
// products, 16 bytes a lane.
#pragma once
#include "rows.cuh"

namespace shares {

constexpr int TILES = model::PREFILL_TILES;
constexpr int TILE_TOKENS = 16;
constexpr int CHUNK = TILES * TILE_TOKENS;
constexpr int UNIT_HALVES = UNIT_BYTES / 2;
static_assert(PREFILL_TOKENS_A_STEP == TILE_TOKENS, "partial sums of one tile at a time");

// The operands of one product (16 columns) for one tile of tokens, of MOST in the operand.
template <int MOST = TILES>
DEVICE u16* fragment(u16* operand, int chunk, int tile, int step) {
    return operand + ((size_t(chunk) * MOST + tile) * 2 + step) * UNIT_HALVES;
}

// Where two columns from an even `column` of a chunk lie.
template <int MOST = TILES>
DEVICE u32* operand_word(u16* operand, int chunk, int column, int token) {
    const int tile = token / TILE_TOKENS, row = token % TILE_TOKENS;
    u16* at = fragment<MOST>(operand, chunk, tile, column / 4 & 1) + ((row & 7) * 4 + column / 8) * 8;
    return reinterpret_cast<u32*>(at) + (column / 2 & 1) * 2 + (row >> 3);
}

DEVICE void load_operand(const u16* operand, int chunk, u32 lane, Operand (&a)[TILES][2]) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            a[m][step] = __ldcg(reinterpret_cast<const Operand*>(fragment(const_cast<u16*>(operand), chunk, m, step)) + lane);
        }
    }
}

// Of one unit of a slot the weights that a lane has, as operands. Tiles lie side by side, or APART.
template <int STORAGE, int T, bool APART = false, int HALVES = 0>
DEVICE uint4 weights_of(const u8* slot, int chunk, int tile, u32 lane, u32 turn = 0) {
    if constexpr (is_packed(STORAGE)) {
        return packed::rounded<STORAGE, T, APART>(slot, u32(chunk), tile, lane);
    } else {
        constexpr int NEXT_CHUNK = chunk_bytes(HALVES, APART ? 1 : T), NEXT_TILE = (APART ? chunks_a_slot(T) : 1) * UNIT_BYTES;
        const u32 place = piece_place(HALVES && tile == T - 1 ? lane % 16 : lane) * 16 ^ turn;
        return *reinterpret_cast<const uint4*>(slot + chunk * NEXT_CHUNK + place + tile * NEXT_TILE);
    }
}

template <int T, int STORAGE, int HALVES>
DEVICE void multiply(Core& core, const u16* operand, int chunks, float (&sums)[T][TILES][4]) {
    constexpr int CHUNKS_A_SLOT = group_chunks_a_slot(HALVES, STORAGE, T);
    const u32 lane = core.lane, turn = half_turn(HALVES, core.place.sm);
    Operand next[TILES][2];
    load_operand(operand, smaller(int(core.warp), chunks - 1), lane, next);
#pragma unroll 1
    for (int first = 0; first < chunks; first += CHUNKS_A_SLOT) {
        const int last = smaller(first + CHUNKS_A_SLOT, chunks);
        core.wait_full();
        const u8* slot = core.shared.ring[core.cursor.slot];
#pragma unroll 1
        for (int c = SlotPart<T>::mine(core.warp, first); c < last; c += WARPS) {
            Operand a[TILES][2];
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                a[m][0] = next[m][0];
                a[m][1] = next[m][1];
            }
            if (c + WARPS < chunks) load_operand(operand, c + WARPS, lane, next);
#pragma unroll
            for (int t = 0; t < T; ++t) {
                const uint4 b = weights_of<STORAGE, T, false, HALVES>(slot, c - first, t, lane, turn);
#pragma unroll
                for (int m = 0; m < TILES; ++m) mma_weights(sums[t][m], a[m][0], b.x, b.y);
#pragma unroll
                for (int m = 0; m < TILES; ++m) mma_weights(sums[t][m], a[m][1], b.z, b.w);
            }
        }
        u32 products = 0;  // of which each waits for its weights
#pragma unroll
        for (int t = 0; t < T; ++t) products |= __float_as_uint(sums[t][TILES - 1][0]);
        core.free_slot_after(products);
    }
}

// Adds up what the warps have of T tiles of rows, a tile of tokens at a time so that partial sums stay small. The first `rows`
// tiles go to store(pair of rows, token, sum).
template <int T, int MOST, class Store>
DEVICE void add_up(Core& core, const float (&sums)[T][MOST][4], int tokens, int rows, Store store) {
    constexpr int PAIRS_HERE = T * TILE_TOKENS * 4;
    float2* partial = reinterpret_cast<float2*>(core.shared.scratch);
    const int g = int(core.lane >> 2), j = int(core.lane & 3);
#pragma unroll
    for (int m = 0; m < MOST; ++m) {
        if (m * TILE_TOKENS >= tokens) break;
#pragma unroll
        for (int t = 0; t < T; ++t) {
            const float(&c)[4] = sums[t][m];
            float2* to = partial + core.warp * PAIRS_HERE + (t * TILE_TOKENS + g) * 4 + j;
            to[0] = make_float2(c[0], c[1]);
            to[8 * 4] = make_float2(c[2], c[3]);
        }
        consumers_sync();
        for (int e = int(threadIdx.x); e < rows * TILE_TOKENS * 4; e += CONSUMERS) {
            const int token = m * TILE_TOKENS + e / 4 % TILE_TOKENS;
            if (token >= tokens) continue;
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float2 part = partial[w * PAIRS_HERE + e];
                sum.x += part.x;
                sum.y += part.y;
            }
            store(e / (TILE_TOKENS * 4) * 4 + e % 4, token, sum);
        }
        consumers_sync();
    }
}

// One group for all tokens.
template <int PHASE, int T, int STORAGE, class Finish>
DEVICE void group(Core& core, Finish& finish, int tokens, const u16* operand, int chunks, int first_pair) {
    float sums[T][TILES][4];
#pragma unroll
    for (int t = 0; t < T; ++t) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) sums[t][m][0] = sums[t][m][1] = sums[t][m][2] = sums[t][m][3] = 0.0f;
    }
    multiply<T, STORAGE, halves_of(PHASE)>(core, operand, chunks, sums);
    add_up<T>(core, sums, tokens, T, [&](int pair, int token, float2 sum) {
        if (!halves_of(PHASE) || pair < pairs_of_group(PHASE, T)) finish.store(first_pair + pair, token, sum.x, sum.y);
    });
}

template <int PHASE, int STORAGE, int T, class Finish>
DEVICE void group_of(Core& core, Finish& finish, int tokens, const u16* operand, int tiles, int chunks, int first_pair) {
    if constexpr (T >= 1) {
        if constexpr ((group_sizes(PHASE) >> T) & 1) {
            if (tiles == T) {
                group<PHASE, T, STORAGE>(core, finish, tokens, operand, chunks, first_pair);
                return;
            }
        }
        group_of<PHASE, STORAGE, T - 1>(core, finish, tokens, operand, tiles, chunks, first_pair);
    }
}

// Waits for: the barrier before it. `operand` is the whole vector of all lanes; this SM's lane has its own part.
template <int PHASE, class Finish>
DEVICE void matrix(Core& core, int tokens, const u16* operand, Finish finish) {
    constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
    core.place.phase = PHASE;
    core.refresh();
    const TileRange share = core.share(PHASE);
    const Groups groups = core.groups(PHASE);
    const u16* mine = fragment(const_cast<u16*>(operand), core.model_lane * CHUNKS, 0, 0);
    with_storage<PHASE>(core.place.layer, [&](auto stored) {
#pragma unroll 1
        for (int g = 0; g < groups.count; ++g) {
            const int pair = pairs_before(PHASE, share.first + groups.first(g));
            group_of<PHASE, stored.STORAGE, MAX_TILES>(core, finish, tokens, mine, groups.size(g), CHUNKS, pair);
        }
    });
}

}  // namespace shares
