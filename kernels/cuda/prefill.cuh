// Prefill: a chunk of tokens a pass of the tape. The same weights in the same order meet PREFILL_TILES operands
// instead of one, so a chunk costs little more than a token. Phases are parted by a barrier of all SMs: they last tens
// of microseconds here, and plain buffers then do in place of mailboxes.
//
// Operands lie in memory as the tensor cores take them (mma.cuh): for each 32-column chunk, each tile of tokens and each
// of two products, 16 bytes a lane. With PREFILL_SPLIT rows 0-7 and 8-15 are the high and low parts of 8 tokens' numbers,
// else the numbers of 16 tokens, rounded once.
#pragma once
#include "attention.cuh"

namespace prefill {

constexpr int TILES = model::PREFILL_TILES;
constexpr int TILE_TOKENS = model::PREFILL_TILE_TOKENS;
constexpr int CHUNK = TILES * TILE_TOKENS;
constexpr bool SPLIT = model::PREFILL_SPLIT;
constexpr int TILES_A_STEP = PREFILL_TOKENS_A_STEP / TILE_TOKENS;
static_assert(TILE_TOKENS == (SPLIT ? 8 : 16) && TILES % TILES_A_STEP == 0, "whole fragments, whole steps");
constexpr int HISTORY = model::DELAY + 1;
constexpr int UNIT_HALVES = UNIT_BYTES / 2;

struct Chunk {
    int first;   // position of its first token
    int tokens;  // at most CHUNK
};

// The operands of one product (16 columns) for one tile of tokens.
DEVICE u16* fragment(u16* operand, int chunk, int tile, int step) {
    return operand + ((size_t(chunk) * TILES + tile) * 2 + step) * UNIT_HALVES;
}

// Where two columns from an even `column` of a token lie: the word of row `within` mod 8, and the one after it, which
// holds the low parts (SPLIT) or the token eight further.
DEVICE u32* operand_words(u16* operand, int chunk, int column, int token) {
    const int tile = token / TILE_TOKENS, row = token % TILE_TOKENS & 7;
    u16* at = fragment(operand, chunk, tile, column / 4 & 1) + (row * 4 + column / 8) * 8;
    return reinterpret_cast<u32*>(at) + (column / 2 & 1) * 2;
}

DEVICE void store_pair(u16* operand, int chunk, int column, int token, float a, float b) {
    const Split s = split_weights_type(a, b);
    u32* words = operand_words(operand, chunk, column, token);
    if constexpr (SPLIT) {
        words[0] = s.high;
        words[1] = s.low;
    } else {
        words[token % TILE_TOKENS >> 3] = s.high;
    }
}

DEVICE void store_element(u16* operand, int chunk, int column, int token, float value) {
    const Split s = split_weights_type(value, 0.0f);
    u16* halves = reinterpret_cast<u16*>(operand_words(operand, chunk, column & ~1, token)) + (column & 1);
    if constexpr (SPLIT) {
        halves[0] = u16(s.high);
        halves[2] = u16(s.low);
    } else {
        halves[(token % TILE_TOKENS >> 3) * 2] = u16(s.high);
    }
}

DEVICE void store_four(u16* operand, int chunk, int column, int token, const float4& v) {
    store_pair(operand, chunk, column, token, v.x, v.y);
    store_pair(operand, chunk, column + 2, token, v.z, v.w);
}

// Module outputs of a layer: [TOTAL_LANES][CHUNK][HIDDEN]. The other GPUs' lanes write theirs here as well.
DEVICE size_t outputs_offset(bool attention, int layer) {
    return ((attention ? 0 : HISTORY) + layer % HISTORY) * size_t(model::TOTAL_LANES) * CHUNK * model::HIDDEN;
}
DEVICE float* outputs(const Params& p, bool attention, int layer) {
    return p.outputs + outputs_offset(attention, layer);
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

template <int T>
DEVICE void multiply(Core& core, const u16* operand, int chunks, float (&sums)[T][TILES][4]) {
    constexpr int CHUNKS_A_SLOT = chunks_a_slot(T);
    const u32 lane = core.lane;
    Operand next[TILES][2];
    load_operand(operand, smaller(int(core.warp), chunks - 1), lane, next);
#pragma unroll 1
    for (int first = 0; first < chunks; first += CHUNKS_A_SLOT) {
        const int last = smaller(first + CHUNKS_A_SLOT, chunks);
        core.wait_full();
        const u8* slot = core.shared.ring[core.cursor.slot];
#pragma unroll 1
        for (int c = SlotPart<T>::mine(core, first); c < last; c += WARPS) {
            Operand a[TILES][2];
#pragma unroll
            for (int m = 0; m < TILES; ++m) {
                a[m][0] = next[m][0];
                a[m][1] = next[m][1];
            }
            if (c + WARPS < chunks) load_operand(operand, c + WARPS, lane, next);
            const u8* units = slot + (c - first) * (T * UNIT_BYTES) + lane * 16;
#pragma unroll
            for (int t = 0; t < T; ++t) {
                const uint4 b = *reinterpret_cast<const uint4*>(units + t * UNIT_BYTES);
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

// One group for all tokens of the chunk, in steps of a few token tiles so that partial sums stay small.
template <int T, class Finish>
DEVICE void group(Core& core, Finish& finish, const Chunk& chunk, const u16* operand, int chunks, int first_pair) {
    float sums[T][TILES][4];
#pragma unroll
    for (int t = 0; t < T; ++t) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) sums[t][m][0] = sums[t][m][1] = sums[t][m][2] = sums[t][m][3] = 0.0f;
    }
    multiply<T>(core, operand, chunks, sums);
    constexpr int TOKENS = TILES_A_STEP * TILE_TOKENS;
    constexpr int PAIRS_HERE = T * TOKENS * 4;
    float2* partial = reinterpret_cast<float2*>(core.shared.scratch);
    const int g = int(core.lane >> 2), j = int(core.lane & 3);
#pragma unroll
    for (int m = 0; m < TILES; m += TILES_A_STEP) {
        if (m * TILE_TOKENS >= chunk.tokens) break;
#pragma unroll
        for (int t = 0; t < T; ++t) {
#pragma unroll
            for (int s = 0; s < TILES_A_STEP; ++s) {
                const float(&c)[4] = sums[t][m + s];
                float2* to = partial + core.warp * PAIRS_HERE + (t * TOKENS + s * TILE_TOKENS + g) * 4 + j;
                if constexpr (SPLIT) {
                    *to = make_float2(c[0] + c[2], c[1] + c[3]);
                } else {
                    *to = make_float2(c[0], c[1]);
                    to[8 * 4] = make_float2(c[2], c[3]);
                }
            }
        }
        consumers_sync();
        for (int e = int(threadIdx.x); e < PAIRS_HERE; e += CONSUMERS) {
            const int token = m * TILE_TOKENS + e / 4 % TOKENS;
            if (token >= chunk.tokens) continue;
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float2 part = partial[w * PAIRS_HERE + e];
                sum.x += part.x;
                sum.y += part.y;
            }
            finish.store(first_pair + e / (TOKENS * 4) * 4 + e % 4, token, sum.x, sum.y);
        }
        consumers_sync();
    }
}

template <int PHASE, int T, class Finish>
DEVICE void group_of(Core& core, Finish& finish, const Chunk& chunk, const u16* operand, int tiles, int chunks, int first_pair) {
    if constexpr (T >= 1) {
        if constexpr ((group_sizes(PHASE) >> T) & 1) {
            if (tiles == T) {
                group<T>(core, finish, chunk, operand, chunks, first_pair);
                return;
            }
        }
        group_of<PHASE, T - 1>(core, finish, chunk, operand, tiles, chunks, first_pair);
    }
}

// Waits for: the barrier before it. `operand` is the whole vector of all lanes; this SM's lane has its own part.
template <int PHASE, class Finish>
DEVICE void matrix(Core& core, const Chunk& chunk, const u16* operand, Finish finish) {
    constexpr int CHUNKS = chunks_of(Matrix<PHASE>::COLUMNS);
    core.place.phase = PHASE;
    core.refresh();
    const TileRange share = core.share(PHASE);
    const Groups groups = core.groups(PHASE);
    const u16* mine = fragment(const_cast<u16*>(operand), core.model_lane * CHUNKS, 0, 0);
#pragma unroll 1
    for (int g = 0; g < groups.count; ++g) {
        const int pair = (share.first + groups.first(g)) * (TILE_ROWS / 2);
        group_of<PHASE, MAX_TILES>(core, finish, chunk, mine, groups.size(g), CHUNKS, pair);
    }
}

// Head `head` of a token, keys after queries, where the rows of the whole chunk are kept; keys only until they are finished.
DEVICE float* raw_head(const Params& p, int token, int head) {
    const bool key = head >= model::HEADS;
    const size_t at = key ? size_t(CHUNK) * model::Q_DIM + size_t(token) * model::KV_DIM : size_t(token) * model::Q_DIM;
    return p.queries + at + (key ? head - model::HEADS : head) * model::HEAD_DIM;
}

// QK_NORM: heads of queries in place, those of keys to the cache; a warp each.
DEVICE void finish_heads(Core& core, const Chunk& chunk, int layer) {
    constexpr int HEADS = model::HEADS + model::KV_HEADS;
    core.refresh();
    const u32 lane = core.lane;
    for (int item = int(core.place.sm) * WARPS + int(core.warp); item < chunk.tokens * HEADS; item += model::SMS * WARPS) {
        const int token = item / HEADS, head = item % HEADS, position = chunk.first + token;
        const bool key = head >= model::HEADS;
        float4* row = reinterpret_cast<float4*>(raw_head(core.params, token, head));
        const heads::Scales scales(core.params, layer, key, lane);
        const heads::Turns turns(core.params, layer, position, lane);
        const heads::Finished done([&](int q) { return __ldcg(row + q); }, scales, turns, lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < heads::EACH; ++i) {
            const int q = i * 32 + int(lane);
            if (q >= heads::QUADS) continue;
            const float4 v = done.quads[i];
            if (!key) {
                row[q] = v;
                continue;
            }
            append_key(core.params.kv, layer, position, head - model::HEADS, q,
                       make_uint2(pack_f16(clamp_f16(v.x), clamp_f16(v.y)), pack_f16(clamp_f16(v.z), clamp_f16(v.w))));
        }
    }
}

struct QkvStore {
    Core& core;
    int layer;
    Chunk chunk;

    DEVICE void store(int pair, int token, float a, float b) const {
        const QkvPair at(pair, core.model_lane);
        if (at.kind == QkvPair::PADDING) return;
        const int position = chunk.first + token;
        float2 v = make_float2(a, b);
        if constexpr (model::QKV_BIAS) {
            const float2 bias = bias_of(core.params, layer, at);
            v = make_float2(a + bias.x, b + bias.y);
        }
        if (at.kind != QkvPair::VALUE && !travels_raw(at)) {
            v = rotated(v.x, v.y, __ldg(heads::rotation(core.params, layer, position) + at.turn));
        }
        if (travels_raw(at)) {
            float* to = raw_head(core.params, token, at.head + (at.kind == QkvPair::KEY ? model::HEADS : 0));
            to[at.first] = v.x;
            to[at.second] = v.y;
            return;
        }
        if (at.kind != QkvPair::QUERY) {
            append(core.params.kv, layer, position, at, pack_f16(clamp_f16(v.x), clamp_f16(v.y)));
            return;
        }
        float* to = core.params.queries + size_t(token) * model::Q_DIM + at.head * model::HEAD_DIM;
        to[at.first] = v.x;
        to[at.second] = v.y;
    }
};

struct OutputStore {
    Core& core;
    size_t outputs;  // outputs_offset

    DEVICE void store(int pair, int token, float a, float b) const {
        const int row = 2 * pair_in_lane(pair, core.model_lane, OUT_LANE_TILES);
        if (row >= model::HIDDEN) return;
        const size_t at = outputs + (size_t(core.whole_lane()) * CHUNK + token) * model::HIDDEN + row;
        *reinterpret_cast<float2*>(core.params.outputs + at) = make_float2(a, b);
        for_each_peer(core.params, [&](const Peer& peer) { *reinterpret_cast<float2*>(peer.outputs + at) = make_float2(a, b); });
    }
};

struct GateUpStore {
    Core& core;

    DEVICE void store(int pair, int token, float gate, float up) const {
        const int f = pair_in_lane(pair, core.model_lane, GATE_UP_LANE_TILES);
        if (f >= LANE_FFN) return;
        const int chunk = core.model_lane * chunks_of(LANE_FFN) + f / CHUNK_COLUMNS;
        store_element(core.params.operand_ffn, chunk, f % CHUNK_COLUMNS, token, swiglu(gate, up));
    }
};

DEVICE void add_scaled(float4& x, const float4& v, float scale) {
    x.x += v.x * scale;
    x.y += v.y * scale;
    x.z += v.z * scale;
    x.w += v.w * scale;
}

// What a residual stream begins with, or takes in next.
enum Source { EMBEDDING, ATTENTION_OUTPUT, MLP_OUTPUT };

// Adds what the module before produced to the residual stream and leaves the normalised operand. One block a row. `layer` is
// the source's.
DEVICE void normalise(Core& core, const Chunk& chunk, Source source, int layer, const u16* norm) {
    constexpr int QUADS = model::HIDDEN / 4;
    constexpr int EACH = ceil_div(QUADS, CONSUMERS);
    core.refresh();
    const Params& p = core.params;
    const bool attention = source == ATTENTION_OUTPUT;
    const int exchange = source == EMBEDDING ? EXCHANGE_LOCAL : attention ? attention_exchange(layer) : mlp_exchange(layer);
    for (int row = int(core.place.sm); row < model::LANES * chunk.tokens; row += model::SMS) {
        const int lane = row / chunk.tokens, token = row % chunk.tokens;
        const int whole_lane = p.rank * model::LANES + lane;
        float4* stream = reinterpret_cast<float4*>(p.stream + (size_t(lane) * CHUNK + token) * model::HIDDEN);
        const int id = source == EMBEDDING ? p.ids[chunk.first + token] : 0;
        float4 x[EACH];
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int q = i * CONSUMERS + int(threadIdx.x);
            x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (q >= QUADS) continue;
            if (source == EMBEDDING) {
                const uint2 w = __ldg(reinterpret_cast<const uint2*>(p.embed + size_t(id) * model::HIDDEN) + q);
                x[i] = make_float4(weight_low(w.x), weight_high(w.x), weight_low(w.y), weight_high(w.y));
            } else {
                const auto of = [&](int l, int m) {
                    return __ldcg(reinterpret_cast<const float4*>(outputs(p, attention, l) +
                                                                  (size_t(m) * CHUNK + token) * model::HIDDEN) + q);
                };
                x[i] = __ldcg(stream + q);
                if (exchange != EXCHANGE_SYNC) {
                    const float scale = exchange == EXCHANGE_LOCAL ? model::SQRT_LANES : 1.0f;
                    add_scaled(x[i], of(layer, whole_lane), scale);
                }
                if (model::TOTAL_LANES > 1 && exchange != EXCHANGE_LOCAL) {
#pragma unroll
                    for (int m = 0; m < model::TOTAL_LANES; ++m) {
                        if (exchange == EXCHANGE_SYNC || m != whole_lane) {
                            add_scaled(x[i], of(exchange == EXCHANGE_DELAYED ? layer - model::DELAY : layer, m), 1.0f);
                        }
                    }
                }
            }
            stream[q] = x[i];
            squares += dot_self(x[i]);
        }
        squares = warp_sum(squares);
        if (core.lane == 0) core.shared.squares[0][core.warp] = squares;
        consumers_sync();
        const float scale = inverse_rms(core.shared.squares[0]);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int q = i * CONSUMERS + int(threadIdx.x);
            if (q >= QUADS) continue;
            scale_by(x[i], __ldg(reinterpret_cast<const uint2*>(norm) + q));
            const float4 v = make_float4(x[i].x * scale, x[i].y * scale, x[i].z * scale, x[i].w * scale);
            store_four(p.operand_hidden, lane * chunks_of(model::HIDDEN) + q / 8, q % 8 * 4, token, v);
        }
        consumers_sync();
    }
}

// One head and eight tokens at a time; the warps share the blocks of the cache, which already holds this chunk.
DEVICE void attention(Core& core, const Chunk& chunk, int layer) {
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
        for (int i = seen_from / cache::BLOCK + 2 * int(core.warp); i < block_end; i += 2 * WARPS) {
            KvBlocks<2, false> blocks;
            blocks.load(at, i, 1, block_end, lane);
            blocks.attend(softmax, query, i, 1, block_end, reach, filled, lane);
        }
        softmax.leave(rows + core.warp * ATTENTION_ROWS * MERGE_ROW, ATTENTION_ROWS, lane);
        consumers_sync();
        for (int e = int(threadIdx.x); e < tokens * model::HEAD_DIM; e += CONSUMERS) {
            const int r = e / model::HEAD_DIM, d = e % model::HEAD_DIM;
            const float value = merge_parts<WARPS>(rows, ATTENTION_ROWS, r, d).result();
            const int column = head % LANE_HEADS * model::HEAD_DIM + d;
            const int column_chunk = head / LANE_HEADS * chunks_of(LANE_Q) + column / CHUNK_COLUMNS;
            store_element(core.params.operand_heads, column_chunk, column % CHUNK_COLUMNS, token0 + r, value);
        }
        consumers_sync();
    }
}

// The last layer's keys and values are all that later tokens need of it.
DEVICE void pass(Core& core, const Chunk& chunk) {
    const Params& p = core.params;
    for (int layer = 0; layer < model::LAYERS; ++layer) {
        core.place.layer = layer;
        core.place.position = chunk.first;
        const u16* norms = p.norms + size_t(2 * layer) * model::HIDDEN;
        normalise(core, chunk, layer ? MLP_OUTPUT : EMBEDDING, layer - 1, norms);
        core.grid_barrier();
        matrix<QKV>(core, chunk, p.operand_hidden, QkvStore{core, layer, chunk});
        core.grid_barrier();
        if constexpr (model::QK_NORM) {
            finish_heads(core, chunk, layer);
            core.grid_barrier();
        }
        if (layer == model::LAYERS - 1) break;
        attention(core, chunk, layer);
        core.grid_barrier();
        matrix<ATTN_OUT>(core, chunk, p.operand_heads, OutputStore{core, outputs_offset(true, layer)});
        core.node_barrier();
        normalise(core, chunk, ATTENTION_OUTPUT, layer, norms + model::HIDDEN);
        core.grid_barrier();
        matrix<GATE_UP>(core, chunk, p.operand_hidden, GateUpStore{core});
        core.grid_barrier();
        matrix<DOWN>(core, chunk, p.operand_ffn, OutputStore{core, outputs_offset(false, layer)});
        core.node_barrier();
    }
}

}  // namespace prefill
