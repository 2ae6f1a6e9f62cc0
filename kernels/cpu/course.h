// The course of a thread through the tapes: what it reads in which order, how far ahead of itself it has asked for it,
// and where it meets the thread that works towards it.
//
// Two cores seldom read equally fast. So the panels of a phase are dealt to pairs of threads that start at the outer
// ends of what the pair has and work towards each other, and a thread that is through with its own goes on with what its
// partner has not begun. Nothing is locked: each says in words of its own what it begins. If a word comes too late, both
// compute one unit and publish the same bits. A thread's first unit is never taken: who has read all of an exchange has
// read something of everyone, on which mailbox.h rests.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "panel.h"
#include "plan.h"

namespace ml {

// So many units of one phase. Phases are products, counted alike by all threads.
class Progress {
 public:
  void say(uint32_t phase, uint32_t units) {
    word_.store(uint64_t(phase) << 32 | units, std::memory_order_relaxed);
  }
  // The units said in `phase`; all, if the speaker is further on.
  uint32_t units(uint32_t phase) const {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    const int32_t ahead = int32_t(uint32_t(word >> 32) - phase);
    return ahead < 0 ? 0 : ahead > 0 ? UINT32_MAX : uint32_t(word);
  }

 private:
  alignas(128) std::atomic<uint64_t> word_{0};  // two lines each: processors fetch them in pairs
};

// What a thread lets its partner know. `begun` changes with each unit and is read by a partner that is through with its
// own; `taken` changes when units of the partner's are taken and is read with each unit.
struct Claims {
  Progress begun, taken;
};

// Units in the middle of a pair that are nobody's until they are taken, each by exactly one of the two.
class Middle {
 public:
  static constexpr int kMost = UINT16_MAX;  // units

  // The next units from the lower end (side 0) or the upper (1): a quarter of what is left of `total`, 0 at the end.
  int take(uint32_t phase, int side, int total) {
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
  alignas(128) std::atomic<uint64_t> word_{0};  // the phase, what was taken above, what below
};

// A thread's units of one matrix: `count` of its own, the k-th of them being number first + k * step, and after them
// those of its partner, from the end of the partner's tape.
struct Part {
  int first = 0, step = 1, count = 0, partners = 0;
  int64_t unit_bytes = 0, offset = 0, partner_offset = 0;  // offsets in a layer

  int unit(int k) const { return first + k * step; }
  // The first `done` of them.
  Run run(int done) const { return step > 0 ? Run{first, first + done} : Run{first - done + 1, first + 1}; }
};

class Course {
 public:
  // `partner_tape` is null if the thread shares with nobody.
  Course(const Plan& plan, int device, int thread, const uint16_t* tape, const uint16_t* partner_tape)
      : layers_(plan.s.layers), tape_(reinterpret_cast<const char*>(tape)),
        partner_tape_(reinterpret_cast<const char*>(partner_tape)) {
    const int partner = partner_tape ? plan.partner(thread) : -1;
    for (int tensor = ML_QKV; tensor <= ML_HEAD; ++tensor) {
      Part& part = parts_[tensor];
      const Run run = plan.run(tensor, device, thread);
      part.count = run.count();
      part.step = Plan::downwards(thread) ? -1 : 1;
      part.first = Plan::downwards(thread) ? run.last - 1 : run.first;
      part.unit_bytes = 2 * int64_t(plan.panels_per_unit(tensor)) * plan.cols(tensor) * kLine;
      part.offset = 2 * plan.offset(tensor, 0, device, thread);
      if (partner >= 0) {
        part.partners = plan.run(tensor, device, partner).count();
        part.partner_offset = 2 * plan.offset(tensor, 0, device, partner);
      }
      expected_[tensor] = float(part.count);
    }
    layer_bytes_ = 2 * plan.layer_values(device, thread);
    if (partner >= 0) partner_layer_bytes_ = 2 * plan.layer_values(device, partner);
    go_to(ML_QKV, 0, 0);
  }

  const Part& part(int tensor) const { return parts_[tensor]; }
  uint32_t phase() const { return phase_; }
  // How many units this thread did lately in such a phase.
  int expected(int tensor) const { return int(expected_[tensor] + 0.5f); }

  // Where the k-th unit of this thread lies.
  const uint16_t* at(int tensor, int layer, int k) const { return reinterpret_cast<const uint16_t*>(place(tensor, layer, k)); }

  // A phase begins.
  void begin(int tensor, int layer) {
    if (!is_ahead() && (tensor != tensor_ || layer != layer_)) go_to(tensor, layer, 0);
    ask_ahead();
    lead_before_ = lead;
    last_ = ticks();
  }
  // Its k-th unit begins. If it was not expected, it has not been asked for.
  void begin_unit(int tensor, int layer, int k) {
    if (k < limit_[tensor]) return;
    go_to(tensor, layer, k);
    ask_ahead();
  }
  // The phase ends after `done` units.
  void end(int tensor, int layer, int done) {
    expected_[tensor] += (float(done) - expected_[tensor]) / 8;
    const uint64_t now = ticks();
    const float lines = float(lead - lead_before_ + done * parts_[tensor].unit_bytes) / 64;
    if (lines > kLinesToJudge && now > last_) rate_ += (lines / float(now - last_) - rate_) / 16;
    last_ = now;
    const bool was_ahead = is_ahead();
    ++phase_;
    if (was_ahead)
      lead = std::max<int64_t>(0, lead - int64_t(limit_[tensor] - done) * parts_[tensor].unit_bytes);
    else
      go_to_next(tensor, layer);
  }
  // A phase ended that read without asking.
  void skip(int tensor, int layer) {
    ++phase_;
    go_to_next(tensor, layer);
  }

  // To be called every few dozen nanoseconds by a thread that does something other than reading: asks for as much as the
  // memory gave since the last call. The processor drops what exceeds its buffers, and then a lead is none.
  void meanwhile() {
    const uint64_t now = ticks();
    const int lines = int(float(now - last_) * rate_);
    if (lines < 1) return;
    last_ = now;
    for (int i = std::min(lines, kBurst); i > 0 && lead < kFurthest && upto; --i) more(1);
  }
  // Asks for `lines` more, as far as they lie together: no call, which would cost its caller the registers.
  void ask_near(int lines) {
    for (; lines > 0 && lead < kFurthest && upto < end_of_run; --lines, upto += 64, lead += 64)
      __builtin_prefetch(upto, 0, 2);
  }
  // Asks for what a reader at full speed must have asked for.
  void ask_ahead() {
    while (lead < kAhead && upto) more(1);
  }
  // Asks for the next lines of the course, from unit to unit and phase to phase.
  __attribute__((noinline)) void more(int lines) {
    for (; lines > 0 && upto; --lines, upto += 64, lead += 64) {
      if (upto >= end_of_run) next_run();
      if (!upto) return;
      __builtin_prefetch(upto, 0, 2);
    }
  }

  // The next address to ask for (null: there is none), the end of its run of units, and how many bytes lie between it and
  // the reader.
  const char* upto = nullptr;
  const char* end_of_run = nullptr;
  int64_t lead = 0;

 private:
  static constexpr int64_t kFurthest = 256 << 10;  // a quarter of a second-level cache of 1 MB
  static constexpr int kBurst = 48;                // lines
  static constexpr float kLinesToJudge = 512;      // of a phase long enough to tell the memory's rate

  bool is_ahead() const { return int32_t(asked_phase_ - phase_) > 0; }

  const char* place(int tensor, int layer, int k) const {
    const Part& part = parts_[tensor];
    const int64_t in_layer = tensor == ML_HEAD ? 0 : layer;
    if (k < part.count) return tape_ + in_layer * layer_bytes_ + part.offset + k * part.unit_bytes;
    return partner_tape_ + in_layer * partner_layer_bytes_ + part.partner_offset +
           (part.partners - 1 - (k - part.count)) * part.unit_bytes;
  }
  // What is asked for next is the k-th unit of a phase, which is the one in hand.
  void go_to(int tensor, int layer, int k) {
    tensor_ = tensor;
    layer_ = layer;
    k_ = k;
    asked_phase_ = phase_;
    limit_[tensor] = k ? k + 1 : expected(tensor);
    lead = 0;
    next_run();
  }
  void go_to_next(int tensor, int layer) {
    next_of(&tensor, &layer);
    go_to(tensor, layer, 0);
  }
  // From the unit in hand to the last that lies behind it without a gap.
  void next_run() {
    if (k_ >= limit_[tensor_]) return next_phase();
    const Part& part = parts_[tensor_];
    upto = place(tensor_, layer_, k_);
    const int last = k_ < part.count ? std::min(limit_[tensor_], part.count) : k_ + 1;
    end_of_run = upto + (last - k_) * part.unit_bytes;
    k_ = last;
  }
  void next_phase() {
    upto = end_of_run = nullptr;
    for (int tried = 0; tried <= ML_HEAD; ++tried) {
      next_of(&tensor_, &layer_);
      ++asked_phase_;
      k_ = 0;
      limit_[tensor_] = expected(tensor_);
      if (limit_[tensor_] > 0) return next_run();
    }
  }
  void next_of(int* tensor, int* layer) const {
    if (*tensor == ML_DOWN || *tensor == ML_HEAD) {
      const bool more_layers = *tensor == ML_DOWN && *layer + 1 < layers_;
      *tensor = more_layers || *tensor == ML_HEAD ? ML_QKV : ML_HEAD;
      *layer = more_layers ? *layer + 1 : 0;
    } else {
      ++*tensor;
    }
  }

  const int layers_;
  const char *tape_, *partner_tape_;
  int64_t layer_bytes_ = 0, partner_layer_bytes_ = 0;
  Part parts_[ML_HEAD + 1];
  float expected_[ML_HEAD + 1] = {};
  int limit_[ML_HEAD + 1] = {};  // units that are asked for
  int tensor_ = ML_QKV, layer_ = 0, k_ = 0;
  uint32_t phase_ = 0, asked_phase_ = 0;  // the phase that is read, and the one that is asked for
  float rate_ = 0;                        // lines a tick that the memory gave during products
  uint64_t last_ = 0;
  int64_t lead_before_ = 0;
};

}  // namespace ml
