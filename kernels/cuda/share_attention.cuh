// Attention of few tokens: one head and eight tokens at a time; the warps of an SM share the blocks of the cache, so that a
// short question about a long text keeps all of them busy. With many tokens tile_attention.cuh reads each block less often.
#pragma once
#include "attention.cuh"
#include "prefill_finish.cuh"

namespace share_attention {

// Blocks that a warp has in registers at once; of a wide head one, and its values only when its keys are done with.
constexpr int BLOCKS = model::HEAD_DIM <= 128 ? 2 : 1;

// Waits for: the barrier after which the cache holds the chunk. Leaves the operand of the next product.
template <class Way>
DEVICE void run(Core& core, const prefill::Chunk& chunk, int layer) {
    core.refresh();
    const int octets = ceil_div(chunk.tokens, 8);
    const int window = window_of(layer);
    const u32 lane = core.lane;
    const int g = int(lane >> 2);
    float* rows = reinterpret_cast<float*>(core.shared.scratch);
    for (int item = int(core.place.sm); item < model::HEADS * octets; item += model::SMS) {
        const int head = item / octets, token0 = item % octets * 8;
        const int tokens = smaller(8, chunk.tokens - token0);
        QueryColumns<false> query;
#pragma unroll
        for (int u = 0; u < cache::UNITS; ++u) {
            const int d = 16 * u + 4 * int(lane & 3);
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (g < tokens && d < model::HEAD_DIM) {
                v = __ldcg(reinterpret_cast<const float4*>(
                    core.params.queries + size_t(token0 + g) * model::Q_DIM + head * model::HEAD_DIM + d));
            }
            const Split a = split_f16(v.x * QUERY_SCALE, v.y * QUERY_SCALE), b = split_f16(v.z * QUERY_SCALE, v.w * QUERY_SCALE);
            query.part[0][u] = make_uint2(a.high, b.high);
            query.part[1][u] = make_uint2(a.low, b.low);
        }
        Reach reach[query.ROWS];
#pragma unroll
        for (int r = 0; r < query.ROWS; ++r) {
            const int token = query.row(r, lane), end = token < tokens ? chunk.first + token0 + token + 1 : 0;
            reach[r] = {window && end > window ? end - window : 0, end};
        }
        const int seen_from = window && chunk.first + token0 + 1 > window ? chunk.first + token0 + 1 - window : 0;
        const int filled = chunk.first + chunk.tokens;
        const int block_end = ceil_div(chunk.first + token0 + tokens, cache::BLOCK);
        RunningSoftmax<false> softmax;
        const auto at = [&](int i) { return cache::block(core.params.kv, layer, head / model::QUERIES_PER_KV, i); };
        for (int i = seen_from / cache::BLOCK + BLOCKS * int(core.warp); i < block_end; i += BLOCKS * WARPS) {
            if constexpr (BLOCKS == 1) {
                KvBlock block;
                Scores<false> scores;
                float peak[query.ROWS];
                block.load_keys(at(i), lane);
#pragma unroll
                for (int u = 0; u < cache::UNITS; ++u) scores.multiply(query, block, u);
                scores.finish(i * cache::BLOCK, reach, lane);
#pragma unroll
                for (int r = 0; r < query.ROWS; ++r) peak[r] = fmaxf(scores.of[0][r], scores.of[1][r]);
                softmax.raise(peak, false);
                block.load_values(at(i), lane);
                if ((i + 1) * cache::BLOCK > filled) block.forget_values_from(filled - i * cache::BLOCK, lane);
                softmax.add(softmax.weigh(scores), block);
            } else {
                KvBlocks<BLOCKS, false> blocks;
                blocks.load(at, i, 1, block_end, lane);
                blocks.attend(softmax, query, i, 1, block_end, reach, filled, false, lane);
            }
        }
        softmax.leave(rows + core.warp * ATTENTION_ROWS * MERGE_ROW, ATTENTION_ROWS, lane);
        consumers_sync();
        for (int e = int(threadIdx.x); e < tokens * model::HEAD_DIM; e += CONSUMERS) {
            const int r = e / model::HEAD_DIM, d = e % model::HEAD_DIM;
            Merged merged = merge_parts<WARPS>(rows, ATTENTION_ROWS, r, d);
            if constexpr (model::SINKS) merged.add(heads::sink(core.params, layer, head) * LOG2_E, 1.0f, 0.0f);
            const float value = merged.result();
            const int column = head % LANE_HEADS * model::HEAD_DIM + d;
            Way::template store<LANE_Q>(core.params.operand_heads, head / LANE_HEADS, column, token0 + r, value);
        }
        consumers_sync();
    }
}

}  // namespace share_attention
