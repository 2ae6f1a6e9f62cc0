// What a family does to heads of queries and keys beside their rotation: biases, and a norm over each head.
//
// A bias belongs to a row and is added where a pair of rows is finished. A norm needs a head's whole sum of squares, and
// its rows come from many SMs: with QK_NORM, queries and keys travel as they are, and whoever reads a whole head (attention in
// decode, a step of its own in prefill) normalises it, rotates it, and appends the key to the cache.
#pragma once
#include "matvec.cuh"

namespace heads {

constexpr int QUADS = model::HEAD_DIM / 4;     // four elements each
constexpr int EACH = ceil_div(QUADS, 32);      // that a lane has of a head
constexpr int HALF_QUADS = QUADS / 2;          // ROPE_HALF: how far a quad is from the one that it turns with
static_assert(!model::QK_NORM || model::HEAD_DIM % 8 == 0, "halves of whole quads");

// Behind the norms lie the rows of all routers (router.cuh). Then, for each layer, the biases of queries, keys and values of all
// GPUs, the scales of a head of queries and of one of keys, all GPUs' sinks, and the bias of what attention adds
// (engine/backends/cuda/memory.py).
constexpr size_t ROUTERS = size_t(model::LAYERS) * model::EXPERTS * model::HIDDEN;
constexpr int BIASES = model::QKV_BIAS ? model::RANKS * (model::Q_DIM + 2 * model::KV_DIM) : 0;
constexpr int SCALES = model::QK_NORM ? 2 * model::HEAD_DIM : 0;
constexpr int SINKS = model::SINKS ? model::RANKS * model::HEADS : 0;
constexpr int OUT_BIASES = model::OUT_BIAS ? model::HIDDEN : 0;
static_assert(!model::QK_NORM || SINKS % 4 == 0, "scales are read in words of four");

DEVICE const u16* of_layer(const Params& p, int layer) {
    return p.norms + size_t(2 * model::LAYERS + 1) * model::HIDDEN + ROUTERS + size_t(layer) * (BIASES + SCALES + SINKS + OUT_BIASES);
}

// Layers may differ in their rotation, or have none: one table of CAPACITY positions for each kind.
__constant__ const u8 ROTATIONS[] = MODEL_ROTATIONS;

// Cosines and sines of a head's turns in a layer.
DEVICE const float2* rotation(const Params& p, int layer, int position) {
    const int table = model::ROTATION_TABLES > 1 ? ROTATIONS[layer] : 0;
    return p.rotation + (size_t(table) * model::CAPACITY + position) * (model::HEAD_DIM / 2);
}

// POST_NORMS: the norm of what a module adds to the stream, of attention or (`mlp`) of the MLP; behind all of the above.
DEVICE const u16* post_norm(const Params& p, int layer, bool mlp) {
    return of_layer(p, model::LAYERS) + size_t(2 * layer + mlp) * model::HIDDEN;
}

// `first_row`: of the kind's rows in all GPUs' biases; `rows`: how many of them this GPU has.
DEVICE float bias(const Params& p, int layer, int first_row, int rows, int row) {
    return weight_low(__ldg(of_layer(p, layer) + first_row + p.rank * rows + row));
}

// The score that a query head has beside those of its positions.
DEVICE float sink(const Params& p, int layer, int head) {
    return weight_low(__ldg(of_layer(p, layer) + BIASES + SCALES + p.rank * model::HEADS + head));
}
// Of two rows of what attention adds to the residual stream, from an even one.
DEVICE float2 out_bias(const Params& p, int layer, int row) {
    const u16* from = of_layer(p, layer) + BIASES + SCALES + SINKS + row;
    return make_float2(weight_low(__ldg(from)), weight_low(__ldg(from + 1)));
}

// The scales of a lane's quads, and of those that they turn with.
struct Scales {
    uint2 own[EACH], other[EACH];

    DEVICE Scales(const Params& p, int layer, bool key, u32 lane) {
        const uint2* scales = reinterpret_cast<const uint2*>(of_layer(p, layer) + BIASES + (key ? model::HEAD_DIM : 0));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int q = i * 32 + int(lane);
            own[i] = other[i] = make_uint2(0, 0);
            if (q >= QUADS) continue;
            own[i] = __ldg(scales + q);
            if (model::ROPE_HALF) other[i] = __ldg(scales + (q < HALF_QUADS ? q + HALF_QUADS : q - HALF_QUADS));
        }
    }
};

// Cosines and sines of a lane's quads at a position: of four turns with ROPE_HALF, else of
// the two turns within the quad.
struct Turns {
    float4 first[EACH], second[EACH];  // cos, sin, cos, sin

    DEVICE Turns(const Params& p, int layer, int position, u32 lane) {
        const float4* table = reinterpret_cast<const float4*>(rotation(p, layer, position));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int q = i * 32 + int(lane);
            first[i] = second[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (q >= QUADS) continue;
            first[i] = __ldg(table + (model::ROPE_HALF ? q % HALF_QUADS * 2 : q));
            if (model::ROPE_HALF) second[i] = __ldg(table + q % HALF_QUADS * 2 + 1);
        }
    }
};

// A lane's quads of COUNT heads, normalised and rotated, side by side. `load(h, q)` is quad q of head h as it came, `scales_of(h)` what its
// norm has; all lanes of a warp call this together, and nobody may write to where they read from before all have.
template <int COUNT>
struct Finished {
    float4 quads[COUNT][EACH];

    template <class Load, class ScalesOf>
    DEVICE Finished(const Load& load, const ScalesOf& scales_of, const Turns& turns, u32 lane) {
        float squares[COUNT] = {};
#pragma unroll
        for (int h = 0; h < COUNT; ++h) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int q = i * 32 + int(lane);
                quads[h][i] = q < QUADS ? load(h, q) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                squares[h] += dot_self(quads[h][i]);
            }
        }
        warp_sums(squares);
#pragma unroll
        for (int h = 0; h < COUNT; ++h) {
            const float inverse = rsqrtf(squares[h] * (1.0f / float(model::HEAD_DIM)) + model::NORM_EPS);
            const Scales scales = scales_of(h);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int q = i * 32 + int(lane);
                if (q < QUADS) turn(quads[h][i], inverse, scales.own[i], scales.other[i], turns, i, q, [&](int at) { return load(h, at); });
            }
        }
    }

private:
    template <class Load>
    DEVICE static void turn(float4& quad, float inverse, uint2 scale, uint2 other_scale, const Turns& turns, int i, int q, const Load& load) {
        float4 own = quad;
        scale_by(own, scale);
        own = times(own, inverse);
        const float4 a = turns.first[i], b = turns.second[i];
        if constexpr (model::ROPE_HALF) {
            float4 other = load(q < HALF_QUADS ? q + HALF_QUADS : q - HALF_QUADS);
            scale_by(other, other_scale);
            const float side = q < HALF_QUADS ? -inverse : inverse;
            quad = make_float4(own.x * a.x + other.x * side * a.y, own.y * a.z + other.y * side * a.w,
                               own.z * b.x + other.z * side * b.y, own.w * b.z + other.w * side * b.w);
        } else {
            quad = make_float4(own.x * a.x - own.y * a.y, own.y * a.x + own.x * a.y,
                               own.z * a.z - own.w * a.w, own.w * a.z + own.z * a.w);
        }
    }
};

}  // namespace heads
