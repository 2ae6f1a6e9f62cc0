// Activations as integers of sixteen bits, for products with packed weights.
//
// 32 numbers share a scale: the largest of them becomes 32,512. Products of integers are exact and are summed up exactly, so
// that all that differs from FP32 is the rounding of each activation to 1/65,024 of the largest beside it. Weights are
// unsigned bytes. Where the processor multiplies unsigned by signed bytes and adds four of them at once (VNNI), an integer
// is a high byte times 256 and a signed low byte; elsewhere weights are widened to sixteen bits, even and odd columns apart.
#pragma once

#include <vector>

#include "simd.h"
#include "storage.h"

namespace ml {

typedef uint32_t UVec __attribute__((vector_size(4 * kWidth)));
typedef UVec UVecUnaligned __attribute__((aligned(4)));

static inline UVec load_bytes(const uint8_t* p) { return *reinterpret_cast<const UVecUnaligned*>(p); }
static inline UVec each(uint32_t x) { return UVec{} + x; }

// 32 activations. `quads` has two words for each four columns: high bytes and low bytes, or columns 0, 2 and 1, 3.
struct IntegerBlock {
  int32_t quads[2][8];
  float scale;
  float scaled_sum;
  int32_t sums[2];  // of the first and the last sixteen
};

// The same numbers in the two forms that products take; `integers` is set where a format needs it. Decode: one token;
// prefill: `x` is [column][tokens], `integers` [block of columns][tokens].
struct Columns {
  const float* x;
  const IntegerBlock* integers;
  int64_t x_stride = 0, integers_stride = 0;  // between the vectors of several requests

  // Those of a shard, whose numbers lie further on; packed weights have one shard a device.
  Columns from(int64_t numbers) const { return {x + numbers, integers, x_stride, integers_stride}; }
};

#if !defined(__AVX512VNNI__)
static inline void write_quad(IntegerBlock& to, int quad, const int32_t* x) {
  to.quads[0][quad] = int32_t(uint32_t(x[0] & 0xFFFF) | uint32_t(x[2]) << 16);
  to.quads[1][quad] = int32_t(uint32_t(x[1] & 0xFFFF) | uint32_t(x[3]) << 16);
}
#endif

// A NaN or an infinity among `x` makes the scale a NaN.
static inline void to_integers(const float* x, IntegerBlock& to) {
  constexpr float kLargest = 32512;  // 127 * 256: its high byte is a signed one
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  Vec peaks{}, total{};
  for (int i = 0; i < kIntegers; i += kWidth) {
    const Vec v = load(x + i);
    peaks = larger(larger(v, -v), peaks);
    total += v;
  }
  const float peak = largest(peaks), finite = sum(total) * 0.0f;
  const float inverse = peak > 0 ? kLargest / peak : 0;
#if defined(__AVX512VNNI__)
  for (int half = 0; half < 2; ++half) {
    const IVec whole = bits(load(x + 16 * half) * inverse + magic) - bits(magic);
    const __m128i high = _mm512_cvtepi32_epi8((__m512i)((whole + 128) >> 8)), low = _mm512_cvtepi32_epi8((__m512i)whole);
    std::memcpy(to.quads[0] + 4 * half, &high, sizeof high);
    std::memcpy(to.quads[1] + 4 * half, &low, sizeof low);
    to.sums[half] = _mm512_reduce_add_epi32((__m512i)whole);
  }
#else
  int32_t whole[kIntegers] __attribute__((aligned(64)));
  for (int i = 0; i < kIntegers; i += kWidth) {
    const IVec v = bits(load(x + i) * inverse + magic) - bits(magic);
    std::memcpy(whole + i, &v, sizeof v);
  }
  for (int half = 0; half < 2; ++half) {
    to.sums[half] = 0;
    for (int i = 0; i < 16; ++i) to.sums[half] += whole[16 * half + i];
  }
  for (int j = 0; j < 8; ++j) write_quad(to, j, whole + 4 * j);
#endif
  to.scale = peak / kLargest + finite;
  to.scaled_sum = to.scale * float(to.sums[0] + to.sums[1]);
}

// kWidth tokens side by side, whose 32 columns lie `tokens` apart: each becomes what it becomes by itself, bit for bit.
static inline void to_integers_together(const float* x, int tokens, IntegerBlock* to) {
  constexpr float kLargest = 32512;
  const Vec magic = splat(12582912.0f);
  Vec peak{}, total{};
  for (int i = 0; i < kIntegers; ++i) {
    const Vec v = load(x + int64_t(i) * tokens);
    peak = larger(larger(v, -v), peak);
    total += v;
  }
  const IVec some = peak > 0;
  const Vec inverse = from_bits(bits(kLargest / peak) & some), scale = peak / kLargest + total * 0.0f;
  IVec sums[2] = {}, words[16 / kWidth][kWidth];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    UVec high{}, low{};
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const IVec whole = bits(load(x + int64_t(4 * j + c) * tokens) * inverse + magic) - bits(magic);
      sums[j / 4] += whole;
#if defined(__AVX512VNNI__)
      high |= (UVec(whole + 128) >> 8 & each(0xFF)) << 8 * c;
      low |= (UVec(whole) & each(0xFF)) << 8 * c;
#else
      (c % 2 ? low : high) |= (UVec(whole) & each(0xFFFF)) << 16 * (c / 2);
#endif
    }
    words[j / kWidth][j % kWidth] = IVec(high);
    words[(8 + j) / kWidth][(8 + j) % kWidth] = IVec(low);
  }
  for (int part = 0; part < 16 / kWidth; ++part) {
    transpose(words[part]);
    for (int t = 0; t < kWidth; ++t) std::memcpy(to[t].quads[0] + part * kWidth, &words[part][t], sizeof(IVec));
  }
  const Vec scaled_sum = scale * __builtin_convertvector(sums[0] + sums[1], Vec);
  for (int t = 0; t < kWidth; ++t) {
    to[t].scale = scale[t];
    to[t].scaled_sum = scaled_sum[t];
    for (int half = 0; half < 2; ++half) to[t].sums[half] = sums[half][t];
  }
}

// The columns of a block of tokens, [column][tokens], as [block of columns][token]. `to` has room for all of them.
static inline void to_integers(const float* x, int cols, int tokens, IntegerBlock* to) {
  if (tokens == 1) {
    for (int k = 0; k < cols; k += kIntegers) to_integers(x + k, *to++);
    return;
  }
  float column[kIntegers];
  for (int k = 0; k < cols; k += kIntegers, x += int64_t(kIntegers) * tokens, to += tokens) {
    int t = 0;
    for (; t + kWidth <= tokens; t += kWidth) to_integers_together(x + t, tokens, to + t);
    if (t == tokens) continue;
    if (t > 0) {  // the last ones, some of them once more
      to_integers_together(x + tokens - kWidth, tokens, to + tokens - kWidth);
      continue;
    }
    for (; t < tokens; ++t) {
      for (int i = 0; i < kIntegers; ++i) column[i] = x[int64_t(i) * tokens + t];
      to_integers(column, to[t]);
    }
  }
}

// Running sums of a vector of rows, of high and low bytes apart where an integer is two: their total is what weights times
// activations give.
struct IntegerSum {
#if defined(__AVX512VNNI__)
  static constexpr int kParts = 2;
#else
  static constexpr int kParts = 1;
#endif
  IVec parts[kParts];

  IntegerSum() = default;
  explicit IntegerSum(int32_t start) : parts{} { parts[kParts - 1] += start; }

  // Adds four columns: `codes` are unsigned bytes.
  void add(UVec codes, const IntegerBlock& x, int quad) {
#if defined(__AVX512VNNI__)
    for (int i = 0; i < 2; ++i)
      parts[i] = (IVec)_mm512_dpbusd_epi32((__m512i)parts[i], (__m512i)codes, _mm512_set1_epi32(x.quads[i][quad]));
#elif defined(__AVX512BW__)
    const __m512i even = (__m512i)(codes & each(0x00FF00FF)), odd = _mm512_srli_epi16((__m512i)codes, 8);
    const IVec evens = (IVec)_mm512_madd_epi16(even, _mm512_set1_epi32(x.quads[0][quad]));
    parts[0] += evens + (IVec)_mm512_madd_epi16(odd, _mm512_set1_epi32(x.quads[1][quad]));
#elif defined(__AVX2__)
    const __m256i even = (__m256i)(codes & each(0x00FF00FF)), odd = _mm256_srli_epi16((__m256i)codes, 8);
    const IVec evens = (IVec)_mm256_madd_epi16(even, _mm256_set1_epi32(x.quads[0][quad]));
    parts[0] += evens + (IVec)_mm256_madd_epi16(odd, _mm256_set1_epi32(x.quads[1][quad]));
    asm("" : "+x"(parts[0]));  // here: a compiler that puts additions off has no registers for what is to be added
#else
    for (int i = 0; i < 2; ++i) {
      const UVec words = codes >> 8 * i;
      parts[0] += IVec(words & 0xFF) * int32_t(int16_t(x.quads[i][quad] & 0xFFFF));
      parts[0] += IVec(words >> 16 & 0xFF) * (x.quads[i][quad] >> 16);
    }
#endif
  }
  Vec total() const {
#if defined(__AVX512VNNI__)
    return __builtin_convertvector((parts[0] << 8) + parts[1], Vec);
#else
    return __builtin_convertvector(parts[0], Vec);
#endif
  }
};

}  // namespace ml
