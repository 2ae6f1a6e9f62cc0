// The next token: the same rule and the same random numbers as engine/sampling.py and engine/philox.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "interface.h"
#include "simd.h"

namespace ml {

struct Candidate {
  float score = -std::numeric_limits<float>::infinity();
  int32_t id = INT32_MAX;
  bool beats(const Candidate& other) const {
    return score > other.score || (score == other.score && id < other.id);
  }
};

// Philox4x32-10 (Salmon et al., SC 2011).
static inline void philox(uint32_t counter0, uint32_t counter1, uint64_t seed, uint32_t out[4]) {
  uint32_t c[4] = {counter0, counter1, 0, 0};
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(c[0]) * 0xD2511F53u, b = uint64_t(c[2]) * 0xCD9E8D57u;
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  std::copy(c, c + 4, out);
}

static inline float gumbel(uint32_t word) {
  const float u = (float(word >> 9) + 0.5f) * 0x1p-23f;
  return -std::log(-std::log(u));
}
// No draw exceeds gumbel of the largest word: who lies further behind the best so far needs no draw.
constexpr float kLargestGumbel = 16.7f;

// Draws among ids first .. last - 1 whose scaled score is at least `floor`.
class Draw {
 public:
  Draw(uint64_t seed, int position) : seed_(seed), position_(uint32_t(position)) {}

  void consider(int32_t id, float score) {
    if (score + kLargestGumbel < best.score) return;
    if (id >> 2 != block_) {
      block_ = id >> 2;
      philox(uint32_t(block_), position_, seed_, words_);
    }
    const Candidate drawn{score + gumbel(words_[id & 3]), id};
    if (drawn.beats(best)) best = drawn;
  }
  Candidate best;

 private:
  uint64_t seed_;
  uint32_t position_;
  int32_t block_ = -1;
  uint32_t words_[4] = {};
};

// The k-th largest of `count` scores, 1 <= k <= count. A heap of k serves small k: after the first few hundred
// scores hardly any beats its least, and whole vectors are passed over.
static inline float kth_largest(const float* scores, int count, int k, std::vector<float>& scratch) {
  constexpr int kHeaped = 1024;
  if (k > kHeaped) {
    scratch.assign(scores, scores + count);
    std::nth_element(scratch.begin(), scratch.begin() + k - 1, scratch.end(), std::greater<float>());
    return scratch[k - 1];
  }
  std::vector<float>& heap = scratch;
  heap.assign(scores, scores + k);
  std::make_heap(heap.begin(), heap.end(), std::greater<float>());
  auto offer = [&](float score) {
    if (!(score > heap.front())) return;
    std::pop_heap(heap.begin(), heap.end(), std::greater<float>());
    heap.back() = score;
    std::push_heap(heap.begin(), heap.end(), std::greater<float>());
  };
  int i = k;
  for (; i + kWidth <= count; i += kWidth)
    if (any(load(scores + i) > heap.front()))
      for (int j = 0; j < kWidth; ++j) offer(scores[i + j]);
  for (; i < count; ++i) offer(scores[i]);
  return heap.front();
}

// The scores that are at least `least`, into `kept`.
static inline void collect(const float* scores, int count, float least, std::vector<float>& kept) {
  kept.clear();
  int i = 0;
  for (; i + kWidth <= count; i += kWidth)
    if (any(load(scores + i) >= least))
      for (int j = 0; j < kWidth; ++j)
        if (scores[i + j] >= least) kept.push_back(scores[i + j]);
  for (; i < count; ++i)
    if (scores[i] >= least) kept.push_back(scores[i]);
}

// Sum of e^(score - peak) over the scores that are at least `least`.
static inline float total_weight(const float* scores, int count, float peak, float least) {
  Vec sums{};
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Vec v = load(scores + i);
    sums += from_bits(bits(exp(v - peak)) & (v >= least));
  }
  float total = sum(sums);
  for (; i < count; ++i)
    if (scores[i] >= least) total += std::exp(scores[i] - peak);
  return total;
}

// The least score that top-k, top-p and min-p keep: whoever scores no less takes part in the draw. `scores` are
// divided by the temperature already.
static inline float filter_threshold(const float* scores, int count, const MlJob& job, std::vector<float>& scratch) {
  const float nothing = -std::numeric_limits<float>::infinity();
  float threshold = nothing;
  if (job.top_k > 0 && job.top_k < count) threshold = kth_largest(scores, count, job.top_k, scratch);
  const float peak = kth_largest(scores, count, 1, scratch);
  if (job.top_p < 1.0f) {
    const float total = total_weight(scores, count, peak, threshold);
    // All that weigh less than this weigh together less than 1 - top_p: the walk down ends before it meets them.
    const float lightest = (1.0f - job.top_p) * total / float(count);
    collect(scores, count, std::max(threshold, peak + std::log(lightest)), scratch);
    std::sort(scratch.begin(), scratch.end(), std::greater<float>());
    float before = 0;
    for (size_t i = 0; i < scratch.size() && (i == 0 || before < job.top_p); ++i) {
      threshold = scratch[i];
      before += std::exp(scratch[i] - peak) / total;
    }
  }
  if (job.min_p > 0) {
    // e^(score - peak) >= min_p, compared as the reference compares it: the border is settled by the weights.
    collect(scores, count, std::max(threshold, peak + std::log(job.min_p) - 1e-3f), scratch);
    float least = std::numeric_limits<float>::infinity();
    for (float s : scratch)
      if (std::exp(s - peak) >= job.min_p) least = std::min(least, s);
    threshold = std::max(threshold, least);
  }
  return threshold;
}

}  // namespace ml
