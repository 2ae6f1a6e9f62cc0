// Work stealing between the two threads of a pair.
//
// Two cores seldom read equally fast. So the units of a phase are dealt to pairs of threads that start at the outer ends
// of what the pair has and work towards each other, and a thread that is through with its own units goes on with those
// that its partner has not begun. There is no lock: each thread publishes what it begins in a word of its own. If a word
// comes too late, both compute the same unit and publish the same bits. A thread's first unit is never stolen, so that
// whoever has read a whole exchange has read something of every thread. mailbox.h relies on that.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace ml {

// A count of units of one phase, read by the partner. Phases are lists of units, numbered alike by all threads.
class Progress {
 public:
  void publish(uint32_t phase, uint32_t units) {
    word_.store(uint64_t(phase) << 32 | units, std::memory_order_relaxed);
  }
  // The units published in `phase`; UINT32_MAX if the publisher is already in a later one.
  uint32_t units(uint32_t phase) const {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    const int32_t ahead = int32_t(uint32_t(word >> 32) - phase);
    return ahead < 0 ? 0 : ahead > 0 ? UINT32_MAX : uint32_t(word);
  }

 private:
  alignas(128) std::atomic<uint64_t> word_{0};  // two lines each: processors fetch them in pairs
};

// What a thread publishes to its partner. `begun` changes with each unit and is read by a partner that has finished its
// own units; `stolen` changes when units of the partner's are taken and is read with each unit.
struct Claims {
  Progress begun, stolen;
};

// One thread's side of a pair. `k` counts the units that the thread computes in a phase: first its own `count`, then the
// partner's, from the far end of the partner's.
class WorkStealing {
 public:
  // `partner` is null if the thread shares with nobody.
  WorkStealing(Claims& mine, const Claims* partner) : mine_(mine), partner_(partner) {}

  bool has_partner() const { return partner_; }

  // Calls compute(k, how many as a constant) for the units of the next phase, kTogether of the thread's own at a time, others one
  // by one: the thread's own `count`, as far as the partner leaves them, then those of the partner's `partners` that it has not
  // begun. Returns how many. `expected`, if it is known, is how many units the thread computed lately in such a phase: it claims
  // as many at once.
  template <int kTogether = 1, class Compute>
  int each_unit(int count, int partners, int expected, Compute&& compute) {
    ++phase_;
    int k = 0;
    while (k < count && !is_stolen(k, count)) {
      const int last = k + kTogether - 1;
      k = last == k || (last < count && !is_stolen(last, count)) ? begin<kTogether>(k, compute) : begin<1>(k, compute);
    }
    if (k == count && k > 0)
      for (; try_claim(k, count, partners, expected); ++k) compute(k, std::integral_constant<int, 1>{});
    return k;
  }

 private:
  // True if the partner has taken the thread's own k-th unit.
  bool is_stolen(int k, int count) const {
    return partner_ && k > 0 && k + int64_t(partner_->stolen.units(phase_)) >= count;
  }
  template <int kUnits, class Compute>
  int begin(int k, Compute&& compute) {
    mine_.begun.publish(phase_, k + kUnits);
    compute(k, std::integral_constant<int, kUnits>{});
    return k + kUnits;
  }
  // Claims the k-th unit, k >= count, if the partner has not begun it.
  bool try_claim(int k, int count, int partners, int expected) {
    const int wanted = k - count + 1;
    if (!partner_ || wanted >= partners) return false;
    if (uint32_t(wanted) <= mine_.stolen.units(phase_)) return true;
    const uint32_t begun = std::max(1u, partner_->begun.units(phase_));
    if (begun > uint32_t(partners - wanted)) return false;
    mine_.stolen.publish(phase_, std::clamp(expected - count - 1, wanted, partners - int(begun)));
    return true;
  }

  Claims& mine_;
  const Claims* const partner_;
  uint32_t phase_ = 0;
};

// Units in the middle of a pair that belong to nobody until one of the two claims them. Each is claimed exactly once.
class SharedMiddle {
 public:
  static constexpr int kMost = UINT16_MAX;  // units

  // Claims the next units from the lower end (side 0) or the upper (1): a quarter of what is left of `total`. Returns how
  // many; 0 at the end.
  int claim(uint32_t phase, int side, int total) {
    uint64_t old = word_.load(std::memory_order_relaxed);
    while (true) {
      const uint64_t now = uint32_t(old >> 32) == phase ? old : uint64_t(phase) << 32;
      const int left = total - int(now & kMost) - int(now >> 16 & kMost);
      if (left <= 0) return 0;
      const int some = std::max(1, left / 4);
      if (word_.compare_exchange_weak(old, now + (uint64_t(some) << 16 * side), std::memory_order_relaxed)) return some;
    }
  }

 private:
  alignas(128) std::atomic<uint64_t> word_{0};  // the phase, claims from above, claims from below
};

}  // namespace ml
