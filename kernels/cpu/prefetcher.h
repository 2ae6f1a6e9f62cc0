// Prefetches lines ahead of a reader, run by run.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ml {

// How far ahead of its use the tape is asked for at least: more than a memory round trip at the core's share of the
// bandwidth, across page ends, where the hardware prefetcher stops.
constexpr int64_t kAhead = 8192;

// Memory that will be read.
struct Stretch {
  const char *next = nullptr, *end = nullptr;
  // Reads `lines` of it, however long that takes. Returns how many of them were beyond the end.
  int touch(int lines) {
    for (; lines > 0 && next < end; --lines, next += 64) (void)*reinterpret_cast<const volatile char*>(next);
    return lines;
  }
  // As touch, without a wait for them, to the first level. The processor drops much of what comes in bursts, and more of what
  // is only asked for to the second.
  int prefetch(int lines) {
    for (; lines > 0 && next < end; --lines, next += 64) __builtin_prefetch(next, 0, 3);
    return lines;
  }
  // Its first `lines`, or all of it: they are left to the caller.
  Stretch take(int lines) {
    const char* first = next;
    next += std::min(end - next, int64_t(64) * lines);
    return {first, next};
  }
  int lines() const { return int((end - next + 63) / 64); }
};

// Base of the cursors over weights (CRTP: no call where a thread multiplies). `Cursor` has `next_run()`, which sets `next`
// and `end_of_run` to the run that is read after the one in hand, or `next` to null.
template <class Cursor>
class Prefetcher {
 public:
  // Prefetches what a reader at full speed must have ahead of it.
  void fill_lead() {
    while (lead < kAhead && next) prefetch(1);
  }
  // Prefetches the next lines while they are not further ahead than a cache holds them.
  void prefetch_near(int lines) {
    for (; lines > 0 && lead < kFurthest && next; --lines) prefetch(1);
  }
  // Prefetches the next lines, from run to run.
  __attribute__((noinline)) void prefetch(int lines) {
    for (; lines > 0 && next; --lines, next += 64, lead += 64) {
      if (next >= end_of_run) static_cast<Cursor*>(this)->next_run();
      if (!next) return;
      __builtin_prefetch(next, 0, 2);
    }
  }

  // The next address to prefetch (null: there is none), the end of its contiguous bytes, and how many bytes lie between it
  // and the reader. panel.h keeps them in registers while it multiplies.
  const char* next = nullptr;
  const char* end_of_run = nullptr;
  int64_t lead = 0;

 protected:
  static constexpr int64_t kFurthest = 256 << 10;  // a quarter of a second-level cache of 1 MB
};

}  // namespace ml
