// Prefetches lines ahead of a reader, run by run.
#pragma once

#include <cstdint>

#include "panel.h"

namespace ml {

// Base of the cursors over weights (CRTP: no call where a thread multiplies). `Cursor` has `next_run()`, which sets `next`
// and `end_of_run` to the run that is read after the one in hand, or `next` to null.
template <class Cursor>
class Prefetcher {
 public:
  // Prefetches what a reader at full speed must have ahead of it.
  void fill_lead() {
    while (lead < kAhead && next) prefetch(1);
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
};

}  // namespace ml
