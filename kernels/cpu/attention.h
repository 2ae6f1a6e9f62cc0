// Attention over a cache laid out for vectors: keys as blocks of sixteen positions, dimension by dimension, so
// that one load holds one dimension of sixteen keys; values position by position.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cached_number.h"
#include "plan.h"
#include "simd.h"
#include "tiles.h"

namespace ml {

// One KV head of one layer, in a number of cached_number.h, whatever the weights are.
struct CacheView {
  uint8_t* keys;    // [blocks][head_dim][16]
  uint8_t* values;  // [positions][head_dim]
  int head_dim;
  bool fp8;
  float cap = 0;  // of the scores: cap * tanh(score / cap), 0 is none

  // Calls `use` with Float16 or E4m3.
  template <class Use>
  static void in_format(bool fp8, Use&& use) {
    fp8 ? use(E4m3{}) : use(Float16{});
  }
  template <class Number>
  typename Number::Word* key_block(int block) const {
    return reinterpret_cast<typename Number::Word*>(keys) + int64_t(block) * head_dim * kBlock;
  }
  template <class Number>
  typename Number::Word* value_row(int position) const {
    return reinterpret_cast<typename Number::Word*>(values) + int64_t(position) * head_dim;
  }
  int64_t bytes(int64_t positions) const { return positions * head_dim * (fp8 ? 1 : 2); }

  void append(int position, const float* key, const float* value) const {
    in_format(fp8, [&](auto number) {
      using Number = decltype(number);
      auto* block = key_block<Number>(position / kBlock) + position % kBlock;
      for (int d = 0; d < head_dim; ++d) block[d * kBlock] = Number::narrow(key[d]);
      auto* row = value_row<Number>(position);
      for (int d = 0; d < head_dim; ++d) row[d] = Number::narrow(value[d]);
    });
  }
  // What is kept of a position.
  void read(int position, float* key, float* value) const {
    in_format(fp8, [&](auto number) {
      using Number = decltype(number);
      const auto* block = key_block<Number>(position / kBlock) + position % kBlock;
      for (int d = 0; d < head_dim; ++d) key[d] = Number::to_float(block[d * kBlock]);
      const auto* row = value_row<Number>(position);
      for (int d = 0; d < head_dim; ++d) value[d] = Number::to_float(row[d]);
    });
  }
};

// Nothing to prefetch.
struct NoLines {
  void prefetch(int) {}
};

// Unnormalised result of some positions: sum of e^(score - peak) * value, and the two numbers that let another
// part be added to it.
struct Partial {
  float peak = -std::numeric_limits<float>::infinity();
  float weight = 0;
};

// Scores of kQueries queries (already scaled, `dim` apart) against kBlocks blocks of keys: each key is widened once, each
// query is broadcast once. For each line of keys one of `ahead` is prefetched.
template <int kQueries, int kBlocks, class Number, class Lines>
static inline void score_blocks(const typename Number::Word* keys, const float* queries, int dim, float* scores, int64_t stride,
                                Lines ahead) {
  constexpr int kVecs = kBlocks * kBlock / kWidth, kInBlock = kBlock / kWidth;
  Vec even[kQueries][kVecs] = {}, odd[kQueries][kVecs] = {};
  for (int d = 0; d < dim; d += 2) {
    ahead.prefetch(kBlocks);
    for (int v = 0; v < kVecs; ++v) {
      const auto* at = keys + (int64_t(v / kInBlock) * dim + d) * kBlock + v % kInBlock * kWidth;
      const Vec a = Number::shrunk(at), b = Number::shrunk(at + kBlock);
      for (int q = 0; q < kQueries; ++q) {
        even[q][v] += a * queries[q * dim + d];
        odd[q][v] += b * queries[q * dim + d + 1];
      }
    }
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kVecs; ++v) store(scores + q * stride + v * kWidth, (even[q][v] + odd[q][v]) * Number::kShrunk);
}

// Scores become weights e^(score - peak), in place.
static inline Partial soften(float* scores, int count) {
  Partial part;
  Vec peaks = load(scores);
  for (int i = kWidth; i < count; i += kWidth) peaks = larger(load(scores + i), peaks);
  part.peak = largest(peaks);
  Vec total{};
  for (int i = 0; i < count; i += kWidth) {
    const Vec e = exp(load(scores + i) - part.peak);
    total += e;
    store(scores + i, e);
  }
  part.weight = sum(total);
  return part;
}

// Adds kTile vectors of the values' width, weighted, to what `out` has, for kQueries sets of weights.
template <int kQueries, int kTile, class Number, class Meanwhile>
static inline void mix_tile(const typename Number::Word* rows, int dim, int positions, const float* weights, int64_t stride,
                            float* out, int64_t out_stride, Meanwhile&& meanwhile) {
  constexpr int kBytes = kTile * kWidth * int(sizeof *rows);
  Vec acc[kQueries][kTile];
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kTile; ++v) acc[q][v] = load(out + q * out_stride + v * kWidth);
  for (int start = 0; start < positions; start += kBlock) {
    const int end = std::min(start + kBlock, positions);
    auto ahead = meanwhile((end - start) * kBytes);
    for (int p = start; p < end; ++p) {
      ahead.prefetch((kBytes + 63) / 64);
      for (int v = 0; v < kTile; ++v) {
        const Vec value = Number::shrunk(rows + int64_t(p) * dim + v * kWidth);
        for (int q = 0; q < kQueries; ++q) acc[q][v] += value * weights[q * stride + p];
      }
    }
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < kTile; ++v) store(out + q * out_stride + v * kWidth, acc[q][v]);
}

// Values of `positions`, weighted and added up, but for their last dim % kWidth numbers. Where a row has more vectors than are
// added up at once, some positions meet all of its tiles before the next ones do: so the cache is read in the order in which it
// lies and is prefetched.
template <int kQueries, int kTile, class Number, class Meanwhile>
static inline void mix(const typename Number::Word* rows, int dim, int positions, const float* weights, int64_t stride, float* out,
                       int64_t out_stride, Meanwhile&& meanwhile) {
  const int vecs = dim / kWidth, run = vecs > kTile ? 2 * kBlock : positions;
  for (int q = 0; q < kQueries; ++q) std::fill_n(out + q * out_stride, vecs * kWidth, 0.0f);
  for (int start = 0; start < positions; start += run) {
    const int now = std::min(run, positions - start);
    const auto* from = rows + int64_t(start) * dim;
    int v = 0;
    for (; v + kTile <= vecs; v += kTile)
      mix_tile<kQueries, kTile, Number>(from + v * kWidth, dim, now, weights + start, stride, out + v * kWidth, out_stride, meanwhile);
    for (; v < vecs; ++v)
      mix_tile<kQueries, 1, Number>(from + v * kWidth, dim, now, weights + start, stride, out + v * kWidth, out_stride, meanwhile);
  }
  for (int q = 0; q < kQueries; ++q)
    for (int v = 0; v < vecs; ++v) {
      float* sums = out + q * out_stride + v * kWidth;
      store(sums, load(sums) * Number::kShrunk);
    }
}

// How many queries share a pass over the cache in decode, where a head has few, and at most: as many as the registers hold.
constexpr int kTogether = 4, kMostTogether = kWidth == 16 ? 12 : kTogether;

// kQueries queries of one KV head, each against the positions that it has `seen`; none has seen nothing. `scores` has room for
// kQueries rows of `stride`, each the positions of all and a block more. Writes head_dim floats, out_stride apart, and `parts`;
// what a query gives does not depend on the others.
template <int kQueries, class Number, class Meanwhile>
static inline void attend_some(const CacheView& cache, const float* queries, const Range* seen, float* scores, int64_t stride,
                               float* out, int64_t out_stride, Partial* parts, Meanwhile&& meanwhile) {
  constexpr int kBlocksAtOnce = kWidth == 16 && kQueries <= kTogether ? 2 : 1, kTile = kQueries <= kTogether ? 4 : 2;
  int first = seen[0].first, last = seen[0].last;
  for (int q = 1; q < kQueries; ++q) {
    first = std::min(first, seen[q].first);
    last = std::max(last, seen[q].last);
  }
  const int dim = cache.head_dim, from = first / kBlock, to = (last + kBlock - 1) / kBlock;
  const int block_bytes = kBlock * dim * int(sizeof(typename Number::Word));
  int b = from;
  for (; b + kBlocksAtOnce <= to; b += kBlocksAtOnce)
    score_blocks<kQueries, kBlocksAtOnce, Number>(cache.key_block<Number>(b), queries, dim, scores + (b - from) * kBlock, stride,
                                                  meanwhile(kBlocksAtOnce * block_bytes));
  for (; b < to; ++b)
    score_blocks<kQueries, 1, Number>(cache.key_block<Number>(b), queries, dim, scores + (b - from) * kBlock, stride,
                                      meanwhile(block_bytes));
  // Positions that a query has not seen share its end blocks, or others have seen them; they must weigh nothing.
  const float nothing = -std::numeric_limits<float>::infinity();
  for (int q = 0; q < kQueries; ++q) {
    float* row = scores + q * stride;
    soft_cap(row, (to - from) * kBlock, cache.cap);
    std::fill(row, row + (seen[q].first - from * kBlock), nothing);
    std::fill(row + (seen[q].last - from * kBlock), row + (to - from) * kBlock, nothing);
    parts[q] = soften(row, (to - from) * kBlock);
  }
  const float* weights = scores + (first - from * kBlock);
  const auto* rows = cache.value_row<Number>(first);
  const int vecs = dim / kWidth, positions = last - first;
  mix<kQueries, kTile, Number>(rows, dim, positions, weights, stride, out, out_stride, meanwhile);
  for (int q = 0; q < kQueries; ++q)
    for (int d = vecs * kWidth; d < dim; ++d) {
      float total = 0;
      for (int p = 0; p < positions; ++p)
        total += Number::to_float(rows[int64_t(p) * dim + d]) * weights[q * stride + p];
      out[q * out_stride + d] = total;
    }
}

// As attend_some, for any number of queries, at most kMost of them in a pass. `meanwhile` is told every few hundred
// multiplications how many bytes of the cache they read, and says what to prefetch among them (a Stretch, or NoLines).
template <int kMost, class Meanwhile>
static inline void attend(const CacheView& cache, const float* queries, int count, const Range* seen, float* scores,
                          int64_t stride, float* out, int64_t out_stride, Partial* parts, Meanwhile&& meanwhile) {
  CacheView::in_format(cache.fp8, [&](auto number) {
    in_tiles<kMost>(count, [&](auto now, int q) {
      attend_some<now, decltype(number)>(cache, queries + int64_t(q) * cache.head_dim, seen + q, scores, stride,
                                         out + q * out_stride, out_stride, parts + q, meanwhile);
    });
  });
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
