// Panels: sixteen rows of a matrix, column by column, so that one vector load holds one column of all sixteen.
//
// y[r] = sum over k of W[r, k] * x[k] then needs no horizontal sum: sixteen rows accumulate side by side, each
// column's weight times a broadcast x[k]. The same panel serves one token (decode, bound by the tape's
// bandwidth) and a block of tokens (prefill, bound by arithmetic): `x` is column-major, [k][tokens].
#pragma once

#include "mailbox.h"
#include "simd.h"

namespace ml {

constexpr int kRows = kLine;
constexpr int kVecs = kRows / kWidth;  // vectors that make up one column of a panel

// Rows first .. first + 15 of a row-major [rows, cols] matrix into a panel; rows beyond the last are zero.
static inline void pack_panel(uint16_t* panel, const uint16_t* matrix, int rows, int cols, int first) {
  const int have = rows - first < kRows ? rows - first : kRows;
  for (int r = 0; r < kRows; ++r) {
    if (r >= have) {
      for (int k = 0; k < cols; ++k) panel[int64_t(k) * kRows + r] = 0;
      continue;
    }
    const uint16_t* row = matrix + int64_t(first + r) * cols;
    for (int k = 0; k < cols; ++k) panel[int64_t(k) * kRows + r] = row[k];
  }
}

// How far ahead of its use the tape is asked for at least: more than a memory round trip at the core's share of the
// bandwidth, across page ends, where the hardware prefetcher stops.
constexpr int64_t kAhead = 8192;

// Where a stream has been asked for up to. A thread that waits runs further ahead; a product then asks for less than it
// reads until the lead is spent, so that the memory works through the wait and the product outruns it afterwards.
struct Asked {
  const char* upto = nullptr;
  const char* end = nullptr;

  // Asks for `lines` more. The processor drops what exceeds its buffers: this costs nothing, and promises nothing.
  void ask(int lines) {
    for (; lines > 0 && upto < end; --lines, upto += 64) __builtin_prefetch(upto, 0, 2);
  }
  // Reads `lines` more, whatever that takes; returns how many of them were beyond the end.
  int touch(int lines) {
    for (; lines > 0 && upto < end; --lines, upto += 64) (void)*reinterpret_cast<const volatile char*>(upto);
    return lines;
  }
};

// One panel times one vector. `y` gets sixteen sums. Eight columns in flight hide the latency of the FMA.
template <Half kHalf>
static inline void panel_vector(const uint16_t* panel, const float* x, int cols, float* y, Asked& asked) {
  constexpr int kFlight = 8, kLines = kFlight / 2;
  Vec acc[kFlight][kVecs] = {};
  const char* upto = asked.upto;
  int k = 0;
  for (; k + kFlight <= cols; k += kFlight) {
    const uint16_t* w = panel + int64_t(k) * kRows;
    for (int line = 0; line < kLines - 1; ++line) __builtin_prefetch(upto + 64 * line, 0, 3);
    upto += 64 * (kLines - 1);
    if (upto - reinterpret_cast<const char*>(w) <= kAhead) {
      __builtin_prefetch(upto, 0, 3);
      upto += 64;
    }
    for (int j = 0; j < kFlight; ++j)
      for (int v = 0; v < kVecs; ++v) acc[j][v] += widen<kHalf>(w + j * kRows + v * kWidth) * x[k + j];
  }
  for (; k < cols; ++k)
    for (int v = 0; v < kVecs; ++v)
      acc[0][v] += widen<kHalf>(panel + int64_t(k) * kRows + v * kWidth) * x[k];
  for (const char* least = reinterpret_cast<const char*>(panel + int64_t(cols) * kRows) + kAhead; upto < least; upto += 64)
    __builtin_prefetch(upto, 0, 3);
  asked.upto = upto;
  for (int half = kFlight / 2; half >= 1; half /= 2)
    for (int j = 0; j < half; ++j)
      for (int v = 0; v < kVecs; ++v) acc[j][v] += acc[j + half][v];
  for (int v = 0; v < kVecs; ++v) store(y + v * kWidth, acc[0][v]);
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
