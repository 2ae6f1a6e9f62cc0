// The parts of the rule of engine/sampling.py, with the random numbers of engine/philox.py. worker_sampling.cpp puts them
// together.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
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

// The least word >> 9 whose noise may exceed `distance`, rounded down to a whole number. Noise rises with the word.
static inline uint32_t least_word(float distance) {
  static const auto words = [] {
    std::array<uint32_t, int(kLargestGumbel) + 1> table;
    for (size_t i = 0; i < table.size(); ++i)
      table[i] = uint32_t(std::max(0.0, std::exp(-std::exp(0.01 - double(i))) * 0x1p23 - 4));
    return table;
  }();
  return words[int(distance)];
}

// The best perturbed score of those considered.
class Draw {
 public:
  Draw(uint64_t seed, int position) : seed_(seed), position_(uint32_t(position)) {}

  // No score below this can still win.
  float least() const { return best.score - kLargestGumbel; }
  void consider(int32_t id, float score) {
    if (score < least() - 0.5f) return;
    if (id >> 2 != block_) {
      block_ = id >> 2;
      philox(uint32_t(block_), position_, seed_, words_);
    }
    const uint32_t word = words_[id & 3];
    const float distance = best.score - score;
    if (distance >= 0 && distance <= kLargestGumbel && word >> 9 < least_word(distance)) return;
    const Candidate drawn{score + gumbel(word), id};
    if (drawn.beats(best)) {
      best = drawn;
      unperturbed = score;
    }
  }
  Candidate best;
  float unperturbed = -std::numeric_limits<float>::infinity();  // the best one's own score

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

constexpr int kWeightBits = 40;
constexpr float kLog2E = 1.4426950216293335f;
constexpr float kExp2Coefficients[] = {0.00015461447765119374f, 0.0013390866806730628f, 0.009618056938052177f,
                                       0.055503569543361664f,   0.24022650718688965f,   0.6931471824645996f, 1.0f};
constexpr float kWeightless = 28.0f;  // a score so far below the largest has the weight 0

// 2^40 * exp(score - top), before its fraction is dropped: bit for bit the exponential of engine/sampling.py.
static inline Vec scaled_weights(Vec scores, float top) {
  const Vec y = larger(splat(float(-kWeightBits - 1)), rounded((scores - top) * kLog2E));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = y + magic;
  const Vec f = y - (shifted - magic);
  Vec power = splat(kExp2Coefficients[0]);
  for (size_t i = 1; i < std::size(kExp2Coefficients); ++i) power = rounded(power * f) + kExp2Coefficients[i];
  return from_bits(bits(power) + ((bits(shifted) - bits(magic) + kWeightBits) << 23));
}

static inline uint64_t weight_of(float score, float top) { return uint64_t(scaled_weights(splat(score), top)[0]); }

// Of some scores: how many exceed a candidate's and what those weigh; and what all weigh that are at least `least`.
struct WeightSums {
  uint64_t above = 0, mass = 0, total = 0;

  // Adds `count` scores. `count_total` false leaves `total` as it is.
  void add(const float* scores, int count, float candidate, float top, float least, bool count_total) {
    const float lightest = std::max(least, top - kWeightless);
    int i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      const Vec v = load(scores + i);
      if (any(v > candidate) || (count_total && any(v >= lightest))) add_vector(v, kWidth, candidate, top, least, count_total);
    }
    if (i == count) return;
    float rest[kWidth];
    std::fill(rest, rest + kWidth, -std::numeric_limits<float>::infinity());
    std::copy(scores + i, scores + count, rest);
    add_vector(load(rest), count - i, candidate, top, least, count_total);
  }

 private:
  void add_vector(Vec v, int used, float candidate, float top, float least, bool count_total) {
    const Vec weights = scaled_weights(v, top);
    for (int i = 0; i < used; ++i) {
      const uint64_t one = uint64_t(weights[i]);
      above += v[i] > candidate;
      mass += v[i] > candidate ? one : 0;
      total += count_total && v[i] >= least ? one : 0;
    }
  }
};

// True if the filters keep a candidate whose score is `score`.
static inline bool is_kept(const MlJob& job, float score, float top, const WeightSums& sums) {
  if (job.top_k > 0 && sums.above >= uint64_t(job.top_k)) return false;
  if (job.top_p < 1.0f && !(double(sums.mass) < double(sums.total) * double(job.top_p))) return false;
  return job.min_p == 0 || weight_of(score, top) >= uint64_t(double(job.min_p) * 0x1p40);
}

}  // namespace ml
