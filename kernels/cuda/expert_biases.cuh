// Biases of routers and experts.
#pragma once
#include "heads.cuh"

namespace experts {

// Behind the vectors of all layers' heads: for each layer the router's biases, then of each expert those of gates, of ups and of
// downs; of gates and ups those of all GPUs (engine/backends/cuda/memory.py).
constexpr int WHOLE_COLUMNS = model::RANKS * COLUMNS;
constexpr int EXPERT_BIASES = 2 * WHOLE_COLUMNS + model::HIDDEN;
DEVICE const u16* biases(const Params& p, int layer) {
    return heads::of_layer(p, model::LAYERS) + size_t(layer) * (model::EXPERTS + size_t(model::EXPERTS) * EXPERT_BIASES);
}
DEVICE float router_bias(const Params& p, int layer, int expert) { return weight_low(__ldg(biases(p, layer) + expert)); }
DEVICE const u16* biases_of(const Params& p, int layer, int expert) {
    return biases(p, layer) + model::EXPERTS + size_t(expert) * EXPERT_BIASES;
}
// Of an expert's gate and its up.
DEVICE float2 gate_up_bias_of(const Params& p, int layer, int expert, int column) {
    const u16* from = biases_of(p, layer, expert) + p.rank * COLUMNS + column;
    return make_float2(weight_low(__ldg(from)), weight_low(__ldg(from + WHOLE_COLUMNS)));
}
DEVICE float2 gate_up_bias(const Params& p, const Met& met, int layer, int pair) {
    return gate_up_bias_of(p, layer, met.chosen[pair / COLUMNS], pair % COLUMNS);
}
// Of two rows of an expert's outputs, from an even one.
DEVICE float2 down_bias_of(const Params& p, int layer, int expert, int row) {
    const u16* from = biases_of(p, layer, expert) + 2 * WHOLE_COLUMNS + row;
    return make_float2(weight_low(__ldg(from)), weight_low(__ldg(from + 1)));
}
// Of two rows from an even one, all experts that are met, each as it counts.
DEVICE float2 down_bias(const Params& p, const Met& met, int layer, int row) {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int slot = 0; slot < model::CHOSEN; ++slot) {
        const float2 bias = down_bias_of(p, layer, met.chosen[slot], row);
        sum.x += met.weights[slot] * bias.x;
        sum.y += met.weights[slot] * bias.y;
    }
    return sum;
}

}  // namespace experts
