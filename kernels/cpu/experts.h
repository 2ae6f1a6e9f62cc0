// Routing, and the way through the weights of the experts that were chosen. engine/experts.py has the rule.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "prefetcher.h"

namespace ml {

// A token that meets an expert: it is the token's slot-th best.
struct Hit {
  int token, slot;
};
// Hits first .. first + count - 1 are those of an expert.
struct HitGroup {
  int expert, first, count;
};

// Which experts each token of a pass meets, and with what weight. Every worker computes it from the same scores.
class Routing {
 public:
  Routing() = default;
  Routing(int experts, int chosen, bool renormalise) : experts_(experts), chosen_(chosen), renormalise_(renormalise) {}

  // Scores of all experts for each token: [tokens][experts].
  void choose(const float* scores, int tokens) {
    slots_.resize(int64_t(tokens) * chosen_);
    weights_.resize(slots_.size());
    for (int t = 0; t < tokens; ++t) choose_for(scores + int64_t(t) * experts_, t);
    group(tokens);
  }
  const std::vector<HitGroup>& groups() const { return groups_; }
  const Hit& hit(int number) const { return hits_[number]; }
  int hits() const { return int(hits_.size()); }
  float weight(int token, int slot) const { return weights_[int64_t(token) * chosen_ + slot]; }

 private:
  // The largest scores first; of equal ones the lower number.
  void choose_for(const float* scores, int token) {
    int* slots = slots_.data() + int64_t(token) * chosen_;
    float* weights = weights_.data() + int64_t(token) * chosen_;
    taken_.assign(experts_, 0);
    float total = 0;
    for (int slot = 0; slot < chosen_; ++slot) {
      int best = int(std::find(taken_.begin(), taken_.end(), 0) - taken_.begin());
      for (int e = best + 1; e < experts_; ++e)
        if (!taken_[e] && scores[e] > scores[best]) best = e;
      taken_[best] = 1;
      slots[slot] = best;
      total += weights[slot] = std::exp(scores[best] - scores[slots[0]]);
    }
    if (!renormalise_) {
      total = 0;
      for (int e = 0; e < experts_; ++e) total += std::exp(scores[e] - scores[slots[0]]);
    }
    for (int slot = 0; slot < chosen_; ++slot) weights[slot] /= total;
  }
  // Hits by expert, in the order of tokens.
  void group(int tokens) {
    starts_.assign(experts_ + 1, 0);
    for (int expert : slots_) ++starts_[expert + 1];
    groups_.clear();
    for (int e = 0; e < experts_; ++e) {
      if (starts_[e + 1]) groups_.push_back({e, starts_[e], starts_[e + 1]});
      starts_[e + 1] += starts_[e];
    }
    hits_.resize(slots_.size());
    for (int t = 0; t < tokens; ++t)
      for (int slot = 0; slot < chosen_; ++slot) hits_[starts_[slots_[int64_t(t) * chosen_ + slot]]++] = {t, slot};
  }

  int experts_ = 0, chosen_ = 0;
  bool renormalise_ = true;
  std::vector<int> slots_, starts_;  // [token][slot] expert; where an expert's hits begin
  std::vector<float> weights_;
  std::vector<uint8_t> taken_;
  std::vector<Hit> hits_;
  std::vector<HitGroup> groups_;
};

// Prefetches from stretch to stretch of weights, as WeightCursor does along a tape: where the experts lie is known only
// once they are chosen.
class RunCursor : public Prefetcher<RunCursor> {
 public:
  void begin() {
    runs_.clear();
    at_ = 0;
    next = end_of_run = nullptr;
    lead = 0;
  }
  void add(const uint8_t* from, int64_t bytes) {
    const char* first = reinterpret_cast<const char*>(from);
    if (!runs_.empty() && runs_.back().end == first)
      runs_.back().end = first + bytes;
    else
      runs_.push_back({first, first + bytes});
  }
  void start() {
    next_run();
    fill_lead();
  }

 private:
  friend Prefetcher;
  struct Run {
    const char *first, *end;
  };
  void next_run() {
    const bool more = at_ < runs_.size();
    next = more ? runs_[at_].first : nullptr;
    end_of_run = more ? runs_[at_].end : nullptr;
    ++at_;
  }
  std::vector<Run> runs_;
  size_t at_ = 0;
};

}  // namespace ml
