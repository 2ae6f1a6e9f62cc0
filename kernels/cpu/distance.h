// How far two cores are from each other: the time that a cache line takes from one to the other. A virtual machine's
// cores may share a die (and its link to memory) now and lie on two dies a minute later; no other sign of it is visible.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "thread_group.h"
#include "mailbox.h"

namespace ml {

// Median nanoseconds one way, over `rounds` rounds of `kHops` hops each way. `pin(i)` ties the calling thread to the
// i-th core that the process may use; `now` reads a clock in nanoseconds. Raises std::system_error if there is no thread.
template <class Pin, class Now>
double core_distance_ns(int rounds, Pin pin, Now now) {
  constexpr int kHops = 1000;
  struct alignas(128) Slot {
    std::atomic<int> value{0};
  };
  Slot there, back;
  const int last = rounds * kHops;
  std::vector<double> times(rounds);
  ThreadGroup group;
  group.start([&] {
    pin(1);
    for (int i = 1; i <= last; ++i) {
      Spin spin(group.cancelled());
      while (there.value.load(std::memory_order_acquire) != i)
        if (!spin.again()) return;
      back.value.store(i, std::memory_order_release);
    }
  });
  group.start([&] {
    pin(0);
    for (int round = 0, i = 1; round < rounds; ++round) {
      const int64_t start = now();
      for (int hop = 0; hop < kHops; ++hop, ++i) {
        there.value.store(i, std::memory_order_release);
        Spin spin(group.cancelled());
        while (back.value.load(std::memory_order_acquire) != i)
          if (!spin.again()) return;
      }
      times[round] = double(now() - start) / (2 * kHops);
    }
  });
  group.join();
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[rounds / 2];
}

}  // namespace ml
