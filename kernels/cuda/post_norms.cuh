// POST_NORMS: the norms of a prompt's tokens where what a module produces is normalised too, before the residual stream takes it
// in. Its scale takes a look at all of it, so a token's vectors are gone through three times. Such models have one stream.
#pragma once
#include "prefill_finish.cuh"
#include "teams.cuh"

namespace post_norms {

using prefill::add;
using prefill::unpacked;

// RMSNorm's scale, from each thread's part of a token's sum of squares.
template <int TEAM>
DEVICE float rms_scale(Core& core, float squares) {
    float of_one[1] = {squares}, scale[1];
    join_squares<TEAM>(core, of_one, scale);
    return scale[0];
}

// A thread's part of a token's vectors: pieces of AT_ONCE times four elements, STRIDE apart.
template <class Way>
struct TokenVectors {
    static constexpr int QUADS = model::HIDDEN / 4, STRIDE = 32 * Way::TEAM;
    // As many as are loaded together, without a last piece of fewer if there is a way. All warps together have more loads in flight;
    // more than two each cost short prompts so many registers that decode, in the same kernel, had its own on the stack.
    DEVICE static constexpr int at_once() {
        if constexpr (Way::TEAM > 1) {
            return smaller(2, ceil_div(QUADS, STRIDE));
        } else {
            for (int n = 6; n > 2; --n) {
                if (QUADS % (n * STRIDE) == 0) return n;
            }
            return 4;
        }
    }
    static constexpr int AT_ONCE = at_once(), STEP = AT_ONCE * STRIDE;
    using Piece = float4[AT_ONCE];

    const Params& p;
    int token, thread;  // within the chunk; within the team

    // `visit(first quad)` for each piece.
    template <class Visit>
    DEVICE void each_piece(const Visit& visit) const {
#pragma unroll 1
        for (int from = thread; from < QUADS; from += STEP) visit(from);
    }
    // `visit(i, quad)` for each four elements of a piece.
    template <class Visit>
    DEVICE static void each_quad(int from, const Visit& visit) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int q = from + i * STRIDE;
            if (QUADS % STEP == 0 || q < QUADS) visit(i, q);
        }
    }
    DEVICE float4* stream(int q) const { return reinterpret_cast<float4*>(p.stream + size_t(token) * model::HIDDEN) + q; }

    DEVICE void embed(int id, int from, Piece& x) const {
        const uint2* row = reinterpret_cast<const uint2*>(p.embed + size_t(id) * model::HIDDEN);
        each_quad(from, [&](int i, int q) { x[i] = times(unpacked(__ldg(row + q)), model::EMBEDDING_SCALE); });
    }
    // The sum of what the GPUs produced of a module.
    DEVICE void load_output(const u16* outputs, int from, Piece& sum) const {
        uint2 of_gpu[model::TOTAL_LANES][AT_ONCE] = {};
        each_quad(from, [&](int i, int q) {
#pragma unroll
            for (int m = 0; m < model::TOTAL_LANES; ++m) {
                const u16* row = outputs + (size_t(m) * Way::CHUNK + token) * model::HIDDEN;
                of_gpu[m][i] = __ldcg(reinterpret_cast<const uint2*>(row) + q);
            }
        });
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            sum[i] = unpacked(of_gpu[0][i]);
#pragma unroll
            for (int m = 1; m < model::TOTAL_LANES; ++m) add(sum[i], unpacked(of_gpu[m][i]));
        }
    }
    // The stream with a module's normalised output.
    DEVICE void take_in(const u16* outputs, const uint2* post_norm, float scale, int from, Piece& x) const {
        load_output(outputs, from, x);
        each_quad(from, [&](int i, int q) {
            scale_by(x[i], __ldg(post_norm + q));
            x[i] = times(x[i], scale);
            add(x[i], __ldcg(stream(q)));
        });
    }
};

// Adds what the module before produced to the residual stream, normalised, and leaves the next one's operand. `layer` is the
// source's.
template <class Way>
DEVICE void normalise(Core& core, const prefill::Chunk& chunk, prefill::Source source, int layer, const u16* norm) {
    using Vectors = TokenVectors<Way>;
    using Piece = typename Vectors::Piece;
    static_assert(!model::POST_NORMS || model::LANES == 1, "one stream");
    constexpr int TEAM = Way::TEAM, TEAMS = WARPS / TEAM;
    core.refresh();
    const Params& p = core.params;
    const bool embeds = source == prefill::EMBEDDING, attention = source == prefill::ATTENTION_OUTPUT;
    const u16* outputs = p.outputs + (embeds ? 0 : prefill::outputs_offset<Way>(attention, layer));
    const uint2* post_norm = reinterpret_cast<const uint2*>(heads::post_norm(p, embeds ? 0 : layer, !attention));
    const int thread = int(core.warp) % TEAM * 32 + int(core.lane);
#pragma unroll 1
    for (int token = int(core.place.sm) + int(core.warp) / TEAM * model::SMS; token < chunk.tokens; token += TEAMS * model::SMS) {
        const Vectors vectors{p, token, thread};
        float post_scale = 0.0f, squares = 0.0f;
        if (!embeds) {
            vectors.each_piece([&](int from) {
                Piece output;
                vectors.load_output(outputs, from, output);
                Vectors::each_quad(from, [&](int i, int) { post_scale += dot_self(output[i]); });
            });
            post_scale = rms_scale<TEAM>(core, post_scale);
        }
        vectors.each_piece([&](int from) {
            Piece x;
            if (embeds) vectors.embed(p.ids[chunk.first + token], from, x);
            else vectors.take_in(outputs, post_norm, post_scale, from, x);
            Vectors::each_quad(from, [&](int i, int q) {
                store_words(vectors.stream(q), x[i]);
                squares += dot_self(x[i]);
            });
        });
        const float scale = rms_scale<TEAM>(core, squares);
        vectors.each_piece([&](int from) {
            Piece x;
            Vectors::each_quad(from, [&](int i, int q) { x[i] = __ldcg(vectors.stream(q)); });
            Vectors::each_quad(from, [&](int i, int q) {
                scale_by(x[i], __ldg(reinterpret_cast<const uint2*>(norm) + q));
                Way::template store<model::HIDDEN>(p.operand_hidden, 0, 4 * q, token, times(x[i], scale));
            });
        });
    }
}

}  // namespace post_norms
