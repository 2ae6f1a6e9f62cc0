// Attention of many tokens: online softmax over the cache as it lies, blocks of keys and values through the stages.
// An SM takes one head and 16 or 32 tokens a warp; of a wide head two warps take the same tokens. As in decode a unit of the cache is
// operand A, four registers as they lie in memory, and queries and weights are operand B, the weights turned on their way.
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
// Blocks at a time, whole steps a stage: as many as the registers hold beside what a warp adds up.
constexpr int STEP = model::HEAD_DIM <= 64 || model::HEAD_DIM == 128 ? STAGE_BLOCKS : MOST_M_TILES > 1 ? 1 : 2;
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

// A warp's tokens, eight beside eight. They are the columns of both products: units of the cache are operand A as they lie, and a lane
// has of each eight what belongs to its tokens 2 j and 2 j + 1, numbers 2 n and 2 n + 1 of `maximum` and `sum`.
template <int M_TILES>
struct Columns {
    static constexpr int EIGHTS = 2 * M_TILES, TOKENS = 2 * EIGHTS;
    // A maximum stands until a score lies so many powers of two above it: weights up to that are as exact in FP16 as those up to one.
    static constexpr float SLACK = 8.0f;
    using Scores = float[EIGHTS][STEP][4];  // of positions g and g + 8 of a block, two tokens each

    u32 query[EIGHTS][cache::UNITS][2];  // of token g: elements 4 j .. 4 j + 3 of a unit
    float out[EIGHTS][PART_UNITS][4];    // elements g and g + 8 of a unit, two tokens each
    float maximum[TOKENS], sum[TOKENS];  // `sum`: of this lane's own positions

    DEVICE static int token(int number, u32 lane) { return number / 2 * 8 + int(lane & 3) * 2 + number % 2; }

    DEVICE void load(const Params& p, int head, int first, int tokens, u32 lane) {
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
            const int t = first + 8 * n + int(lane >> 2);
            const float* from = p.queries + size_t(t) * model::Q_DIM + head * model::HEAD_DIM;
#pragma unroll
            for (int u = 0; u < cache::UNITS; ++u) {
                const int d = 16 * u + 4 * int(lane & 3);
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (t < tokens && d < model::HEAD_DIM) v = __ldcg(reinterpret_cast<const float4*>(from + d));
                query[n][u][0] = saturated_f16(v.x * QUERY_SCALE, v.y * QUERY_SCALE);
                query[n][u][1] = saturated_f16(v.z * QUERY_SCALE, v.w * QUERY_SCALE);
            }
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
#pragma unroll
                for (int e = 0; e < 4; ++e) out[n][u][e] = 0.0f;
            }
        }
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) {
            maximum[c] = NO_SCORE;
            sum[c] = 0.0f;
        }
    }

    // What a lane has of a unit of the cache, as FP16.
    DEVICE static uint4 unit(const u8* blocks, u32 lane) {
        return cache::Kept::widened(*reinterpret_cast<const cache::Kept::Words*>(blocks + lane * (4 * cache::LANE_WORDS)));
    }

    // Scores against STEP blocks. Block by block a product would have to wait for the one before it.
    DEVICE void score(const u8* blocks, u32 lane, Scores& scores) const {
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
            for (int b = 0; b < STEP; ++b) {
#pragma unroll
                for (int e = 0; e < 4; ++e) scores[n][b][e] = 0.0f;
            }
        }
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
#pragma unroll
            for (int b = 0; b < STEP; ++b) {
                const uint4 k = unit(blocks + b * BLOCK_BYTES + u * CACHE_UNIT_BYTES, lane);
#pragma unroll
                for (int n = 0; n < EIGHTS; ++n) mma_f16(scores[n][b], k.x, k.y, k.z, k.w, query[n][u][0], query[n][u][1]);
            }
        }
    }

    // `visit(number of the token, position within the step, score)`.
    template <class Visit>
    DEVICE static void each(u32 lane, Scores& scores, const Visit& visit) {
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) {
#pragma unroll
            for (int b = 0; b < STEP; ++b) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    visit(c, cache::BLOCK * b + 8 * half + int(lane >> 2), scores[c / 2][b][2 * half + c % 2]);
                }
            }
        }
    }

    DEVICE static void cap(u32 lane, Scores& scores) {
        each(lane, scores, [](int, int, float& score) { score = capped_score_fast(score); });
    }

    // Scores of positions that a token does not attend to become none. `base` is the first position.
    DEVICE static void hide(int base, int first_position, int window, u32 lane, Scores& scores) {
        each(lane, scores, [&](int c, int position, float& score) {
            const int end = first_position + token(c, lane) + 1, p = base + position;
            const int first = window && end > window ? end - window : 0;
            if (p < first || p >= end) score = NO_SCORE;
        });
    }

    // Turns scores into weights relative to each token's maximum.
    DEVICE void weigh(u32 lane, Scores& scores) {
        float top[TOKENS];
        bool above = false;
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) top[c] = NO_SCORE;
        each(lane, scores, [&](int c, int, float& score) { top[c] = fmaxf(top[c], score); });
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) above = above || top[c] > maximum[c] + SLACK;
        if (__any_sync(ALL_LANES, above)) raise(top);
        each(lane, scores, [&](int c, int, float& score) {
            const float from = maximum[c] == NO_SCORE ? 0.0f : maximum[c];  // a token that has seen nothing weighs nothing
            score = exp2_fast(score - from);
            sum[c] += score;
        });
    }

    // Each token for itself, whatever the others beside it: its bits must not depend on them. What was summed up to now goes along.
    DEVICE void raise(const float (&tops)[TOKENS]) {
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) {
            float top = tops[c];
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, apart));
            if (top <= maximum[c] + SLACK) top = maximum[c];
            const float keep = exp2_fast(maximum[c] - top);
            maximum[c] = top;
            sum[c] *= keep;
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
                out[c / 2][u][c % 2] *= keep;
                out[c / 2][u][2 + c % 2] *= keep;
            }
        }
    }

    // Adds the values of STEP blocks, of this warp's part of the head. With ENDS positions from `filled` on hold whatever was there
    // before: zero times that must be zero. Else none of them is that far, and no branch stands between the products.
    // For Stages::give_back: what depends on all loads of values; those of keys have ended where the scores are known.
    template <bool ENDS>
    DEVICE u32 add(const u8* blocks, int base, int filled, u32 lane, const Scores& weights) {
#pragma unroll
        for (int b = 0; b < STEP; ++b) {
            u32 w[EIGHTS][2];
#pragma unroll
            for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    w[n][half] = transposed(pack_f16(weights[n][b][2 * half], weights[n][b][2 * half + 1]));
                }
            }
            const int known = filled - base - b * cache::BLOCK;
            const u32 low = known_mask(known, 2 * int(lane & 3)), high = known_mask(known, 2 * int(lane & 3) + 8);
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
                uint4 v = unit(blocks + b * BLOCK_BYTES + (cache::UNITS + u) * CACHE_UNIT_BYTES, lane);
                if (ENDS) v = make_uint4(v.x & low, v.y & low, v.z & high, v.w & high);
#pragma unroll
                for (int n = 0; n < EIGHTS; ++n) mma_f16(out[n][u], v.x, v.y, v.z, v.w, w[n][0], w[n][1]);
            }
        }
        u32 added = 0;  // the last of each unit's products, which wait for those before
#pragma unroll
        for (int u = 0; u < PART_UNITS; ++u) added |= __float_as_uint(out[0][u][0]);
        return added;
    }
    DEVICE static u32 known_mask(int known, int position) {
        return (position < known ? 0xffffu : 0u) | (position + 1 < known ? 0xffff0000u : 0u);
    }

    // `store(token, element, two)`: elements side by side of the warp's part of the head of one of its tokens, in the weights' type.
    template <class Store>
    DEVICE void finish(const Params& p, int layer, int head, u32 lane, const Store& store) {
        float scale[TOKENS];
#pragma unroll
        for (int c = 0; c < TOKENS; ++c) {
            float total = sum[c];
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) total += __shfl_xor_sync(ALL_LANES, total, apart);
            if constexpr (model::SINKS) total += exp2_fast(fminf(heads::sink(p, layer, head) * LOG2_E - maximum[c], 120.0f));
            scale[c] = total > 0.0f ? 1.0f / total : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < EIGHTS; ++n) {
#pragma unroll
            for (int u = 0; u < PART_UNITS; ++u) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (16 * u + 8 * half >= model::HEAD_DIM) continue;
                    const float* o = out[n][u] + 2 * half;
                    const u32 two = transposed(split_weights_type(o[0] * scale[2 * n], o[1] * scale[2 * n + 1]).high);
                    store(8 * n + int(lane >> 2), 16 * u + 8 * half + 2 * int(lane & 3), two);
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
        Columns<M_TILES> columns;
        columns.load(core.params, item.head, mine, tokens, lane);
#pragma unroll 1
        for (int stage = item.first_stage; stage < item.end_stage; ++stage) {
            const u8* blocks = tiles::stage_memory(core.shared, stages.next());
            u32 loaded = 0;
#pragma unroll 1
            for (int b = 0; b < STAGE_BLOCKS; b += STEP) {
                const int base = (stage * STAGE_BLOCKS + b) * cache::BLOCK, behind = base + STEP * cache::BLOCK;
                if (base >= end || behind <= seen_from) continue;
                typename Columns<M_TILES>::Scores scores;
                columns.score(blocks + b * BLOCK_BYTES, lane, scores);
                columns.cap(lane, scores);
                if (behind > begin + 1 || base < all_see) columns.hide(base, begin, window, lane, scores);
                columns.weigh(lane, scores);
                const u8* values = blocks + b * BLOCK_BYTES + first_unit * CACHE_UNIT_BYTES;
                loaded = behind > filled ? columns.template add<true>(values, base, filled, lane, scores)
                                         : columns.template add<false>(values, base, filled, lane, scores);
            }
            stages.advance();
            stages.give_back(loaded);
        }
        columns.finish(core.params, layer, item.head, lane, [&](int token, int d, u32 two) {
            if (mine + token >= tokens) return;
            const int column = item.head % LANE_HEADS * model::HEAD_DIM + 16 * first_unit + d;
            u16* piece = tiles::operand_piece(core.params.operand_heads, LANE_Q, item.head / LANE_HEADS, column, mine + token);
            *reinterpret_cast<u32*>(piece + column % 8) = two;
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
