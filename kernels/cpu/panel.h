// Panels: sixteen rows of a matrix, column by column, so that one vector load holds one column of all sixteen.
//
// y[r] = sum over k of W[r, k] * x[k] then needs no horizontal sum: sixteen rows accumulate side by side, each
// column's weight times a broadcast x[k]. The same panel serves one token (decode, bound by the tape's
// bandwidth) and a block of tokens (prefill, bound by arithmetic): `x` is column-major, [k][tokens].
#pragma once

#include <algorithm>

#include "mailbox.h"
#include "prefetcher.h"
#include "simd.h"
#include "tiles.h"

namespace ml {

constexpr int kRows = kLine;
constexpr int kVecs = kRows / kWidth;  // vectors that make up one column of a panel

// One row of a matrix into a panel. Rows that a panel has no row of the matrix for stay as they are: zero.
static inline void pack_halves(uint16_t* panel, int row, const uint16_t* from, int cols) {
  for (int k = 0; k < cols; ++k) panel[int64_t(k) * kRows + row] = from[k];
}

constexpr int kStep = 8;  // columns at least between two looks at the cursor
constexpr int step_lines(int columns) { return columns * kRows * 2 / 64; }  // lines of the tape that they take

// How many vectors' sums the registers hold beside the weights: all sums in flight, or some of them (flights_at_once). For more
// vectors, a panel is read in several passes.
constexpr int kVectorsAtOnce = kWidth >= 8 ? 4 : 1;

// A column is added to one of so many sums, the next column to the next sum: they hide the latency of the FMA.
constexpr int kFlight = 4;
// Of several vectors sixteen registers hold only some of these sums, which then meet all of their columns in a run.
constexpr int flights_at_once(int vectors) { return kWidth != 8 || vectors == 1 ? kFlight : vectors == 2 ? 2 : 1; }

// Adds kAtOnce columns of each kFlight, from `first` to before `last`, to as many sums of each vector. `column` gives the
// weights of one.
template <int kAtOnce, int kVectors, class Column>
__attribute__((always_inline)) static inline void add_flights(int first, int last, const float* x, int64_t stride,
                                                              Vec (*acc)[kVectors][kVecs], Column&& column) {
  Vec sums[kAtOnce][kVectors][kVecs];
  for (int j = 0; j < kAtOnce; ++j)
    for (int i = 0; i < kVectors; ++i)
      for (int v = 0; v < kVecs; ++v) sums[j][i][v] = acc[j][i][v];
  for (int k = first; k < last; k += kFlight)
    for (int j = 0; j < kAtOnce; ++j) {
      Vec weights[kVecs];
      for (int v = 0; v < kVecs; ++v) weights[v] = column(k + j, v);
      for (int i = 0; i < kVectors; ++i)
        for (int v = 0; v < kVecs; ++v) sums[j][i][v] += weights[v] * x[i * stride + k + j];
    }
  for (int j = 0; j < kAtOnce; ++j)
    for (int i = 0; i < kVectors; ++i)
      for (int v = 0; v < kVecs; ++v) acc[j][i][v] = sums[j][i][v];
}

// The cache that the tape is fetched to, as __builtin_prefetch counts: the first level, or the second where the activations
// of several vectors need the first.
constexpr int near_level(int vectors, int passes) { return vectors > 2 || passes > 1 ? 2 : 3; }

// One panel times kVectors vectors, `stride` apart. `y` gets sixteen sums of each; what a vector gives does not depend on how
// many there are. `cursor` prefetches as much as is read, or a line a step less while it is further ahead than it need be. Of
// kPasses over a panel only the first `reads` it from memory, but each prefetches its part of the next one, so that memory never
// pauses; kPasses is 1, 2 or, for more than 3, 4.
template <Half kHalf, int kVectors, int kPasses = 1, class Cursor>
__attribute__((noinline)) static void panel_vectors(const uint16_t* panel, const float* x, int64_t stride, int cols, float* y,
                                                    Cursor& cursor, bool reads = true) {
  constexpr int kAtOnce = flights_at_once(kVectors);
  constexpr int kColumns = kAtOnce < kFlight ? 4 * kStep : kStep;  // between two looks at the cursor
  constexpr int kLines = step_lines(kColumns) / kPasses, kNear = near_level(kVectors, kPasses);
  Vec acc[kFlight][kVectors][kVecs] = {};
  auto column = [&](int k, int v) __attribute__((always_inline)) {
    return widen<kHalf>(panel + int64_t(k) * kRows + v * kWidth);
  };
  auto columns = [&](int k, int count) __attribute__((always_inline)) {
    if constexpr (kAtOnce < kFlight) {
      for (int j = 0; j < kFlight; j += kAtOnce) add_flights<kAtOnce>(k + j, k + count, x, stride, acc + j, column);
    } else {
      for (int j = 0; j < kStep; ++j)
        for (int v = 0; v < kVecs; ++v) {
          const Vec weights = column(k + j, v);
          for (int i = 0; i < kVectors; ++i) acc[j % kFlight][i][v] += weights * x[i * stride + k + j];
        }
    }
  };
  const int64_t most = kPasses == 1 ? kAhead : kAhead + int64_t(cols) * kRows * 2;
  const int64_t taken = kPasses == 1 || reads ? 64 * step_lines(kColumns) : 0;
  const int whole = cols / kColumns * kColumns;
  const char* next = cursor.next;
  int64_t lead = cursor.lead;
  auto lines_for = [&] { return lead <= most - 64 * kLines ? kLines : kLines - 1; };
  int k = 0;
  while (k < whole) {
    // As long as what is prefetched lies together there is no call in the loop, which would cost it the registers.
    const int64_t steps = (cursor.end_of_run - next) / (64 * kLines);
    const int until = int(std::min<int64_t>(whole, k + steps * kColumns));
    for (; k < until; k += kColumns) {
      lead -= taken;
      const int lines = lines_for();
      for (int line = 0; line < kLines - 1; ++line) __builtin_prefetch(next + 64 * line, 0, kNear);
      if (lines == kLines) __builtin_prefetch(next + 64 * (kLines - 1), 0, kNear);
      next += 64 * lines;
      lead += 64 * lines;
      columns(k, kColumns);
    }
    if (k == whole) break;
    lead -= taken;
    cursor.next = next;
    cursor.lead = lead;
    cursor.prefetch(lines_for());
    next = cursor.next;
    lead = cursor.lead;
    columns(k, kColumns);
    k += kColumns;
  }
  cursor.next = next;
  cursor.lead = lead - taken * (cols - k) / kColumns;
  if constexpr (kColumns > kStep)
    for (; k + kStep <= cols; k += kStep) columns(k, kStep);
  for (; k < cols; ++k)
    for (int v = 0; v < kVecs; ++v) {
      const Vec weights = column(k, v);
      for (int i = 0; i < kVectors; ++i) acc[0][i][v] += weights * x[i * stride + k];
    }
  cursor.fill_lead();
  for (int i = 0; i < kVectors; ++i)
    for (int v = 0; v < kVecs; ++v)
      store(y + i * kRows + v * kWidth, (acc[0][i][v] + acc[2][i][v]) + (acc[1][i][v] + acc[3][i][v]));
}

// kPanels panels (one after another on the tape) times kTokens columns of x, all sums in registers.
template <Half kHalf, int kPanels, int kTokens>
static inline void panel_tile(const uint16_t* panels, const float* x, int cols, int stride, float* y,
                              int64_t y_panel) {
  Vec acc[kTokens][kPanels * kVecs] = {};
  const uint16_t* w[kPanels];
  for (int p = 0; p < kPanels; ++p) w[p] = panels + int64_t(p) * cols * kRows;
  for (int k = 0; k < cols; ++k) {
    Vec column[kPanels * kVecs];
    for (int p = 0; p < kPanels; ++p)
      for (int v = 0; v < kVecs; ++v)
        column[p * kVecs + v] = widen<kHalf>(w[p] + int64_t(k) * kRows + v * kWidth);
    const float* at = x + int64_t(k) * stride;
    for (int t = 0; t < kTokens; ++t)
      for (int c = 0; c < kPanels * kVecs; ++c) acc[t][c] += column[c] * at[t];
  }
  for (int p = 0; p < kPanels; ++p)
    for (int t = 0; t < kTokens; ++t)
      for (int v = 0; v < kVecs; ++v)
        store(y + p * y_panel + t * kRows + v * kWidth, acc[t][p * kVecs + v]);
}

// As many sums as the registers hold beside the weights: 24 of AVX-512's 32, 12 of AVX2's 16.
constexpr int kTile = kWidth == 16 ? 12 : kWidth == 8 ? 6 : 4;
constexpr int kTilePanels = kWidth == 16 ? 2 : 1;
// Panels whose sums the registers hold for as many vectors as one panel's.
constexpr int kPanelsAtOnce = kWidth == 16 ? 2 : 1;

// `count` (1 or kTilePanels) panels times a block of `tokens` columns. y: per panel, [tokens][16].
template <Half kHalf, int kPanels>
static inline void panel_block(const uint16_t* panels, const float* x, int cols, int tokens, float* y) {
  const int64_t y_panel = int64_t(tokens) * kRows;
  in_tiles<kTile>(tokens, [&](auto now, int t) {
    panel_tile<kHalf, kPanels, now>(panels, x + t, cols, tokens, y + t * kRows, y_panel);
  });
}

}  // namespace ml
