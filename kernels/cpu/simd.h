// Vectors of the machine's own width, through the compiler's vector types: one source for AVX-512, AVX2,
// NEON and plain C++. Only the conversions from 16 bits and the test for the sentinel need intrinsics.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <time.h>

#if defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ml {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kWidth)));
typedef int32_t IVec __attribute__((vector_size(4 * kWidth)));
typedef Vec VecUnaligned __attribute__((aligned(4)));
typedef IVec IVecUnaligned __attribute__((aligned(4)));

static inline Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }
static inline void store(float* p, Vec v) { *reinterpret_cast<VecUnaligned*>(p) = v; }
static inline Vec splat(float x) { return Vec{} + x; }
static inline IVec bits(Vec v) { return reinterpret_cast<IVec>(v); }
static inline Vec from_bits(IVec v) { return reinterpret_cast<Vec>(v); }

static inline float sum(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0;
  for (int i = 0; i < kWidth; ++i) total += v[i];
  return total;
#endif
}

static inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#else
  const IVec more = a > b;
  return from_bits((bits(a) & more) | (bits(b) & ~more));
#endif
}

static inline float largest(Vec v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float most = v[0];
  for (int i = 1; i < kWidth; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// True if a comparison held for any element.
static inline bool any(IVec v) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)v) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)v) != 0;
#else
  int32_t found = 0;
  for (int i = 0; i < kWidth; ++i) found |= v[i];
  return found != 0;
#endif
}

// A product that is rounded by itself: the compiler must not fuse it with an addition.
static inline Vec rounded(Vec v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  volatile Vec kept = v;
  v = kept;
#endif
  return v;
}
static inline float rounded(float x) { return rounded(splat(x))[0]; }

enum class Half : int { kFloat16 = 0, kBfloat16 = 1 };

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7FFF;
  uint32_t word;
  if (rest >= 0x7C00) {
    word = 0x7F800000u | (rest & 0x3FF) << 13;
  } else {
    // A float16's exponent and mantissa, read as a float32 that is 2^112 too small, subnormals included.
    word = rest << 13;
    float value;
    std::memcpy(&value, &word, 4);
    value *= 0x1p112f;
    std::memcpy(&word, &value, 4);
  }
  word |= sign;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

static inline float bfloat_to_float(uint16_t h) {
  const uint32_t word = uint32_t(h) << 16;
  float out;
  std::memcpy(&out, &word, 4);
  return out;
}

template <Half kHalf>
static inline float widen_one(uint16_t h) {
  return kHalf == Half::kFloat16 ? half_to_float(h) : bfloat_to_float(h);
}

// kWidth 16-bit values at `p`, as float32. Exact.
template <Half kHalf>
static inline Vec widen(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  if constexpr (kHalf == Half::kFloat16) return (Vec)_mm512_cvtph_ps(raw);
  return (Vec)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
#elif defined(__AVX2__) && defined(__F16C__)
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  if constexpr (kHalf == Half::kFloat16) return (Vec)_mm256_cvtph_ps(raw);
  return (Vec)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
#elif defined(__aarch64__)
  if constexpr (kHalf == Half::kFloat16) return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
  return (Vec)vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
#else
  Vec v;
  for (int i = 0; i < kWidth; ++i) v[i] = widen_one<kHalf>(p[i]);
  return v;
#endif
}

// Round to nearest even, overflow to infinity: what the KV cache stores.
static inline uint16_t float_to_half(float x) {
#if defined(__F16C__) || defined(__AVX512F__)
  return uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  const __fp16 h = x;
  uint16_t out;
  std::memcpy(&out, &h, 2);
  return out;
#else
  uint32_t word;
  std::memcpy(&word, &x, 4);
  const uint32_t sign = (word >> 16) & 0x8000;
  word &= 0x7FFFFFFF;
  if (word > 0x7F800000) return uint16_t(sign | 0x7E00);
  if (word >= 0x477FF000) return uint16_t(sign | 0x7C00);
  if (word < 0x38800000) {  // below the smallest normal: let the adder round at 2^-24
    float magnitude;
    std::memcpy(&magnitude, &word, 4);
    magnitude += 0.5f;
    std::memcpy(&word, &magnitude, 4);
    return uint16_t(sign | (word - 0x3F000000));
  }
  word += 0xFFF + ((word >> 13) & 1);
  return uint16_t(sign | ((word - 0x38000000) >> 13));
#endif
}

// e^x to 2 units in the last place, for x <= 88; 0 below -87. Cephes' polynomial.
static inline Vec exp(Vec x) {
  const Vec low = splat(-87.0f);
  const IVec tiny = x < low;
  x = from_bits((bits(x) & ~tiny) | (bits(low) & tiny));
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec rounded = x * 1.44269504088896341f + magic;
  const Vec n = rounded - magic;
  Vec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Vec value = p * r * r + r + 1.0f;
  const IVec scaled = bits(value) + ((bits(rounded) - bits(magic)) << 23);
  return from_bits(scaled & ~tiny);
}

// Bounds keep exp within its range; NaN stays NaN.
static inline Vec silu(Vec x) { return x / (1.0f + exp(-larger(splat(-87.0f), x))); }

static inline Vec tanh(Vec x) {
  const Vec inside = -larger(splat(-10.0f), -larger(splat(-10.0f), x));  // beyond 9.1 it is 1 to the last bit
  return 1.0f - 2.0f / (1.0f + exp(2.0f * inside));
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))): Hendrycks and Gimpel 2016.
static inline Vec gelu(Vec x) {
  return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// Each value becomes cap * tanh(value / cap), unless the cap is 0. `count` is a multiple of kWidth.
static inline void soft_cap(float* values, int count, float cap) {
  if (cap == 0) return;
  for (int i = 0; i < count; i += kWidth) store(values + i, cap * tanh(load(values + i) * (1 / cap)));
}

// A clock that costs a few nanoseconds, in its own unit.
static inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
#endif
}

static inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Of two vectors, one after the other, the elements that make up two of a transpose in which they lie kApart apart.
template <int kApart>
struct Swaps {
  alignas(64) int32_t low[kWidth], high[kWidth];
  constexpr Swaps() : low(), high() {
    for (int i = 0; i < kWidth; ++i) {
      low[i] = i & kApart ? kWidth + i - kApart : i;
      high[i] = i & kApart ? kWidth + i : i + kApart;
    }
  }
};

// kWidth vectors become their transpose.
template <int kApart = kWidth / 2>
static inline void transpose(IVec (&rows)[kWidth]) {
  if constexpr (kApart > 0) {
    static constexpr Swaps<kApart> swaps;
    IVec low, high;
    std::memcpy(&low, swaps.low, sizeof low);
    std::memcpy(&high, swaps.high, sizeof high);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) {
      if (i & kApart) continue;
      const IVec a = rows[i], b = rows[i + kApart];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + kApart] = __builtin_shuffle(a, b, high);
    }
    transpose<kApart / 2>(rows);
  }
}

}  // namespace ml
