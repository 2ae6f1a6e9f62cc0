// Prefill: a chunk of prompt tokens a pass of the tape. Long chunks go by tiles (tiles.cuh), short ones by each SM's share
// of rows (shares.cuh). Phases are parted by a barrier of all SMs: they last tens of microseconds here, and plain buffers
// then do in place of mailboxes.
#pragma once
#include "last_token.cuh"
#include "post_norms.cuh"
#include "share_attention.cuh"
#include "teams.cuh"
#include "tile_producer.cuh"

namespace prefill {

// Some of a thread's part of a token's residual streams, of all lanes of this GPU: AT_ONCE times four elements, STRIDE apart. What
// does not fit is read again for the second look at it: one long stretch of code takes longer to fetch than that.
template <class Way>
struct Streams {
    static constexpr int QUADS = model::HIDDEN / 4, STRIDE = 32 * Way::TEAM;
    // What registers hold of four elements: the streams, this GPU's outputs of two layers, what is known of other GPUs'.
    static constexpr int TOLD = TELLS_SUMS ? 1 : model::LANES, WORDS = 8 * model::LANES + (model::RANKS > 1 ? 2 * model::RANKS * TOLD : 0);
    DEVICE static constexpr int at_once() {
        for (int n = larger(1, smaller(12 / model::LANES, 108 / WORDS)); n > 1; --n) {
            if (QUADS % (n * STRIDE) == 0) return n;
        }
        return smaller(ceil_div(QUADS, STRIDE), larger(1, 64 / WORDS));
    }
    static constexpr int AT_ONCE = at_once(), STEP = AT_ONCE * STRIDE;
    static constexpr bool WHOLE_STEPS = QUADS % STEP == 0, HELD = QUADS <= STEP;
    const Params& p;
    int token, parts, first_quad;  // parts: in which one lane's output lies
    float4 x[model::LANES][AT_ONCE];

    template <class Visit>
    DEVICE void each(const Visit& visit) const {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int q = first_quad + i * STRIDE;
            if (WHOLE_STEPS || q < QUADS) visit(i, q);
        }
    }
    DEVICE float4* stream(int lane, int q) const {
        return reinterpret_cast<float4*>(p.stream + (size_t(lane) * Way::CHUNK + token) * model::HIDDEN) + q;
    }
    // Where a lane of the whole model leaves what it has produced, from `outputs` on.
    DEVICE uint2* output(u16* outputs, size_t of_layer, int lane, int q) const {
        return reinterpret_cast<uint2*>(outputs + of_layer + (size_t(lane) * Way::CHUNK + token) * model::HIDDEN) + q;
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
    DEVICE void load_weights(const u16* norm, uint2 (&weights)[AT_ONCE]) const {
        each([&](int i, int q) { weights[i] = __ldg(reinterpret_cast<const uint2*>(norm) + q); });
    }
    // Takes in what a module of a layer produced. Each kind loads all that it needs before it uses any of it: a wait is a round
    // trip to memory.
    DEVICE void take_in(bool attention, int layer, int exchange) {
        const size_t now = outputs_offset<Way>(attention, layer);
        if (any_exchange(EXCHANGE_SYNC) && exchange == EXCHANGE_SYNC) return take_in_all(now);
        if (any_exchange(EXCHANGE_DELAYED) && exchange == EXCHANGE_DELAYED) {
            return take_in_late(now, outputs_offset<Way>(attention, layer - model::DELAY), told_later(attention, layer));
        }
        take_in_own(now, told_later(attention, layer));
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

private:
    using Outputs = uint2[model::LANES][AT_ONCE];  // of this GPU's lanes

    DEVICE int first_lane() const { return model::RANKS == 1 ? 0 : p.rank * model::LANES; }
    DEVICE static bool told_later(bool attention, int layer) {
        return TELLS_SUMS && layer + model::DELAY < model::LAYERS && exchange_of(attention, layer + model::DELAY) == EXCHANGE_DELAYED;
    }
    DEVICE bool of_another(int told) const { return model::RANKS > 1 && told / TOLD != p.rank; }
    DEVICE void load(Outputs& outputs, size_t of_layer) const {
        each([&](int i, int q) {
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) outputs[l][i] = __ldcg(output(p.outputs, of_layer, first_lane() + l, q));
        });
    }
    // Other GPUs' lanes need no more of this GPU's than the sum, and not before DELAY layers have passed.
    DEVICE void tell(const Outputs& outputs, size_t of_layer) const {
        if constexpr (TELLS_SUMS) {
            each([&](int i, int q) {
                float4 sum = {};
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) add(sum, unpacked(outputs[l][i]));
                const uint2 words = make_uint2(split_weights_type(sum.x, sum.y).high, split_weights_type(sum.z, sum.w).high);
                for_each_peer(p, [&](const Peer& peer) { store_words(output(peer.outputs, of_layer, first_lane(), q), words); });
            });
        }
    }
    DEVICE void take_in_own(size_t now, bool told) {
        if constexpr (Way::MOST_PARTS > 1) return take_in_parts(now);
        Outputs own = {};
        load();
        load(own, now);
        each([&](int i, int q) {
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) add(x[l][i], unpacked(own[l][i]), model::SQRT_LANES);
        });
        if (told) tell(own, now);
    }
    // Two at a time: there are one, two, four or eight.
    DEVICE void take_in_parts(size_t first) {
        const size_t apart = size_t(Way::CHUNK / parts) * model::HIDDEN;
        load();
#pragma unroll 1
        for (int part = 0; part < parts; part += 2) {
            Outputs one = {}, other = {};
            load(one, first + part * apart);
            if (parts > 1) load(other, first + (part + 1) * apart);
            each([&](int i, int) {
                add(x[0][i], unpacked(one[0][i]));
                add(x[0][i], unpacked(other[0][i]));
            });
        }
    }
    DEVICE void take_in_late(size_t now, size_t late, bool told) {
        Outputs own = {}, own_late = {};  // unset on some path they would be live, and spilled, all the way back to the start
        uint2 others[model::RANKS * TOLD][AT_ONCE] = {};
        load();
        load(own, now);
        load(own_late, late);
        each([&](int i, int q) {
#pragma unroll
            for (int k = 0; k < model::RANKS * TOLD; ++k) {
                if (of_another(k)) others[k][i] = __ldcg(output(p.outputs, late, k / TOLD * model::LANES + k % TOLD, q));
            }
        });
        each([&](int i, int q) {
            float4 sum = {};
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) {
                add(x[l][i], unpacked(own[l][i]));
                add(sum, unpacked(own_late[l][i]));
            }
#pragma unroll
            for (int k = 0; k < model::RANKS * TOLD; ++k) {
                if (model::RANKS > 1) add(sum, unpacked(others[k][i]));
            }
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) {
                add(x[l][i], sum);
                add(x[l][i], unpacked(own_late[l][i]), -1.0f);
            }
        });
        if (told) tell(own, now);
    }
    DEVICE void take_in_all(size_t now) {
        uint2 all[model::TOTAL_LANES][AT_ONCE] = {};
        load();
        each([&](int i, int q) {
#pragma unroll
            for (int m = 0; m < model::TOTAL_LANES; ++m) all[m][i] = __ldcg(output(p.outputs, now, m, q));
        });
        each([&](int i, int q) {
            float4 sum = {};
#pragma unroll
            for (int m = 0; m < model::TOTAL_LANES; ++m) add(sum, unpacked(all[m][i]));
#pragma unroll
            for (int l = 0; l < model::LANES; ++l) add(x[l][i], sum);
        });
    }
};

// Adds what the module before produced to the residual streams and leaves the normalised operand. `layer` is the source's.
// A team of warps takes a token of all lanes: what other lanes produced is then read once.
template <class Way>
DEVICE void normalise(Core& core, const Chunk& chunk, Source source, int layer, const u16* norm) {
    using Part = Streams<Way>;
    constexpr int TEAM = Way::TEAM, TEAMS = WARPS / TEAM;
    core.refresh();
    const Params& p = core.params;
    const bool attention = source == ATTENTION_OUTPUT;
    const int exchange = source == EMBEDDING ? EXCHANGE_LOCAL : exchange_of(attention, layer);
    const int first_quad = int(core.warp) % TEAM * 32 + int(core.lane);
    const int parts = source == EMBEDDING ? 1 : Way::parts(attention, chunk.tokens);
#pragma unroll 1
    for (int token = int(core.place.sm) + int(core.warp) / TEAM * model::SMS; token < chunk.tokens; token += TEAMS * model::SMS) {
        float squares[model::LANES] = {}, scale[model::LANES];
        Part part{p, token, parts, first_quad};
        uint2 weights[Part::AT_ONCE] = {};
        if constexpr (Part::HELD) part.load_weights(norm, weights);
#pragma unroll 1
        for (part.first_quad = first_quad; part.first_quad < Part::QUADS; part.first_quad += Part::STEP) {
            if (source == EMBEDDING) part.embed(p.ids[chunk.first + token]);
            else part.take_in(attention, layer, exchange);
            part.store(squares);
        }
        join_squares<TEAM>(core, squares, scale);
#pragma unroll 1
        for (part.first_quad = first_quad; part.first_quad < Part::QUADS; part.first_quad += Part::STEP) {
            if constexpr (!Part::HELD) {
                part.load();
                part.load_weights(norm, weights);
            }
            part.each([&](int i, int) {
#pragma unroll
                for (int l = 0; l < model::LANES; ++l) scale_by(part.x[l][i], weights[i]);
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
        const heads::Finished<1> done([&](int, int q) { return __ldcg(row + q); }, [&](int) { return scales; }, turns, lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < heads::EACH; ++i) {
            const int q = i * 32 + int(lane);
            if (q >= heads::QUADS) continue;
            const float4 v = done.quads[0][i];
            if (!key) {
                row[q] = v;
                continue;
            }
            append_key(core.params.kv, layer, position, head - model::HEADS, q, cache::rounded(v));
        }
    }
}

// A pass over a short chunk.
struct ByShares {
    static constexpr int CHUNK = shares::CHUNK;
    static constexpr int TEAM = WARPS, MOST_PARTS = 1;

    Core& core;
    Chunk chunk;

    DEVICE static int parts(bool, int) { return 1; }
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

    template <bool TELLS = false>
    DEVICE void begin_phase() {
        core.template grid_barrier<TELLS>();
    }
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

// Warps that keep a token's stream in registers, if it is a whole number of steps: a dozen times four elements a thread at most.
DEVICE constexpr int fewest_that_hold(int quads) {
    int warps = 1;
    while (warps < WARPS && quads > 12 * 32 * warps) warps *= 2;
    return warps;
}

// A pass over a long one. The producer (tile_producer.cuh) goes through the same phases.
struct ByTiles {
    static constexpr int CHUNK = tiles::CHUNK;
    static constexpr int TEAM = model::LANES == 1 ? fewest_that_hold(model::HIDDEN / 4) : WARPS;
    static constexpr int MOST_PARTS = tiles::in_parts(ATTN_OUT) || tiles::in_parts(DOWN) ? tiles::MOST_PARTS : 1;

    Core& core;
    Chunk chunk;
    tiles::Stages& stages;

    // In how many a module's output of so many tokens lies.
    DEVICE static int parts(bool attention, int tokens) {
        if constexpr (MOST_PARTS > 1) return attention ? tiles::best_split<ATTN_OUT>(tokens).parts : tiles::best_split<DOWN>(tokens).parts;
        else return 1;
    }
    template <int COLUMNS>
    DEVICE static void store(u16* operand, int lane, int column, int token, const float4& v) {
        u16* piece = tiles::operand_piece(operand, COLUMNS, lane, column, token);
        store_words(piece + column % 8, make_uint2(split_weights_type(v.x, v.y).high, split_weights_type(v.z, v.w).high));
    }
    template <int COLUMNS>
    DEVICE static void store(u16* operand, int lane, int column, int token, float v) {
        tiles::operand_piece(operand, COLUMNS, lane, column, token)[column % 8] = u16(split_weights_type(v, 0.0f).high);
    }

    template <bool TELLS = false>
    DEVICE void begin_phase() {
        stages.template begin_phase<TELLS>();
    }
    template <int PHASE, class Finish>
    DEVICE void matrix(u16*, const Finish& finish) {
        tiles::matrix<PHASE>(core, stages, chunk.tokens, finish);
    }
    DEVICE void mlp(int layer) {
        tiles::matrix<GATE_UP>(core, stages, chunk.tokens, tiles::GatedSlices<tiles::LaneMlp>{{core}});
        begin_phase();
        matrix<DOWN>(core.params.operand_ffn, OutputStore<ByTiles>{core, outputs_offset<ByTiles>(false, layer)});
    }
    DEVICE void attention(int layer) {
        stages.begin_phase();
        tile_attention::run(core, stages, chunk.first, chunk.tokens, layer);
    }
};

// Norm and the barrier behind it. With TELLS_SUMS no GPU waits for what the others do meanwhile: what this norm reads of them they
// told two norms ago or before, and what lies where it tells them they had read by then.
template <class Way>
DEVICE void begin_module(Way& way, Source source, int layer, const u16* norm) {
    Core& core = way.core;
    if constexpr (TELLS_SUMS) core.await_ranks(core.told[0]);
    if constexpr (model::POST_NORMS) post_norms::normalise<Way>(core, way.chunk, source, layer, norm);
    else normalise<Way>(core, way.chunk, source, layer, norm);
    way.template begin_phase<TELLS_SUMS>();
    if constexpr (TELLS_SUMS) {
        core.told[0] = core.told[1];
        core.told[1] = core.node_barriers;
    }
}

// All SMs have stored what a module produces, and all GPUs unless they tell each other sums of it.
DEVICE void end_module(Core& core) {
    if constexpr (TELLS_SUMS) core.grid_barrier();
    else core.node_barrier();
}

// The last layer's keys and values are all that later tokens need of it; the last token's way through it is decode's.
template <class Way>
DEVICE void pass(Way way, const Layers& layers = {0, model::LAYERS}) {
    Core& core = way.core;
    const Chunk& chunk = way.chunk;
    const Params& p = core.params;
#pragma unroll 1
    for (int layer = layers.first; layer < layers.end; ++layer) {
        core.place.layer = layer;
        core.place.position = chunk.first;
        const u16* norms = p.norms + size_t(2 * layer) * model::HIDDEN;
        begin_module(way, layer ? MLP_OUTPUT : EMBEDDING, layer - 1, norms);
        if constexpr (last_token::TAKEN_ALONG) {
            if (layer == last_token::LAYER && chunk.has_last(p)) last_token::hand_over<Way>(core, chunk.tokens - 1);
        }
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
        end_module(core);
        begin_module(way, ATTENTION_OUTPUT, layer, norms + model::HIDDEN);
        way.mlp(layer);
        end_module(core);
    }
}

// Producer and consumers alike: what comes after the tokens before `at`. The last token of the prompt goes along where there is room,
// unless the launch is one of a backend whose requests may share launches: those decode it, and it would get other bits alone.
DEVICE Chunk next_chunk(const Params& p, int at) {
    const int left = p.prefill_end - at, last = last_token::TAKEN_ALONG ? p.last_along : 0;
    const bool tiled = tiles::ANY && left >= p.tiles_from;
    return {at, smaller(left + last, tiled ? tiles::CHUNK : shares::CHUNK), tiled};
}

}  // namespace prefill
