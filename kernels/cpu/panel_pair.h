// Two packed panels side by side, times a vector of each of several requests.
//
// A panel times four vectors loads an activation for each multiplication, and a core loads no faster than it multiplies. Side by
// side, quad by quad, an activation serves both panels.
#pragma once

#include "packed_panel.h"

namespace ml {

// Two panels of integers, `second` bytes apart, times kVectors vectors, in one of kPasses over both. `y` gets sixteen sums of
// each vector, those of the second panel `y_second` further on: what packed_vectors gives, bit for bit. Since both panels are
// begun at once, prefetches keep a panel more ahead.
template <int kStorage, int kVectors, int kPasses, class Cursor>
__attribute__((noinline)) static void packed_pair(const uint8_t* panel, int64_t second, const IntegerBlock* x, int64_t stride,
                                                  int cols, float* y, int64_t y_second, Cursor& cursor, bool reads) {
  Vec acc[2][kVectors] = {};
  const int64_t a_panel = panel_bytes(kStorage, cols);
  constexpr int kNear = kPasses == 1 ? 3 : 2;  // what is read twice need not be in the first level
  Ahead<kNear, kPasses, Cursor> ahead(cursor, reads, kPasses == 1 ? a_panel : 2 * a_panel);
  for (int first = 0; first < cols; first += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const int64_t bytes = strip_layout(kStorage, here).bytes;
    const Strip<kStorage> strips[2] = {{kStorage, panel, here}, {kStorage, panel + second, here}};
    for (int block = 0; block < here / kIntegers; ++block, ++x) {
      ahead.read_and_catch_up(2 * bytes * kIntegers / here);
      add_blocks<kStorage>({{strips[0], 0}, {strips[1], 0}}, block, x, stride, acc);
    }
    panel += bytes;
  }
  ahead.end();
  for (int p = 0; p < 2; ++p)
    for (int i = 0; i < kVectors; ++i) store(y + p * y_second + i * kRows, acc[p][i]);
}

// Two panels of one storage that takes integers, times a vector of each of `count` requests, as multiply_vectors:
// [count][16] each.
template <class Cursor>
static inline void multiply_panel_pair(int storage, const uint8_t* panel, int64_t second, Columns in, int count, int cols,
                                       float* y, int64_t y_second, Cursor& cursor) {
  in_passes(in, count, y, [&](auto vectors, auto passes, Columns columns, float* to, bool reads) {
    with_integers(storage, [&](auto kind) {
      packed_pair<kind, vectors, passes>(panel, second, columns.integers, columns.integers_stride, cols, to, y_second, cursor,
                                         reads);
    });
  });
}

}  // namespace ml
