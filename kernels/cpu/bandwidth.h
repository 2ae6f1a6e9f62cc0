// What memory can give: each thread of a team reads a slice of a large buffer from end to end and does nothing with it.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "thread_group.h"
#include "panel.h"

namespace ml {

// Reads `bytes` from `p`, asking ahead as the matrix products do. Four sums, so that none waits for its own addition.
static inline float read_through(const char* p, int64_t bytes) {
  constexpr int kSums = 4, kStep = kSums * 64;
  Vec sums[kSums] = {};
  for (const char* end = p + bytes / kStep * kStep; p < end; p += kStep)
    for (int i = 0; i < kSums; ++i) {
      __builtin_prefetch(p + kAhead + 64 * i, 0, 3);
      for (int at = 0; at < 64; at += 4 * kWidth) sums[i] += load(reinterpret_cast<const float*>(p + 64 * i + at));
    }
  return sum(sums[0] + sums[1] + sums[2] + sums[3]);
}

// The best of `rounds` passes over `bytes` at `memory` by `threads` threads, GB/s (10^9 bytes). Others' work can only
// make a pass slower, so the best is what the memory gives. `memory` holds kAhead bytes more than are read. Raises
// std::system_error if the threads cannot be started.
template <class Pin, class Now>
double read_gbs(const char* memory, int64_t bytes, int threads, int rounds, Pin pin, Now now) {
  const int64_t slice = bytes / threads / 4096 * 4096;
  std::vector<int64_t> starts(int64_t(rounds) * threads), ends(starts.size());
  std::atomic<int> arrived{0};
  std::atomic<float> total{0};  // read by nobody: without it the reads could be left out
  ThreadGroup group;
  for (int thread = 0; thread < threads; ++thread)
    group.start([&, thread] {
      pin(thread);
      for (int round = 0; round < rounds; ++round) {
        arrived.fetch_add(1, std::memory_order_acq_rel);
        Spin spin(group.cancelled());
        while (arrived.load(std::memory_order_acquire) < (round + 1) * threads)
          if (!spin.again()) return;
        const int64_t at = int64_t(round) * threads + thread;
        starts[at] = now();
        total.store(read_through(memory + thread * slice, slice), std::memory_order_relaxed);
        ends[at] = now();
      }
    });
  group.join();
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto first = starts.begin() + int64_t(round) * threads, last = ends.begin() + int64_t(round) * threads;
    const int64_t took = *std::max_element(last, last + threads) - *std::min_element(first, first + threads);
    best = std::max(best, double(slice) * threads / double(std::max<int64_t>(took, 1)));
  }
  return best;
}

}  // namespace ml
