// A number of the cache: float16, or E4M3 as engine/e4m3.py rounds it.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace ml {

// A number of E4M3 as a float16 that is 2^8 too small, exactly. Of NaN alone the sum reaches bit 14, which makes it one there.
static inline uint16_t fp8_to_half(uint8_t x) {
  const uint16_t rest = uint16_t((x & 0x7F) << 7);
  return uint16_t((x & 0x80) << 8 | rest | ((rest + 0x80) & 0x4000));
}

// kWidth of them. Where the sign has been spread to bit 14, the sum clears that of all but NaN.
static inline Vec fp8_shrunk(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i spread = _mm256_slli_epi16(wide, 7), sums = _mm256_add_epi16(spread, _mm256_set1_epi16(0x80));
  const __m256i bit_14 = _mm256_set1_epi16(0x4000);
  return (Vec)_mm512_cvtph_ps(_mm256_ternarylogic_epi32(spread, sums, bit_14, 0x78));  // spread ^ (sums & bit_14)
#elif defined(__AVX2__) && defined(__F16C__)
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i spread = _mm_slli_epi16(wide, 7), sums = _mm_add_epi16(spread, _mm_set1_epi16(0x80));
  return (Vec)_mm256_cvtph_ps(_mm_xor_si128(spread, _mm_and_si128(sums, _mm_set1_epi16(0x4000))));
#else
  uint16_t wide[kWidth];
  for (int i = 0; i < kWidth; ++i) wide[i] = fp8_to_half(p[i]);
  return widen<Half::kFloat16>(wide);
#endif
}
constexpr float kFp8Shrunk = 0x1p8f;

// The nearest of E4M3, of two as near the even one; beyond 448, the largest, that. NaN stays one.
static inline uint8_t float_to_e4m3(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  const uint32_t sign = word >> 24 & 0x80;
  word &= 0x7FFFFFFF;
  if (word > 0x7F800000) return uint8_t(sign | 0x7F);
  if (word >= 0x43E00000) return uint8_t(sign | 0x7E);
  if (word < 0x3C800000) {  // below the smallest normal, 2^-6: let the adder round at 2^-9
    float magnitude;
    std::memcpy(&magnitude, &word, 4);
    magnitude += 0x1p14f;
    std::memcpy(&word, &magnitude, 4);
    return uint8_t(sign | (word - 0x46800000));
  }
  word += 0x7FFFF + (word >> 20 & 1);
  return uint8_t(sign | ((word - 0x3C000000) >> 20));
}

// How attention reads and writes one. What it reads is kShrunk too small, which a sum of products may make good at its end.
struct Float16 {
  using Word = uint16_t;
  static constexpr float kShrunk = 1;
  static Vec shrunk(const Word* p) { return widen<Half::kFloat16>(p); }
  static float to_float(Word w) { return half_to_float(w); }
  static Word narrow(float x) { return float_to_half(x); }
};
struct E4m3 {
  using Word = uint8_t;
  static constexpr float kShrunk = kFp8Shrunk;
  static Vec shrunk(const Word* p) { return fp8_shrunk(p); }
  static float to_float(Word w) { return half_to_float(fp8_to_half(w)) * kShrunk; }
  static Word narrow(float x) { return float_to_e4m3(x); }
};

}  // namespace ml
