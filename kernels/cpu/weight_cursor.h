// A thread's read order of the packed weights, and its prefetch distance.
//
// A thread reads the units of each phase in one order: its own, then those that it steals from its partner
// (work_stealing.h). The cursor runs ahead of the reader in that order and prefetches: during products as much as is read,
// and while the thread waits as much as memory gives.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pages.h"
#include "panel.h"
#include "plan.h"
#include "prefetcher.h"

namespace ml {

// A thread's weights.
struct Tape {
  Tape(const Plan& plan, int device, int thread)
      : map(plan, device, thread), pages(map.bytes() + kAhead, PageSize::kHuge) {}
  uint8_t* data() const { return pages.data(); }

  const TapeMap map;
  const Pages<uint8_t> pages;
};

// A thread's units of one matrix: `count` of its own, the k-th of them being number first + k * step, and after them
// its partner's, from the end of the partner's tape.
struct UnitOrder {
  int first = 0, step = 1, count = 0, partners = 0;

  UnitOrder() = default;
  UnitOrder(Range mine, int partners, bool downwards)
      : first(downwards ? mine.last - 1 : mine.first), step(downwards ? -1 : 1), count(mine.count()), partners(partners) {}
  int unit(int k) const { return first + k * step; }
  // The first `done` of them.
  Range range(int done) const { return step > 0 ? Range{first, first + done} : Range{first - done + 1, first + 1}; }
};

class WeightCursor : public Prefetcher<WeightCursor> {
 public:
  // `partner` is null if the thread shares with nobody.
  WeightCursor(const Plan& plan, int thread, const Tape& mine, const Tape* partner)
      : plan_(plan), mine_(mine), partner_(partner) {
    for (int tensor = ML_QKV; tensor <= ML_HEAD; ++tensor) {
      const int partners = partner ? partner->map.range(tensor).count() : 0;
      orders_[tensor] = UnitOrder(mine.map.range(tensor), partners, Plan::downwards(thread));
      expected_[tensor] = float(orders_[tensor].count);
    }
    go_to(ML_QKV, 0, 0);
  }

  const UnitOrder& order(int tensor) const { return orders_[tensor]; }
  uint32_t phase() const { return phase_; }
  // How many units this thread computed lately in such a phase.
  int expected(int tensor) const { return int(expected_[tensor] + 0.5f); }

  // Where the k-th unit of this thread lies.
  const uint8_t* at(int tensor, int layer, int k) const {
    const UnitOrder& order = orders_[tensor];
    const Tape& tape = k < order.count ? mine_ : *partner_;
    return tape.data() + tape.map.place(tensor, layer, order.unit(k));
  }

  void begin_phase(int tensor, int layer) {
    if (!is_ahead() && (tensor != tensor_ || layer != layer_)) go_to(tensor, layer, 0);
    fill_lead();
    lead_before_ = lead;
    last_ = ticks();
  }
  // Its next `count` units begin with the k-th. Those that were not expected have not been prefetched.
  void begin_units(int tensor, int layer, int k, int count) {
    if (k + count <= limit_[tensor]) return;
    go_to(tensor, layer, k, count);
    fill_lead();
  }
  // The phase ends after `done` units.
  void end_phase(int tensor, int layer, int done) {
    expected_[tensor] += (float(done) - expected_[tensor]) / 8;
    const uint64_t now = ticks();
    const float lines = float(lead - lead_before_ + unit_bytes(tensor, layer, 0, done)) / 64;
    if (lines > kLinesToJudge && now > last_) rate_ += (lines / float(now - last_) - rate_) / 16;
    last_ = now;
    const bool was_ahead = is_ahead();
    ++phase_;
    if (was_ahead)
      lead = std::max<int64_t>(0, lead - unit_bytes(tensor, layer, done, std::max(done, limit_[tensor])));
    else
      go_to_next(tensor, layer);
  }
  // A phase has nothing on the tape: what is prefetched beyond it stays.
  void pass_phase(int tensor, int layer) {
    const bool was_ahead = is_ahead();
    ++phase_;
    if (!was_ahead) go_to_next(tensor, layer);
  }
  // A phase has ended that read without the cursor.
  void skip_phase(int tensor, int layer) {
    ++phase_;
    go_to_next(tensor, layer);
  }

  // Lines that memory gave since the last call. To be called every few dozen nanoseconds by a thread that does not read
  // weights, and that prefetches as many. The processor drops what exceeds its buffers; such a prefetch does nothing.
  int lines_due() {
    const uint64_t now = ticks();
    const int lines = int(float(now - last_) * rate_);
    if (lines > 0) last_ = now;
    return std::min(lines, kBurst);
  }
  // The next `lines`, as far as they lie together and are not further ahead than a cache holds them. The caller prefetches them.
  Stretch take_in_run(int lines) {
    Stretch rest{next, lead < kFurthest ? end_of_run : next};
    const Stretch taken = rest.take(lines);
    lead += rest.next - next;
    next = rest.next;
    return taken;
  }

 private:
  friend Prefetcher;
  static constexpr int kBurst = 48;                // lines
  static constexpr float kLinesToJudge = 512;      // of a phase long enough to tell the memory's rate

  bool is_ahead() const { return int32_t(prefetch_phase_ - phase_) > 0; }

  // Bytes of the thread's units k .. last - 1.
  int64_t unit_bytes(int tensor, int layer, int k, int last) const {
    const UnitOrder& order = orders_[tensor];
    return order.step > 0 ? plan_.unit_bytes(tensor, layer, order.first + k, order.first + last)
                          : plan_.unit_bytes(tensor, layer, order.first + 1 - last, order.first + 1 - k);
  }
  // Prefetching goes on with the k-th unit of the phase in hand: those expected, or if they are past, the next `count`.
  void go_to(int tensor, int layer, int k, int count = 1) {
    tensor_ = tensor;
    layer_ = layer;
    k_ = k;
    prefetch_phase_ = phase_;
    limit_[tensor] = k ? k + count : expected(tensor);
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
    const UnitOrder& order = orders_[tensor_];
    next = reinterpret_cast<const char*>(at(tensor_, layer_, k_));
    const int last = k_ < order.count ? std::min(limit_[tensor_], order.count) : k_ + 1;
    end_of_run = next + unit_bytes(tensor_, layer_, k_, last);
    k_ = last;
  }
  void next_phase() {
    next = end_of_run = nullptr;
    for (int tried = 0; tried <= ML_HEAD; ++tried) {
      next_of(&tensor_, &layer_);
      ++prefetch_phase_;
      k_ = 0;
      limit_[tensor_] = expected(tensor_);
      if (limit_[tensor_] > 0) return next_run();
    }
  }
  void next_of(int* tensor, int* layer) const {
    if (*tensor == ML_DOWN || *tensor == ML_HEAD) {
      const bool more_layers = *tensor == ML_DOWN && *layer + 1 < plan_.s.layers;
      *tensor = more_layers || *tensor == ML_HEAD ? ML_QKV : ML_HEAD;
      *layer = more_layers ? *layer + 1 : 0;
    } else {
      ++*tensor;
    }
  }

  const Plan& plan_;
  const Tape& mine_;
  const Tape* const partner_;
  UnitOrder orders_[ML_HEAD + 1];
  float expected_[ML_HEAD + 1] = {};
  int limit_[ML_HEAD + 1] = {};  // units to prefetch
  int tensor_ = ML_QKV, layer_ = 0, k_ = 0;
  uint32_t phase_ = 0, prefetch_phase_ = 0;  // the phase that is read, and the one that is prefetched
  float rate_ = 0;                           // lines a tick that the memory gave during products
  uint64_t last_ = 0;
  int64_t lead_before_ = 0;
};

}  // namespace ml
