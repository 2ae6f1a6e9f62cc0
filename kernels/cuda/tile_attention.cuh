// Attention of many tokens: online softmax over the cache as it lies, blocks of keys and values through the stages.
// An SM takes one head and 16 or 32 tokens a warp; of a wide head two warps take the same tokens. Queries are operand A, a unit of
// the cache is operand B for two halves of its rows (rows.cuh: the words that decode takes as operand A), and scores leave one
// product as the other one takes them.
#pragma once
#include "attention.cuh"
#include "tiles.cuh"

namespace tile_attention {

constexpr int MOST_M_TILES = model::HEAD_DIM <= 96 ? 2 : 1;  // of 16 tokens, a warp: what the registers hold
// Warps that find the same scores and each add up a part of the head's columns: the registers hold no more than 128 sums a thread.
constexpr int PARTS = model::HEAD_DIM > 128 && model::HEAD_DIM % 32 == 0 ? 2 : 1, PART_UNITS = cache::UNITS / PARTS;
constexpr int TEAMS = WARPS / PARTS;
using cache::BLOCK_BYTES;
constexpr int CACHE_UNIT_BYTES = cache::UNIT_NUMBERS * cache::NUMBER_BYTES;
// As many in FP8: what a step has in registers is FP16.
constexpr int STAGE_BLOCKS = tiles::STAGE_BYTES / (cache::BLOCK_NUMBERS * 2) >= 4 ? 4 : 2;
constexpr int STEP = model::HEAD_DIM <= 64 || model::HEAD_DIM == 128 ? STAGE_BLOCKS : 2;  // blocks at a time, whole steps a stage
static_assert(STAGE_BLOCKS * BLOCK_BYTES <= tiles::STAGE_BYTES, "blocks of a stage");

// One head of some tokens, and the stages of cache blocks that they attend to. Those with the longest past come first, and
// every other round of SMs goes backwards, so that each gets about as many stages as every other.
struct Item {
    int head, token, first_stage, end_stage, end_block;  // `token` counts within the chunk

    DEVICE static int index(int round, int sm) {
        return round * model::SMS + (round & 1 ? model::SMS - 1 - sm : sm);
    }
    DEVICE static Item of(int index, int item_tokens, int first, int tokens, int window) {
        Item item;
        item.head = index % model::HEADS;
        item.token = (ceil_div(tokens, item_tokens) - 1 - index / model::HEADS) * item_tokens;
        const int position = first + item.token, end = first + smaller(tokens, item.token + item_tokens);
        const int seen_from = window && position + 1 > window ? position + 1 - window : 0;
        item.first_stage = seen_from / (cache::BLOCK * STAGE_BLOCKS);
        item.end_block = ceil_div(end, cache::BLOCK);
        item.end_stage = ceil_div(item.end_block, STAGE_BLOCKS);
        return item;
    }
};

// How a chunk is cut into items: warps with sixteen tokens read blocks twice as often as those with 32, which takes about 5/8 as
// long and pays where SMs would have nothing to do otherwise. Pieces that are read between the tokens of others are so short that
// items for few of an SM's warps may fit, each on an SM of its own. All ways leave the same bits.
struct Cut {
    int m_tiles, tokens, items;  // of a warp; of an item; in all

    DEVICE static Cut of(int m_tiles, int tokens, int teams = TEAMS) {
        const int item_tokens = teams * 16 * m_tiles;
        return {m_tiles, item_tokens, ceil_div(tokens, item_tokens) * model::HEADS};
    }
    DEVICE static Cut best(int first, int tokens, int window) {
        if constexpr (REQUESTS > 1) {
#pragma unroll
            for (int teams = 2; teams < TEAMS; teams *= 2) {
                const Cut short_ones = of(1, tokens, teams);
                if (short_ones.items <= model::SMS) return short_ones;
            }
        }
        const Cut most = of(MOST_M_TILES, tokens), few = of(1, tokens);
        return few.cost(first, tokens, window) < most.cost(first, tokens, window) ? few : most;
    }
    // Positions for the SM that has the most of them, about: of the longest item, or of what all have on average.
    DEVICE int cost(int first, int chunk, int window) const {
        const int limit = window ? window + tokens : first + chunk;
        const int longest = smaller(first + chunk, limit), shortest = smaller(first + tokens, limit);
        const int mean = items * ((longest + shortest) / 2) / model::SMS;
        return (m_tiles == 1 && MOST_M_TILES == 2 ? 5 : 8) * larger(longest, mean);
    }
};

// A warp's tokens g and g + 8 of each sixteen: rows 2 m and 2 m + 1.
template <int M_TILES>
struct Rows {
    u32 query[M_TILES][cache::UNITS][4];
    float out[M_TILES][PART_UNITS][2][4];
    float maximum[2 * M_TILES], sum[2 * M_TILES];  // `sum`: of this lane's own positions

    DEVICE static int token(int row, u32 lane) { return row / 2 * 16 + row % 2 * 8 + int(lane >> 2); }

    DEVICE void load(const Params& p, int head, int first, int tokens, u32 lane) {
#pragma unroll
        for (int r = 0; r < 2 * M_TILES; ++r) {
            maximum[r] = NO_SCORE;
            sum[r] = 0.0f;
            const int t = first + token(r, lane);
            const float* from = p.queries + size_t(t) * model::Q_DIM + head * model::HEAD_DIM;
#pragma unroll
            for (int u = 0; u < cache::UNITS; ++u) {
                const int d = 16 * u + 4 * int(lane & 3);
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (t < tokens && d < model::HEAD_DIM) v = __ldcg(reinterpret_cast<const float4*>(from + d));
                query[r / 2][u][r % 2] = pack_f16(clamp_f16(v.x * QUERY_SCALE), clamp_f16(v.y * QUERY_SCALE));
                query[r / 2][u][2 + r % 2] = pack_f16(clamp_f16(v.z * QUERY_SCALE), clamp_f16(v.w * QUERY_SCALE));
            }
        }
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
#pragma unroll
                for (int e = 0; e < 4; ++e) out[m][u][0][e] = out[m][u][1][e] = 0.0f;
            }
        }
    }

    // What a lane has of a unit of the cache, as FP16.
    DEVICE static uint4 unit(const u8* blocks, u32 lane) {
        return cache::Kept::widened(*reinterpret_cast<const cache::Kept::Words*>(blocks + lane * (4 * cache::LANE_WORDS)));
    }

    // Scores against STEP blocks: score[m][h][e] of half h of the blocks' positions, 8 h + 2 j + e % 2, of row 2 m + e / 2.
    DEVICE void score(const u8* blocks, u32 lane, float (&score)[M_TILES][2 * STEP][4]) const {
#pragma unroll
        for (int b = 0; b < STEP; ++b) {
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int e = 0; e < 4; ++e) score[m][2 * b][e] = score[m][2 * b + 1][e] = 0.0f;
            }
#pragma unroll
            for (int u = 0; u < cache::UNITS; ++u) {
                const uint4 k = unit(blocks + b * BLOCK_BYTES + u * CACHE_UNIT_BYTES, lane);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    const u32(&q)[4] = query[m][u];
                    mma_f16(score[m][2 * b], q[0], q[1], q[2], q[3], k.x, k.z);
                    mma_f16(score[m][2 * b + 1], q[0], q[1], q[2], q[3], k.y, k.w);
                }
            }
        }
    }

    DEVICE static void cap(float (&score)[M_TILES][2 * STEP][4]) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int h = 0; h < 2 * STEP; ++h) {
#pragma unroll
                for (int e = 0; e < 4; ++e) score[m][h][e] = capped_score_fast(score[m][h][e]);
            }
        }
    }

    // Scores of positions that a row does not attend to become none. `base` is the first position.
    DEVICE static void hide(int base, int first_position, int window, u32 lane, float (&score)[M_TILES][2 * STEP][4]) {
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int end = first_position + token(2 * m + e / 2, lane) + 1;
                const int first = window && end > window ? end - window : 0;
#pragma unroll
                for (int h = 0; h < 2 * STEP; ++h) {
                    const int p = base + 8 * h + 2 * int(lane & 3) + e % 2;
                    if (p < first || p >= end) score[m][h][e] = NO_SCORE;
                }
            }
        }
    }

    // Turns scores into weights relative to a new maximum, and what was summed up to now with them.
    DEVICE void weigh(float (&score)[M_TILES][2 * STEP][4]) {
        float keep[2 * M_TILES];
        bool raised = false;
#pragma unroll
        for (int r = 0; r < 2 * M_TILES; ++r) {
            float top = maximum[r];
#pragma unroll
            for (int h = 0; h < 2 * STEP; ++h) {
                top = fmaxf(top, fmaxf(score[r / 2][h][r % 2 * 2], score[r / 2][h][r % 2 * 2 + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            keep[r] = exp2_fast(maximum[r] - top);
            raised = raised || top != maximum[r];
            maximum[r] = top;
            sum[r] *= keep[r];
            const float from = top == NO_SCORE ? 0.0f : top;  // a row that has seen nothing weighs nothing
#pragma unroll
            for (int h = 0; h < 2 * STEP; ++h) {
#pragma unroll
                for (int e = r % 2 * 2; e < r % 2 * 2 + 2; ++e) {
                    score[r / 2][h][e] = exp2_fast(score[r / 2][h][e] - from);
                    sum[r] += score[r / 2][h][e];
                }
            }
        }
        if (!__any_sync(ALL_LANES, raised)) return;
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    out[m][u][0][e] *= keep[2 * m + e / 2];
                    out[m][u][1][e] *= keep[2 * m + e / 2];
                }
            }
        }
    }

    // Adds the values of STEP blocks, of this warp's part of the columns. With ENDS positions from `filled` on hold whatever was there
    // before: zero times that must be zero. Else none of them is that far, and no branch stands between the products.
    // For Stages::give_back: what depends on all loads of values; those of keys have ended where the scores are known.
    template <bool ENDS>
    DEVICE u32 add(const u8* blocks, int base, int filled, u32 lane, const float (&weight)[M_TILES][2 * STEP][4]) {
        u32 loaded = 0;
#pragma unroll
        for (int b = 0; b < STEP; ++b) {
            u32 w[M_TILES][4];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    w[m][i] = pack_f16(weight[m][2 * b + i / 2][i % 2 * 2], weight[m][2 * b + i / 2][i % 2 * 2 + 1]);
                }
            }
            const int known = filled - base - b * cache::BLOCK;
            const u32 low = known_mask(known, 2 * int(lane & 3)), high = known_mask(known, 2 * int(lane & 3) + 8);
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
                uint4 v = unit(blocks + b * BLOCK_BYTES + (cache::UNITS + u) * CACHE_UNIT_BYTES, lane);
                loaded |= v.x;
                if (ENDS) v = make_uint4(v.x & low, v.y & low, v.z & high, v.w & high);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m) {
                    mma_f16(out[m][u][0], w[m][0], w[m][1], w[m][2], w[m][3], v.x, v.z);
                    mma_f16(out[m][u][1], w[m][0], w[m][1], w[m][2], w[m][3], v.y, v.w);
                }
            }
        }
        return loaded;
    }
    DEVICE static u32 known_mask(int known, int position) {
        return (position < known ? 0xffffu : 0u) | (position + 1 < known ? 0xffff0000u : 0u);
    }

    // `store(token, element, a, b)`: two elements of the warp's part of the head of one of its tokens.
    template <class Store>
    DEVICE void finish(const Params& p, int layer, int head, u32 lane, const Store& store) {
#pragma unroll
        for (int r = 0; r < 2 * M_TILES; ++r) {
            float total = sum[r];
            total += __shfl_xor_sync(ALL_LANES, total, 1);
            total += __shfl_xor_sync(ALL_LANES, total, 2);
            if constexpr (model::SINKS) total += exp2_fast(fminf(heads::sink(p, layer, head) * LOG2_E - maximum[r], 120.0f));
            const float scale = total > 0.0f ? 1.0f / total : 0.0f;
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (16 * u + 8 * half >= model::HEAD_DIM) continue;
                    const float(&o)[4] = out[r / 2][u][half];
                    store(token(r, lane), 16 * u + 8 * half + 2 * int(lane & 3), o[r % 2 * 2] * scale, o[r % 2 * 2 + 1] * scale);
                }
            }
        }
    }
};

template <int M_TILES>
DEVICE void run_items(Core& core, tiles::Stages& stages, const Cut& cut, int first, int tokens, int layer) {
    const int window = window_of(layer);
    constexpr int WARP_TOKENS = 16 * M_TILES;
#pragma unroll 1
    for (int round = 0; Item::index(round, 0) < cut.items || Item::index(round, model::SMS - 1) < cut.items; ++round) {
        const int index = Item::index(round, int(core.place.sm));
        if (index >= cut.items) continue;
        const Item item = Item::of(index, cut.tokens, first, tokens, window);
        const int filled = smaller(first + tokens, item.end_block * cache::BLOCK);  // a last step may have a block that is not copied
        const u32 lane = core.lane;
        const int team = int(core.warp) / PARTS, first_unit = int(core.warp) % PARTS * PART_UNITS;
        int mine = item.token + team * WARP_TOKENS;
        if (REQUESTS > 1 && team * WARP_TOKENS >= cut.tokens) mine = tokens;  // nothing is this warp's
        const int begin = first + mine, end = mine < tokens ? begin + WARP_TOKENS : 0;  // positions of the warp's tokens
        const int seen_from = window && begin + 1 > window ? begin + 1 - window : 0;    // by its first one
        const int all_see = window && end > window ? end - window : 0;                  // all of its tokens, from here on
        Rows<M_TILES> rows;
        rows.load(core.params, item.head, mine, tokens, lane);
#pragma unroll 1
        for (int stage = item.first_stage; stage < item.end_stage; ++stage) {
            const u8* blocks = tiles::stage_memory(core.shared, stages.next());
            u32 loaded = 0;
#pragma unroll 1
            for (int b = 0; b < STAGE_BLOCKS; b += STEP) {
                const int base = (stage * STAGE_BLOCKS + b) * cache::BLOCK, behind = base + STEP * cache::BLOCK;
                if (base >= end || behind <= seen_from) continue;
                float score[M_TILES][2 * STEP][4];
                rows.score(blocks + b * BLOCK_BYTES, lane, score);
                Rows<M_TILES>::cap(score);
                if (behind > begin + 1 || base < all_see) Rows<M_TILES>::hide(base, begin, window, lane, score);
                rows.weigh(score);
                const u8* values = blocks + b * BLOCK_BYTES + first_unit * CACHE_UNIT_BYTES;
                loaded = behind > filled ? rows.template add<true>(values, base, filled, lane, score)
                                         : rows.template add<false>(values, base, filled, lane, score);
            }
            stages.advance();
            stages.give_back(loaded);
        }
        rows.finish(core.params, layer, item.head, lane, [&](int token, int d, float a, float b) {
            if (mine + token >= tokens) return;
            const int column = item.head % LANE_HEADS * model::HEAD_DIM + 16 * first_unit + d;
            u16* piece = tiles::operand_piece(core.params.operand_heads, LANE_Q, item.head / LANE_HEADS, column, mine + token);
            *reinterpret_cast<u32*>(piece + column % 8) = split_weights_type(a, b).high;
        });
    }
}

// Waits for: Stages::begin_phase, after which the cache holds the chunk. Leaves the operand of the next product.
DEVICE void run(Core& core, tiles::Stages& stages, int first, int tokens, int layer) {
    core.place.phase = ATTENTION;
    const int window = window_of(layer);
    const Cut cut = Cut::best(first, tokens, window);
    if constexpr (MOST_M_TILES > 1) {
        if (cut.m_tiles == 1) return run_items<1>(core, stages, cut, first, tokens, layer);
    }
    run_items<MOST_M_TILES>(core, stages, cut, first, tokens, layer);
}

}  // namespace tile_attention
