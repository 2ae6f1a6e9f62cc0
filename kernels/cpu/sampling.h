// The next token: the same rule and the same random numbers as engine/sampling.py and engine/philox.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "interface.h"

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

// Scores that the filters keep: those no less than the returned threshold. `scores` are scaled by the temperature.
// Candidates are cut by top-k first; what top-p sorts is only what could matter.
static inline float filter_threshold(const float* scores, int count, const MlJob& job, std::vector<float>& scratch) {
  scratch.assign(scores, scores + count);
  auto descending = [](float a, float b) { return a > b; };
  float threshold = -std::numeric_limits<float>::infinity();
  if (job.top_k > 0 && job.top_k < count) {
    std::nth_element(scratch.begin(), scratch.begin() + job.top_k - 1, scratch.end(), descending);
    threshold = scratch[job.top_k - 1];
    scratch.resize(std::partition(scratch.begin(), scratch.end(), [=](float s) { return s >= threshold; }) -
                   scratch.begin());
  }
  const float peak = *std::max_element(scratch.begin(), scratch.end());
  if (job.top_p < 1.0f) {
    float total = 0;
    for (float s : scratch) total += std::exp(s - peak);
    // Sort only as deep as the nucleus reaches.
    float before = 0;
    size_t sorted = 0, step = 64;
    while (sorted < scratch.size()) {
      const size_t end = std::min(scratch.size(), sorted + step);
      std::nth_element(scratch.begin() + sorted, scratch.begin() + (end - 1), scratch.end(), descending);
      std::sort(scratch.begin() + sorted, scratch.begin() + end, descending);
      size_t i = sorted;
      for (; i < end && (i == 0 || before < job.top_p); ++i) {
        threshold = scratch[i];
        before += std::exp(scratch[i] - peak) / total;
      }
      if (i < end) break;
      sorted = end;
      step *= 4;
    }
  }
  if (job.min_p > 0) {
    // e^(score - peak) >= min_p, compared as the reference compares it.
    float least = std::numeric_limits<float>::infinity();
    for (float s : scratch)
      if (s >= threshold && std::exp(s - peak) >= job.min_p) least = std::min(least, s);
    threshold = std::max(threshold, least);
  }
  return threshold;
}

}  // namespace ml
