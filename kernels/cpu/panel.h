// Panels: sixteen rows of a matrix, column by column, so that one vector load holds one column of all sixteen.
//
// y[r] = sum over k of W[r, k] * x[k] then needs no horizontal sum: sixteen rows accumulate side by side, each
// column's weight times a broadcast x[k]. The same panel serves one token (decode, bound by the tape's
// bandwidth) and a block of tokens (prefill, bound by arithmetic): `x` is column-major, [k][tokens].
#pragma once

#include <algorithm>
#include <type_traits>

#include "mailbox.h"
#include "simd.h"

namespace ml {

constexpr int kRows = kLine;
constexpr int kVecs = kRows / kWidth;  // vectors that make up one column of a panel

// One row of a matrix into a panel. Rows that a panel has no row of the matrix for stay as they are: zero.
static inline void pack_halves(uint16_t* panel, int row, const uint16_t* from, int cols) {
  for (int k = 0; k < cols; ++k) panel[int64_t(k) * kRows + row] = from[k];
}

// How far ahead of its use the tape is asked for at least: more than a memory round trip at the core's share of the
// bandwidth, across page ends, where the hardware prefetcher stops.
constexpr int64_t kAhead = 8192;

// In place of a cursor, for a panel that lies in a near cache because it has just been read: nothing is prefetched.
struct Resident {
  const char *next = nullptr, *end_of_run = nullptr;
  int64_t lead = 0;
  void prefetch(int) {}
  void fill_lead() {}
};

// One panel times kVectors vectors, `stride` apart. `y` gets sixteen sums of each. Eight columns in flight hide the latency of
// the FMA; what a vector gives does not depend on how many there are. `cursor` prefetches as much as is read, or less while
// it is further ahead than it need be.
template <Half kHalf, int kVectors, class Cursor>
__attribute__((noinline)) static void panel_vectors(const uint16_t* panel, const float* x, int64_t stride, int cols, float* y,
                                                    Cursor& cursor) {
  constexpr int kFlight = 8, kLines = kFlight / 2;
  Vec acc[kVectors][kFlight][kVecs] = {};
  auto columns = [&](int k) __attribute__((always_inline)) {
    const uint16_t* w = panel + int64_t(k) * kRows;
    for (int j = 0; j < kFlight; ++j)
      for (int v = 0; v < kVecs; ++v) {
        const Vec column = widen<kHalf>(w + j * kRows + v * kWidth);
        for (int i = 0; i < kVectors; ++i) acc[i][j][v] += column * x[i * stride + k + j];
      }
  };
  const int whole = cols / kFlight * kFlight;
  int k = 0;
  if constexpr (std::is_same_v<Cursor, Resident>) {
    for (; k < whole; k += kFlight) columns(k);
  } else {
    const char* next = cursor.next;
    int64_t lead = cursor.lead;
    auto lines_for = [&] { return lead <= kAhead - 64 * kLines ? kLines : kLines - 1; };
    while (k < whole) {
      // As long as what is prefetched lies together there is no call in the loop, which would cost it the registers.
      const int64_t steps = (cursor.end_of_run - next) / (64 * kLines);
      const int until = int(std::min<int64_t>(whole, k + steps * kFlight));
      for (; k < until; k += kFlight) {
        lead -= 64 * kLines;
        const int lines = lines_for();
        for (int line = 0; line < kLines - 1; ++line) __builtin_prefetch(next + 64 * line, 0, 3);
        if (lines == kLines) __builtin_prefetch(next + 64 * (kLines - 1), 0, 3);
        next += 64 * lines;
        lead += 64 * lines;
        columns(k);
      }
      if (k == whole) break;
      lead -= 64 * kLines;
      cursor.next = next;
      cursor.lead = lead;
      cursor.prefetch(lines_for());
      next = cursor.next;
      lead = cursor.lead;
      columns(k);
      k += kFlight;
    }
    cursor.next = next;
    cursor.lead = lead - int64_t(cols - k) * kRows * 2;
  }
  for (; k < cols; ++k)
    for (int v = 0; v < kVecs; ++v) {
      const Vec column = widen<kHalf>(panel + int64_t(k) * kRows + v * kWidth);
      for (int i = 0; i < kVectors; ++i) acc[i][0][v] += column * x[i * stride + k];
    }
  cursor.fill_lead();
  // Written out: a loop that halves would keep the sums in memory, and store all of them with each turn of the one above.
  for (int i = 0; i < kVectors; ++i)
    for (int v = 0; v < kVecs; ++v) {
      const Vec even = (acc[i][0][v] + acc[i][4][v]) + (acc[i][2][v] + acc[i][6][v]);
      const Vec odd = (acc[i][1][v] + acc[i][5][v]) + (acc[i][3][v] + acc[i][7][v]);
      store(y + i * kRows + v * kWidth, even + odd);
    }
}
template <Half kHalf, class Cursor>
static inline void panel_vector(const uint16_t* panel, const float* x, int cols, float* y, Cursor& cursor) {
  panel_vectors<kHalf, 1>(panel, x, 0, cols, y, cursor);
}

// How many vectors' sums the registers hold.
constexpr int kVectorsAtOnce = kWidth == 16 ? 3 : 1;

// As panel_vectors, for any number: the panel comes from memory for the first few, and from a near cache for the others.
template <Half kHalf, class Cursor>
static inline void panel_any(const uint16_t* panel, const float* x, int64_t stride, int count, int cols, float* y,
                             Cursor& cursor) {
  auto some = [&](int now, auto& from) {
    if (kVectorsAtOnce == 3 && now == 3) return panel_vectors<kHalf, kVectorsAtOnce>(panel, x, stride, cols, y, from);
    if (kVectorsAtOnce == 3 && now == 2) return panel_vectors<kHalf, kVectorsAtOnce == 3 ? 2 : 1>(panel, x, stride, cols, y, from);
    panel_vectors<kHalf, 1>(panel, x, stride, cols, y, from);
  };
  Resident resident;
  int passes = (count + kVectorsAtOnce - 1) / kVectorsAtOnce;
  for (bool first = true; count > 0; first = false, --passes) {
    const int now = (count + passes - 1) / passes;
    first ? some(now, cursor) : some(now, resident);
    x += now * stride;
    y += now * kRows;
    count -= now;
  }
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

// As many sums as the registers hold: 24 of AVX-512's 32, fewer elsewhere.
constexpr int kTile = kWidth == 16 ? 12 : kWidth == 8 ? 3 : 4;
constexpr int kTilePanels = kWidth == 16 ? 2 : 1;

template <Half kHalf, int kPanels, int kTokens>
static inline void panel_rest(int tokens, const uint16_t* panels, const float* x, int cols, int stride,
                              float* y, int64_t y_panel) {
  if constexpr (kTokens > 0) {
    if (tokens == kTokens)
      panel_tile<kHalf, kPanels, kTokens>(panels, x, cols, stride, y, y_panel);
    else
      panel_rest<kHalf, kPanels, kTokens - 1>(tokens, panels, x, cols, stride, y, y_panel);
  }
}

// `count` (1 or kTilePanels) panels times a block of `tokens` columns. y: per panel, [tokens][16].
template <Half kHalf, int kPanels>
static inline void panel_block(const uint16_t* panels, const float* x, int cols, int tokens, float* y) {
  const int64_t y_panel = int64_t(tokens) * kRows;
  for (int t = 0; t < tokens; t += kTile) {
    const int now = tokens - t < kTile ? tokens - t : kTile;
    panel_rest<kHalf, kPanels, kTile>(now, panels, x + t, cols, tokens, y + t * kRows, y_panel);
  }
}

}  // namespace ml
