// What the two halves of an MLP become before its last matrix: engine/activations.py has the formulas.
#pragma once

#include "contract.h"
#include "simd.h"

namespace ml {

struct Gate {
  explicit Gate(const MlShape& s) : activation(s.activation), limit(s.swiglu_limit) {}

  Vec operator()(Vec gate, Vec up) const {
    switch (activation) {
      case ML_GELU_TANH: return gelu(gate) * up;
      case ML_CLAMPED_SWIGLU: return clamped(gate, up);
      default: return silu(gate) * up;
    }
  }

 private:
  Vec clamped(Vec gate, Vec up) const {
    const Vec bottom = splat(-limit);
    const Vec g = -larger(bottom, -gate), u = larger(bottom, -larger(bottom, -up));
    return g / (1.0f + exp(-larger(splat(-87.0f), 1.702f * g))) * (u + 1.0f);
  }

  int activation;
  float limit;
};

}  // namespace ml
