// Products with packed panels (storage.h): the integers are unpacked in registers, multiplied with activations as integers
// (activations.h), and scaled once for each 32 columns. FP8 numbers become FP32 and meet FP32 activations.
#pragma once

#include <type_traits>

#include "activations.h"
#include "cached_number.h"
#include "packed_strip.h"
#include "panel.h"

namespace ml {

// Adds a block of 32 columns of one vector of rows, unpacked before, times 32 activations.
template <int kStorage>
static inline Vec add_block(Vec acc, const UVec (&codes)[8], const Vec (&scales)[2], Vec offset, const IntegerBlock& x) {
  using Format = Strip<kStorage>;
  if constexpr (Format::kHalves == 1) {
    IntegerSum sum(-Format::kBias * (x.sums[0] + x.sums[1]));
    for (int j = 0; j < 8; ++j) sum.add(codes[j], x, j);
    acc += sum.total() * (scales[0] * x.scale);
  } else {
    for (int half = 0; half < 2; ++half) {
      IntegerSum sum(-Format::kBias * x.sums[half]);
      for (int j = 0; j < 4; ++j) sum.add(codes[4 * half + j], x, 4 * half + j);
      acc += sum.total() * (scales[half] * x.scale);
    }
  }
  if constexpr (Format::kOffset) acc -= offset * x.scaled_sum;
  return acc;
}

// Vector `v` of a strip's rows.
template <int kStorage>
struct StripPart {
  const Strip<kStorage>& strip;
  int v;
  UVec code(int block, int j) const { return strip.code(block, j, v); }
  Vec scale(int block, int half) const { return strip.scale(block, half, v); }
  Vec offset(int block) const { return strip.offset(block, v); }
};

// Adds a block of 32 columns of two vectors of rows times those of kVectors vectors, as add_block, quad by quad: an activation
// serves both, and codes need no more registers than a quad takes.
template <int kStorage, int kVectors>
__attribute__((always_inline)) static inline void add_blocks(const StripPart<kStorage> (&parts)[2], int block,
                                                             const IntegerBlock* x, int64_t stride, Vec (&acc)[2][kVectors]) {
  using Format = Strip<kStorage>;
  constexpr int kQuads = 8 / Format::kHalves;
  for (int half = 0; half < Format::kHalves; ++half) {
    IntegerSum sums[2][kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const int32_t* whole = x[i * stride].sums;
      for (auto& sum : sums) sum[i] = IntegerSum(-Format::kBias * (Format::kHalves == 1 ? whole[0] + whole[1] : whole[half]));
    }
#pragma GCC unroll 8
    for (int j = half * kQuads; j < (half + 1) * kQuads; ++j) {
      const UVec codes[2] = {parts[0].code(block, j), parts[1].code(block, j)};
      for (int i = 0; i < kVectors; ++i)
        for (int p = 0; p < 2; ++p) sums[p][i].add(codes[p], x[i * stride], j);
    }
    for (int p = 0; p < 2; ++p) {
      const Vec scale = parts[p].scale(block, half);
      for (int i = 0; i < kVectors; ++i) acc[p][i] += sums[p][i].total() * (scale * x[i * stride].scale);
    }
  }
  if constexpr (Format::kOffset)
    for (int p = 0; p < 2; ++p) {
      const Vec offset = parts[p].offset(block);
      for (int i = 0; i < kVectors; ++i) acc[p][i] -= offset * x[i * stride].scaled_sum;
    }
}

// The codes of a block of 32 columns.
template <int kStorage>
__attribute__((always_inline)) static inline void unpack(const Strip<kStorage>& strip, int block, int v, UVec (&codes)[8]) {
  for (int j = 0; j < 8; ++j) codes[j] = strip.code(block, j, v);
}
template <int kStorage>
static inline void read_scales(const Strip<kStorage>& strip, int block, int v, Vec (&scales)[2], Vec& offset) {
  for (int half = 0; half < Strip<kStorage>::kHalves; ++half) scales[half] = strip.scale(block, half, v);
  if constexpr (Strip<kStorage>::kOffset) offset = strip.offset(block, v);
}

// Keeps a cursor's prefetches in step with what is read, in registers, in one of kPasses over a panel as in panel.h.
template <int kNear, int kPasses, class Cursor>
class Ahead {
 public:
  // It need not be further ahead than kAhead and `more` bytes.
  Ahead(Cursor& cursor, bool reads, int64_t more) : cursor_(cursor), reads_(reads), most_(kAhead + more) { take(); }

  // `bytes` are about to be read: prefetches this pass's part of as many, or a line less while it is further ahead than it
  // need be.
  void read(int64_t bytes) {
    if (reads_) lead_ -= bytes;
    const int all = int((bytes / kPasses + 63) / 64);
    prefetch(lead_ <= most_ - bytes ? all : all - 1, all);
  }
  // As read; while it is not as far ahead as it should be, it prefetches some lines more.
  void read_and_catch_up(int64_t bytes) {
    if (reads_) lead_ -= bytes;
    const int all = int((bytes / kPasses + 63) / 64);
    const int64_t missing = most_ - bytes - lead_;
    prefetch(missing < 0 ? all - 1 : missing < kSlack ? all : all + kCatchUp, all + kCatchUp);
  }
  void end() {
    give();
    cursor_.fill_lead();
  }

 private:
  static constexpr int kCatchUp = 2;        // lines
  static constexpr int64_t kSlack = 1024;  // bytes

  // `lines`, at most `most`.
  void prefetch(int lines, int most) {
    if (__builtin_expect(together_ >= 64 * most, 1)) {
      for (int i = 0; i < lines; ++i) __builtin_prefetch(next_ + 64 * i, 0, kNear);
      next_ += 64 * lines;
      together_ -= 64 * lines;
      lead_ += 64 * lines;
    } else {
      give();
      cursor_.prefetch(lines);
      take();
    }
  }
  void take() {
    next_ = cursor_.next;
    lead_ = cursor_.lead;
    together_ = cursor_.end_of_run - next_;
  }
  void give() {
    cursor_.next = next_;
    cursor_.lead = lead_;
  }
  Cursor& cursor_;
  const bool reads_;
  const int64_t most_;
  const char* next_;
  int64_t together_, lead_;
};

// A panel is two vectors of rows: they share activations.
constexpr bool kQuadByQuad = kVecs == 2;

// One packed panel of integers times kVectors vectors, `stride` blocks apart: each block is unpacked once, and what a vector gives
// does not depend on how many there are. `y` gets sixteen sums of each.
template <int kStorage, int kVectors, int kPasses, class Cursor>
__attribute__((noinline)) static void packed_vectors(const uint8_t* panel, const IntegerBlock* x, int64_t stride, int cols,
                                                     float* y, Cursor& cursor, bool reads) {
  Vec acc[kVecs][kVectors] = {};
  Ahead<near_level(kVectors, kPasses), kPasses, Cursor> ahead(cursor, reads, kPasses == 1 ? 0 : panel_bytes(kStorage, cols));
  for (int first = 0; first < cols; first += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const int64_t bytes = strip_layout(kStorage, here).bytes;
    const Strip<kStorage> strip(kStorage, panel, here);
    for (int block = 0; block < here / kIntegers; ++block, ++x) {
      ahead.read(bytes * kIntegers / here);
      if constexpr (kQuadByQuad) {
        add_blocks<kStorage>({{strip, 0}, {strip, 1}}, block, x, stride, acc);
      } else {
        for (int v = 0; v < kVecs; ++v) {
          UVec codes[8];
          Vec scales[2], offset{};
          unpack(strip, block, v, codes);
          read_scales(strip, block, v, scales, offset);
          for (int i = 0; i < kVectors; ++i)
            acc[v][i] = add_block<kStorage>(acc[v][i], codes, scales, offset, x[i * stride]);
        }
      }
    }
    panel += bytes;
  }
  ahead.end();
  for (int i = 0; i < kVectors; ++i)
    for (int v = 0; v < kVecs; ++v) store(y + i * kRows + v * kWidth, acc[v][i]);
}

// Tokens of a block that meet a panel of integers at once: as many as the registers hold sums of.
constexpr int kIntegerTile = kQuadByQuad ? 4 : kTile;

// One packed panel of integers times kTokens vectors: each block is unpacked once. `x` is [block][stride]. What lies kAhead
// bytes further on is asked for: it is the next panel.
template <int kStorage, int kTokens>
__attribute__((noinline)) static void packed_tile(const uint8_t* panel, const IntegerBlock* x, int cols, int stride, float* y) {
  constexpr int kTogether = kQuadByQuad ? 2 : 1;
  for (int v = 0; v < kVecs; v += kTogether) {
    Vec acc[kTogether][kTokens] = {};
    const uint8_t* at = panel;
    const IntegerBlock* columns = x;
    for (int first = 0; first < cols; first += kStrip) {
      const int here = cols - first < kStrip ? cols - first : kStrip;
      const Strip<kStorage> strip(kStorage, at, here);
      const int64_t bytes = strip_layout(kStorage, here).bytes * kIntegers / here;
      for (int block = 0; block < here / kIntegers; ++block, columns += stride) {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + block * bytes + kAhead + i, 0, 2);
        if constexpr (kQuadByQuad) {
          add_blocks<kStorage>({{strip, 0}, {strip, 1}}, block, columns, 1, acc);
        } else {
          UVec codes[8];
          Vec scales[2], offset{};
          unpack(strip, block, v, codes);
          read_scales(strip, block, v, scales, offset);
          for (int t = 0; t < kTokens; ++t) acc[0][t] = add_block<kStorage>(acc[0][t], codes, scales, offset, columns[t]);
        }
      }
      at += strip_layout(kStorage, here).bytes;
    }
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < kTogether; ++i) store(y + t * kRows + (v + i) * kWidth, acc[i][t]);
  }
}

// One panel of FP8 times kVectors vectors of FP32, as panel_vectors in panel.h.
template <int kVectors, int kPasses, class Cursor>
__attribute__((noinline)) static void fp8_vectors(const uint8_t* panel, const float* x, int64_t stride, int cols, float* y,
                                                  Cursor& cursor, bool reads) {
  Vec total[kVectors][kVecs] = {};
  Ahead<near_level(kVectors, kPasses), kPasses, Cursor> ahead(cursor, reads, kPasses == 1 ? 0 : panel_bytes(ML_FP8_BLOCK, cols));
  for (int first = 0; first < cols; first += kStrip, x += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const StripLayout at = strip_layout(ML_FP8_BLOCK, here);
    for (int start = 0; start < here; start += kFp8Side) {
      const float* scales = reinterpret_cast<const float*>(panel) + start / kFp8Side * kLine;
      const int end = here < start + kFp8Side ? here : start + kFp8Side;
      Vec acc[kFlight][kVectors][kVecs] = {};
      auto column = [&](int k, int v) __attribute__((always_inline)) {
        return fp8_shrunk(panel + at.codes + k * kLine + v * kWidth);
      };
      auto add = [&](int k, int sum) __attribute__((always_inline)) {
        for (int v = 0; v < kVecs; ++v) {
          const Vec weights = column(k, v);
          for (int i = 0; i < kVectors; ++i) acc[sum][i][v] += weights * x[i * stride + k];
        }
      };
      int k = start;
      if constexpr (constexpr int kAtOnce = flights_at_once(kVectors); kAtOnce < kFlight) {
        for (const int whole = start + (end - start) / kStep * kStep; k < whole;) {
          const int now = whole - k < 32 ? whole - k : 32;
          ahead.read(512);
          for (int j = 0; j < kFlight; j += kAtOnce) add_flights<kAtOnce>(k + j, k + now, x, stride, acc + j, column);
          k += now;
        }
      } else {
        for (; k + kStep <= end; k += kStep) {
          if (k % 32 == 0) ahead.read(512);
          for (int j = 0; j < kStep; ++j) add(k + j, j % kFlight);
        }
      }
      for (; k < end; ++k) add(k, 0);
      for (int i = 0; i < kVectors; ++i)
        for (int v = 0; v < kVecs; ++v) {
          const Vec sum = (acc[0][i][v] + acc[2][i][v]) + (acc[1][i][v] + acc[3][i][v]);
          total[i][v] += sum * (load(scales + v * kWidth) * kFp8Shrunk);
        }
    }
    panel += at.bytes;
  }
  ahead.end();
  for (int i = 0; i < kVectors; ++i)
    for (int v = 0; v < kVecs; ++v) store(y + i * kRows + v * kWidth, total[i][v]);
}

template <int kTokens>
static inline void fp8_tile(const uint8_t* panel, const float* x, int cols, int stride, float* y) {
  Vec acc[kTokens][kVecs] = {};
  for (int first = 0; first < cols; first += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const StripLayout at = strip_layout(ML_FP8_BLOCK, here);
    for (int k = 0; k < here; ++k) {
      const float* scales = reinterpret_cast<const float*>(panel) + k / kFp8Side * kLine;
      const float* columns = x + int64_t(first + k) * stride;
      for (int v = 0; v < kVecs; ++v) {
        const Vec w = fp8_shrunk(panel + at.codes + k * kLine + v * kWidth) * (load(scales + v * kWidth) * kFp8Shrunk);
        for (int t = 0; t < kTokens; ++t) acc[t][v] += w * columns[t];
      }
    }
    panel += at.bytes;
  }
  for (int t = 0; t < kTokens; ++t)
    for (int v = 0; v < kVecs; ++v) store(y + t * kRows + v * kWidth, acc[t][v]);
}

// A panel of any storage times kVectors vectors, in one of kPasses over it.
template <int kVectors, int kPasses, class Cursor>
static inline void multiply_few(int storage, const uint8_t* panel, Columns in, int cols, float* y, Cursor& cursor, bool reads) {
  const auto* halves = reinterpret_cast<const uint16_t*>(panel);
  auto packed = [&](auto kind) {
    packed_vectors<kind, kVectors, kPasses>(panel, in.integers, in.integers_stride, cols, y, cursor, reads);
  };
  switch (storage) {
    case ML_F16:
      return panel_vectors<Half::kFloat16, kVectors, kPasses>(halves, in.x, in.x_stride, cols, y, cursor, reads);
    case ML_BF16:
      return panel_vectors<Half::kBfloat16, kVectors, kPasses>(halves, in.x, in.x_stride, cols, y, cursor, reads);
    case ML_FP8_BLOCK: return fp8_vectors<kVectors, kPasses>(panel, in.x, in.x_stride, cols, y, cursor, reads);
    default: return with_integers(storage, packed);
  }
}
template <class Cursor>
static inline void multiply_vector(int storage, const uint8_t* panel, Columns in, int cols, float* y, Cursor& cursor) {
  multiply_few<1, 1>(storage, panel, in, cols, y, cursor, true);
}

// Calls then(vectors as a constant) for `count` vectors, 1 to kMost.
template <int kMost, class Then>
static inline void with_count(int count, Then&& then) {
  if constexpr (kMost > 1)
    if (count < kMost) return with_count<kMost - 1>(count, then);
  then(std::integral_constant<int, kMost>{});
}

// Products with a vector of each of `count` requests, in as few passes over the weights as the registers allow, the first of
// which reads them from memory: calls pass(vectors as a constant, passes as a constant, their columns, where their products go,
// is it the first).
template <class Pass>
static inline void in_passes(Columns in, int count, float* y, Pass&& pass) {
  const int passes = (count + kVectorsAtOnce - 1) / kVectorsAtOnce;
  auto few = [&](auto of, int now, bool reads) {
    with_count<kVectorsAtOnce>(now, [&](auto vectors) { pass(vectors, of, in, y, reads); });
  };
  if (passes == 1) return few(std::integral_constant<int, 1>{}, count, true);
  constexpr int kMost = kVectorsAtOnce > 1 ? 2 : 4;
  for (int left = passes; left > 0; --left) {
    const int now = (count + left - 1) / left;
    if (passes < kMost)
      few(std::integral_constant<int, 2>{}, now, left == passes);
    else
      few(std::integral_constant<int, kMost>{}, now, left == passes);
    in.x += now * in.x_stride;
    in.integers += now * in.integers_stride;
    y += now * kRows;
    count -= now;
  }
}

// A panel of any storage times a vector of each of `count` requests. Each gets, bit for bit, what multiply_vector gives it; the
// panel comes from memory once. y: [count][16]
template <class Cursor>
static inline void multiply_vectors(int storage, const uint8_t* panel, Columns in, int count, int cols, float* y,
                                    Cursor& cursor) {
  in_passes(in, count, y, [&](auto vectors, auto passes, Columns columns, float* to, bool reads) {
    multiply_few<vectors, passes>(storage, panel, columns, cols, to, cursor, reads);
  });
}

// Row `row` of a packed panel, as FP32: `out` is [cols], `step` apart.
template <int kStorage>
static inline void unpack_row(const uint8_t* panel, int row, int cols, float* out, int64_t step) {
  const int v = row / kWidth, lane = row % kWidth;
  for (int first = 0; first < cols; first += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const Strip<kStorage> strip(kStorage, panel, here);
    for (int block = 0; block < here / kIntegers; ++block) {
      UVec codes[8];
      Vec scales[2], offset{};
      unpack(strip, block, v, codes);
      read_scales(strip, block, v, scales, offset);
      for (int i = 0; i < kIntegers; ++i, out += step) {
        const int code = int(codes[i / 4][lane] >> 8 * (i % 4) & 0xFF) - Strip<kStorage>::kBias;
        *out = float(code) * scales[Strip<kStorage>::kHalves == 2 ? i / 16 : 0][lane] - offset[lane];
      }
    }
    panel += strip_layout(kStorage, here).bytes;
  }
}

static inline void unpack_fp8_row(const uint8_t* panel, int row, int cols, float* out, int64_t step) {
  const int v = row / kWidth, lane = row % kWidth;
  for (int first = 0; first < cols; first += kStrip) {
    const int here = cols - first < kStrip ? cols - first : kStrip;
    const StripLayout at = strip_layout(ML_FP8_BLOCK, here);
    for (int k = 0; k < here; ++k, out += step) {
      const float scale = reinterpret_cast<const float*>(panel)[k / kFp8Side * kLine + row];
      *out = fp8_shrunk(panel + at.codes + k * kLine + v * kWidth)[lane] * (scale * kFp8Shrunk);
    }
    panel += at.bytes;
  }
}

// Row `row` of a panel of any storage.
static inline void read_row(int storage, const uint8_t* panel, int row, int cols, float* out, int64_t step) {
  const auto* halves = reinterpret_cast<const uint16_t*>(panel) + row;
  switch (storage) {
    case ML_F16:
      for (int k = 0; k < cols; ++k) out[k * step] = half_to_float(halves[int64_t(k) * kLine]);
      return;
    case ML_BF16:
      for (int k = 0; k < cols; ++k) out[k * step] = bfloat_to_float(halves[int64_t(k) * kLine]);
      return;
    case ML_FP8_BLOCK: return unpack_fp8_row(panel, row, cols, out, step);
    default: return with_integers(storage, [&](auto kind) { unpack_row<kind>(panel, row, cols, out, step); });
  }
}

}  // namespace ml
