// Prefill: a chunk of prompt tokens a pass of the tape. Long chunks go by tiles (tiles.cuh), short ones by each SM's share
// of rows (shares.cuh). Phases are parted by a barrier of all SMs: they last tens of microseconds here, and plain buffers
// then do in place of mailboxes.
#pragma once
#include "prefill_finish.cuh"
#include "share_attention.cuh"
#include "tile_producer.cuh"

namespace prefill {

// What a residual stream begins with, or takes in next.
enum Source { EMBEDDING, ATTENTION_OUTPUT, MLP_OUTPUT };

DEVICE void add(float4& x, const float4& v, float scale = 1.0f) {
    x.x += v.x * scale;
    x.y += v.y * scale;
    x.z += v.z * scale;
    x.w += v.w * scale;
}

// RMSNorm's scales of the lanes, from each thread's part of their sums of squares.
template <int TEAM>
DEVICE void join_squares(Core& core, float (&squares)[model::LANES], float (&scale)[model::LANES]) {
    static_assert(TEAM == 1 || TEAM == WARPS, "a warp alone, or all of them");
    float* parts = core.shared.norm_parts();
#pragma unroll
    for (int l = 0; l < model::LANES; ++l) {
        squares[l] = warp_sum(squares[l]);
        if (TEAM > 1 && core.lane == 0) parts[l * WARPS + core.warp] = squares[l];
    }
    if constexpr (TEAM > 1) consumers_sync();
#pragma unroll
    for (int l = 0; l < model::LANES; ++l) {
        float sum = squares[l];
        if constexpr (TEAM > 1) {
            sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += parts[l * WARPS + w];
        }
        scale[l] = rsqrtf(sum * (1.0f / float(model::HIDDEN)) + model::NORM_EPS);
    }
    if constexpr (TEAM > 1) consumers_sync();
}

// Some of a thread's part of a token's residual streams, of all lanes of this GPU: AT_ONCE times four elements, STRIDE apart. A
// whole part would do with one load of each stream, but as one long stretch of code, and fetching that takes longer than
// reading what was just written once more.
template <class Way>
struct Streams {
    static constexpr int QUADS = model::HIDDEN / 4, STRIDE = 32 * Way::TEAM, AT_ONCE = larger(1, 8 / model::LANES);
    const Params& p;
    int token, first_quad;
    float4 x[model::LANES][AT_ONCE];

    template <class Visit>
    DEVICE void each(const Visit& visit) const {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int q = first_quad + i * STRIDE;
            if (q < QUADS) visit(i, q);
        }
    }
    DEVICE float4* stream(int lane, int q) const {
        return reinterpret_cast<float4*>(p.stream + (size_t(lane) * Way::CHUNK + token) * model::HIDDEN) + q;
    }
    // What a lane of the whole model has produced.
    DEVICE const uint2* output(size_t of_layer, int lane, int q) const {
        const u16* from = p.outputs + of_layer + (size_t(lane) * Way::CHUNK + token) * model::HIDDEN;
        return reinterpret_cast<const uint2*>(from) + q;
    }
    DEVICE static float4 unpacked(const uint2& four) {
        return make_float4(weight_low(four.x), weight_high(four.x), weight_low(four.y), weight_high(four.y));
    }

    DEVICE void embed(int id) {
        each([&](int i, int q) {
            const float4 row = unpacked(__ldg(reinterpret_cast<const uint2*>(p.embed + size_t(id) * model::HIDDEN) + q));
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) x[l][i] = row;
        });
    }
    DEVICE void load() {
        each([&](int i, int q) {
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) x[l][i] = __ldcg(stream(l, q));
        });
    }
    DEVICE void take_in(Source source, int layer, int exchange) {
        const bool attention = source == ATTENTION_OUTPUT;
        const int first_lane = model::RANKS == 1 ? 0 : p.rank * model::LANES;
        load();
        if (exchange != EXCHANGE_SYNC) {
            const size_t own = outputs_offset<Way>(attention, layer);
            const float scale = exchange == EXCHANGE_LOCAL ? model::SQRT_LANES : 1.0f;
            each([&](int i, int q) {
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) add(x[l][i], unpacked(__ldcg(output(own, first_lane + l, q))), scale);
            });
        }
        if (model::TOTAL_LANES == 1 || exchange == EXCHANGE_LOCAL) return;
        const size_t all = outputs_offset<Way>(attention, exchange == EXCHANGE_DELAYED ? layer - model::DELAY : layer);
        each([&](int i, int q) {
            float4 sum = {}, own[model::LANES] = {};
#pragma unroll
            for (int m = 0; m < model::TOTAL_LANES; ++m) {
                const float4 produced = unpacked(__ldcg(output(all, m, q)));
                add(sum, produced);
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) {
                    if (exchange != EXCHANGE_SYNC && m == first_lane + l) own[l] = produced;
                }
            }
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) {
                add(x[l][i], sum);
                add(x[l][i], own[l], -1.0f);
            }
        });
    }
    DEVICE void store(float (&squares)[model::LANES]) const {
        each([&](int i, int q) {
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) {
                store_words(stream(l, q), x[l][i]);
                squares[l] += dot_self(x[l][i]);
            }
        });
    }
};

// Adds what the module before produced to the residual streams and leaves the normalised operand. `layer` is the source's.
// A team of warps takes a token of all lanes: what other lanes produced is then read once.
template <class Way>
DEVICE void normalise(Core& core, const Chunk& chunk, Source source, int layer, const u16* norm) {
    using Part = Streams<Way>;
    constexpr int TEAM = Way::TEAM, TEAMS = WARPS / TEAM, STEP = Part::AT_ONCE * Part::STRIDE;
    core.refresh();
    const Params& p = core.params;
    const int exchange = source == EMBEDDING          ? EXCHANGE_LOCAL
                         : source == ATTENTION_OUTPUT ? attention_exchange(layer)
                                                      : mlp_exchange(layer);
    const int first_quad = int(core.warp) % TEAM * 32 + int(core.lane);
#pragma unroll 1
    for (int token = int(core.place.sm) + int(core.warp) / TEAM * model::SMS; token < chunk.tokens; token += TEAMS * model::SMS) {
        float squares[model::LANES] = {}, scale[model::LANES];
#pragma unroll 1
        for (int q = first_quad; q < Part::QUADS; q += STEP) {
            Part part{p, token, q};
            if (source == EMBEDDING) part.embed(p.ids[chunk.first + token]);
            else part.take_in(source, layer, exchange);
            part.store(squares);
        }
        join_squares<TEAM>(core, squares, scale);
#pragma unroll 1
        for (int q = first_quad; q < Part::QUADS; q += STEP) {
            Part part{p, token, q};
            part.load();
            part.each([&](int i, int quad) {
                const uint2 weights = __ldg(reinterpret_cast<const uint2*>(norm) + quad);
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) scale_by(part.x[l][i], weights);
            });
            part.each([&](int i, int quad) {
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) {
                    const float4 v = part.x[l][i];
                    const float by = scale[l];
                    Way::template store<model::HIDDEN>(p.operand_hidden, l, 4 * quad, token, make_float4(v.x * by, v.y * by, v.z * by, v.w * by));
                }
            });
        }
    }
}

// QK_NORM: heads of queries in place, those of keys to the cache; a warp each.
template <class Way>
DEVICE void finish_heads(Core& core, const Chunk& chunk, int layer) {
    constexpr int HEADS = model::HEADS + model::KV_HEADS;
    core.refresh();
    const u32 lane = core.lane;
    for (int item = int(core.place.sm) * WARPS + int(core.warp); item < chunk.tokens * HEADS; item += model::SMS * WARPS) {
        const int token = item / HEADS, head = item % HEADS, position = chunk.first + token;
        const bool key = head >= model::HEADS;
        float4* row = reinterpret_cast<float4*>(raw_head<Way>(core.params, token, head));
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

// A pass over a short chunk.
struct ByShares {
    static constexpr int CHUNK = shares::CHUNK;
    static constexpr int TEAM = WARPS;

    Core& core;
    Chunk chunk;

    // Behind the tiles' operand: what neither writes must stay zero.
    template <int COLUMNS>
    DEVICE static u16* operand(u16* both) {
        return both + size_t(model::LANES) * tiles::CHUNK * tiles::steps_of(COLUMNS) * tiles::STEP_COLUMNS;
    }
    template <int COLUMNS>
    DEVICE static u32* words(u16* both, int lane, int column, int token) {
        const int at = lane * chunks_of(COLUMNS) + column / CHUNK_COLUMNS;
        return shares::operand_word(operand<COLUMNS>(both), at, column % CHUNK_COLUMNS & ~1, token);
    }
    template <int COLUMNS>
    DEVICE static void store(u16* both, int lane, int column, int token, const float4& v) {
        *words<COLUMNS>(both, lane, column, token) = split_weights_type(v.x, v.y).high;
        *words<COLUMNS>(both, lane, column + 2, token) = split_weights_type(v.z, v.w).high;
    }
    template <int COLUMNS>
    DEVICE static void store(u16* both, int lane, int column, int token, float v) {
        reinterpret_cast<u16*>(words<COLUMNS>(both, lane, column, token))[column & 1] = u16(split_weights_type(v, 0.0f).high);
    }

    DEVICE void begin_phase() { core.grid_barrier(); }
    template <int PHASE, class Finish>
    DEVICE void matrix(u16* both, const Finish& finish) {
        shares::matrix<PHASE>(core, chunk.tokens, operand<Matrix<PHASE>::COLUMNS>(both), finish);
    }
    DEVICE void mlp(int layer) {
        matrix<GATE_UP>(core.params.operand_hidden, GatedStore<ByShares>{core});
        begin_phase();
        matrix<DOWN>(core.params.operand_ffn, OutputStore<ByShares>{core, outputs_offset<ByShares>(false, layer)});
    }
    DEVICE void attention(int layer) {
        core.grid_barrier();
        share_attention::run<ByShares>(core, chunk, layer);
    }
};

// A pass over a long one. The producer (tile_producer.cuh) goes through the same phases.
struct ByTiles {
    static constexpr int CHUNK = tiles::CHUNK;
    static constexpr int TEAM = model::LANES == 1 ? 1 : WARPS;

    Core& core;
    Chunk chunk;
    tiles::Stages& stages;

    template <int COLUMNS>
    DEVICE static void store(u16* operand, int lane, int column, int token, const float4& v) {
        u16* piece = tiles::operand_piece(operand, COLUMNS, lane, column, token);
        store_words(piece + column % 8, make_uint2(split_weights_type(v.x, v.y).high, split_weights_type(v.z, v.w).high));
    }
    template <int COLUMNS>
    DEVICE static void store(u16* operand, int lane, int column, int token, float v) {
        tiles::operand_piece(operand, COLUMNS, lane, column, token)[column % 8] = u16(split_weights_type(v, 0.0f).high);
    }

    DEVICE void begin_phase() { stages.begin_phase(); }
    template <int PHASE, class Finish>
    DEVICE void matrix(u16*, const Finish& finish) {
        tiles::matrix<PHASE>(core, stages, chunk.tokens, finish);
    }
    DEVICE void mlp(int layer) {
        tiles::matrix<GATE_UP>(core, stages, chunk.tokens, tiles::GatedSlices{});
        begin_phase();
        matrix<DOWN>(core.params.operand_ffn, OutputStore<ByTiles>{core, outputs_offset<ByTiles>(false, layer)});
    }
    DEVICE void attention(int layer) {
        stages.begin_phase();
        tile_attention::run(core, stages, chunk.first, chunk.tokens, layer);
    }
};

// The last layer's keys and values are all that later tokens need of it.
template <class Way>
DEVICE void pass(Way way) {
    Core& core = way.core;
    const Chunk& chunk = way.chunk;
    const Params& p = core.params;
#pragma unroll 1
    for (int layer = 0; layer < model::LAYERS; ++layer) {
        core.place.layer = layer;
        core.place.position = chunk.first;
        const u16* norms = p.norms + size_t(2 * layer) * model::HIDDEN;
        normalise<Way>(core, chunk, layer ? MLP_OUTPUT : EMBEDDING, layer - 1, norms);
        way.begin_phase();
        way.template matrix<QKV>(p.operand_hidden, QkvStore<Way>{core, layer, chunk});
        if constexpr (model::QK_NORM) {
            core.grid_barrier();
            finish_heads<Way>(core, chunk, layer);
        }
        if (layer == model::LAYERS - 1) {
            core.grid_barrier();
            break;
        }
        way.attention(layer);
        way.begin_phase();
        way.template matrix<ATTN_OUT>(p.operand_heads, OutputStore<Way, model::OUT_BIAS>{core, outputs_offset<Way>(true, layer)});
        core.node_barrier();
        normalise<Way>(core, chunk, ATTENTION_OUTPUT, layer, norms + model::HIDDEN);
        way.begin_phase();
        way.mlp(layer);
        core.node_barrier();
    }
}

// Producer and consumers alike: what comes after the tokens before `at`.
DEVICE Chunk next_chunk(const Params& p, int at) {
    const int left = p.prefill_end - at;
    const bool tiled = tiles::ANY && left >= p.tiles_from;
    return {at, smaller(left, tiled ? tiles::CHUNK : shares::CHUNK), tiled};
}

}  // namespace prefill
