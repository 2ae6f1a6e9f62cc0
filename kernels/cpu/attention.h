// Attention over a cache laid out for vectors: keys as blocks of sixteen positions, dimension by dimension, so
// that one load holds one dimension of sixteen keys; values position by position.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"
#include "mailbox.h"

namespace ml {

constexpr int kBlock = kLine;  // positions in a block of keys

// One KV head of one layer. float16, whatever the weights are.
struct CacheView {
  uint16_t* keys;    // [blocks][head_dim][16]
  uint16_t* values;  // [positions][head_dim]
  int head_dim;

  void append(int position, const float* key, const float* value) const {
    uint16_t* block = keys + int64_t(position / kBlock) * head_dim * kBlock + position % kBlock;
    for (int d = 0; d < head_dim; ++d) block[d * kBlock] = float_to_half(key[d]);
    uint16_t* row = values + int64_t(position) * head_dim;
    for (int d = 0; d < head_dim; ++d) row[d] = float_to_half(value[d]);
  }
};

// Unnormalised result of some positions: sum of e^(score - peak) * value, and the two numbers that let another
// part be added to it.
struct Partial {
  float peak = -std::numeric_limits<float>::infinity();
  float weight = 0;
};

// One query (already scaled) against positions first .. last - 1. `scores` has room for them and a block more.
// Writes head_dim floats to `out`.
static inline Partial attend(const CacheView& cache, const float* query, int first, int last, float* scores,
                             float* out) {
  const int dim = cache.head_dim;
  const int from = first / kBlock, to = (last + kBlock - 1) / kBlock;
  Partial part;
  for (int d = 0; d < dim; ++d) out[d] = 0;
  if (first >= last) return part;
  for (int b = from; b < to; ++b) {
    const uint16_t* keys = cache.keys + int64_t(b) * dim * kBlock;
    Vec even[kBlock / kWidth] = {}, odd[kBlock / kWidth] = {};
    for (int d = 0; d + 1 < dim; d += 2)
      for (int v = 0; v < kBlock / kWidth; ++v) {
        even[v] += widen<Half::kFloat16>(keys + d * kBlock + v * kWidth) * query[d];
        odd[v] += widen<Half::kFloat16>(keys + (d + 1) * kBlock + v * kWidth) * query[d + 1];
      }
    for (int v = 0; v < kBlock / kWidth; ++v) store(scores + (b - from) * kBlock + v * kWidth, even[v] + odd[v]);
  }
  // Positions outside first .. last - 1 share its end blocks; they must weigh nothing.
  const float nothing = -std::numeric_limits<float>::infinity();
  for (int p = from * kBlock; p < first; ++p) scores[p - from * kBlock] = nothing;
  for (int p = last; p < to * kBlock; ++p) scores[p - from * kBlock] = nothing;

  const int count = (to - from) * kBlock;
  Vec peaks = load(scores);
  for (int i = kWidth; i < count; i += kWidth) {
    const Vec v = load(scores + i);
    const IVec more = v > peaks;
    peaks = from_bits((bits(v) & more) | (bits(peaks) & ~more));
  }
  for (int i = 0; i < kWidth; ++i) part.peak = std::max(part.peak, peaks[i]);
  Vec total{};
  for (int i = 0; i < count; i += kWidth) {
    const Vec e = exp(load(scores + i) - part.peak);
    total += e;
    store(scores + i, e);
  }
  part.weight = sum(total);

  const float* weights = scores + (first - from * kBlock);
  const int vecs = dim / kWidth;
  const uint16_t* rows = cache.values + int64_t(first) * dim;
  constexpr int kHeld = 8;  // accumulators of one pass over the values
  for (int v0 = 0; v0 < vecs; v0 += kHeld) {
    const int now = std::min(kHeld, vecs - v0);
    Vec acc[kHeld] = {};
    if (now == kHeld) {
      for (int p = 0; p < last - first; ++p)
        for (int v = 0; v < kHeld; ++v)
          acc[v] += widen<Half::kFloat16>(rows + int64_t(p) * dim + (v0 + v) * kWidth) * weights[p];
    } else {
      for (int p = 0; p < last - first; ++p)
        for (int v = 0; v < now; ++v)
          acc[v] += widen<Half::kFloat16>(rows + int64_t(p) * dim + (v0 + v) * kWidth) * weights[p];
    }
    for (int v = 0; v < now; ++v) store(out + (v0 + v) * kWidth, acc[v]);
  }
  for (int d = vecs * kWidth; d < dim; ++d)
    for (int p = 0; p < last - first; ++p) out[d] += half_to_float(rows[int64_t(p) * dim + d]) * weights[p];
  return part;
}

// Adds `other` (its sum in `from`) to `into` (its sum in `to`).
static inline Partial merge(Partial into, float* to, Partial other, const float* from, int dim) {
  if (other.weight == 0) return into;
  if (into.weight == 0) {
    std::copy(from, from + dim, to);
    return other;
  }
  const float peak = std::max(into.peak, other.peak);
  const float mine = std::exp(into.peak - peak), theirs = std::exp(other.peak - peak);
  for (int d = 0; d < dim; ++d) to[d] = to[d] * mine + from[d] * theirs;
  return {peak, into.weight * mine + other.weight * theirs};
}

}  // namespace ml
