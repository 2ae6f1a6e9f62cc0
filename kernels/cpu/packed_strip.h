// Strips of packed panels (storage.h), format by format: their codes as vectors of bytes, their scales and offsets as FP32.
#pragma once

#include "activations.h"
#include "panel.h"

namespace ml {

// kWidth bytes as whole numbers. GCC's own conversion of vectors takes byte by byte.
static inline IVec whole_numbers(const uint8_t* p) {
#if defined(__AVX512F__)
  return (IVec)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (IVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  IVec v;
  for (int i = 0; i < kWidth; ++i) v[i] = p[i];
  return v;
#endif
}
static inline IVec signed_numbers(const uint8_t* p) {
  const IVec v = whole_numbers(p) << 24;
  return v >> 24;
}
static inline Vec halves(const uint8_t* p) { return widen<Half::kFloat16>(reinterpret_cast<const uint16_t*>(p)); }

// Sixteen bytes, chosen by the low nibble of each byte of `index` (high nibbles are 0).
static inline UVec choose(const uint8_t* table, UVec index) {
#if defined(__AVX512BW__)
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return (UVec)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), (__m512i)index);
#elif defined(__AVX2__)
  const __m128i row = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return (UVec)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row), (__m256i)index);
#elif defined(__aarch64__)
  return (UVec)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)index);
#else
  uint8_t bytes[sizeof index];
  std::memcpy(bytes, &index, sizeof bytes);
  for (auto& byte : bytes) byte = table[byte];
  std::memcpy(&index, bytes, sizeof bytes);
  return index;
#endif
}

static inline UVec low_nibbles(UVec pair) { return pair & each(0x0F0F0F0F); }
static inline UVec high_nibbles(UVec pair) { return pair >> 4 & each(0x0F0F0F0F); }

// What a strip of one format gives: the codes of a block of 32 columns as eight vectors of unsigned bytes (quad `j` of rows `v`),
// what is to be subtracted from each, and a scale for each half of the block. With kOffset, offset() is subtracted too, once
// for each column.
struct StripReader {
  const uint8_t *scales, *upper, *codes;
  StripReader(int storage, const uint8_t* strip, int cols) {
    const StripLayout at = strip_layout(storage, cols);
    scales = strip;
    upper = strip + at.upper;
    codes = strip + at.codes;
  }
  const uint8_t* quad(int number, int v) const { return codes + number * kQuadBytes + v * 4 * kWidth; }
  // Quad j of a block in nibbles: two quads share a line.
  UVec nibbles(int block, int j, int v) const {
    const UVec both = load_bytes(quad(4 * block + j % 4, v));
    return j < 4 ? low_nibbles(both) : high_nibbles(both);
  }
};

template <int kStorage>
struct Strip;

template <>
struct Strip<ML_Q8_0> : StripReader {
  static constexpr int kBias = 128, kHalves = 1;
  static constexpr bool kOffset = false;
  using StripReader::StripReader;
  UVec code(int block, int j, int v) const { return load_bytes(quad(8 * block + j, v)); }
  Vec scale(int block, int, int v) const { return halves(scales + (block * kLine + v * kWidth) * 2); }
};

template <>
struct Strip<ML_Q5_0> : StripReader {
  static constexpr int kBias = 16, kHalves = 1;
  static constexpr bool kOffset = false;
  using StripReader::StripReader;
  UVec code(int block, int j, int v) const {
    const UVec fifth = load_bytes(upper + block * kQuadBytes + v * 4 * kWidth);
    return nibbles(block, j, v) | ((j < 4 ? fifth << (4 - j) : fifth >> (j - 4)) & each(0x10101010));
  }
  Vec scale(int block, int, int v) const { return halves(scales + (block * kLine + v * kWidth) * 2); }
};

template <>
struct Strip<ML_MXFP4> : StripReader {
  static constexpr int kBias = 12, kHalves = 1;
  static constexpr bool kOffset = false;
  using StripReader::StripReader;
  // Twice the values of E2M1, raised by 12.
  UVec code(int block, int j, int v) const {
    alignas(16) static constexpr uint8_t kValues[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return choose(kValues, nibbles(block, j, v));
  }
  // 2^(e - 128); the two smallest are no normal numbers.
  Vec scale(int block, int, int v) const {
    const IVec e = whole_numbers(scales + block * kLine + v * kWidth);
    const IVec tiny = e < 2;
    return from_bits(((e - 1) << 23 & ~tiny) | ((e + 1) << 21 & tiny));
  }
};

// Codes of four bits as they are, beside a scale and an offset.
struct NibbleReader : StripReader {
  static constexpr int kBias = 0, kHalves = 1;
  static constexpr bool kOffset = true;
  using StripReader::StripReader;
  UVec code(int block, int j, int v) const { return nibbles(block, j, v); }
};

template <>
struct Strip<ML_Q4_1> : NibbleReader {
  using NibbleReader::NibbleReader;
  Vec scale(int block, int, int v) const { return halves(scales + block * 64 + v * kWidth * 2); }
  Vec offset(int block, int v) const { return -halves(scales + block * 64 + 32 + v * kWidth * 2); }
};

template <>
struct Strip<ML_Q4_K> : NibbleReader {
  using NibbleReader::NibbleReader;
  Vec scale(int block, int, int v) const { return halves(scales + v * kWidth * 2) * six_bits(block, 0, v); }
  Vec offset(int block, int v) const { return halves(scales + 32 + v * kWidth * 2) * six_bits(block, 1, v); }

 private:
  // A row's twelve bytes: scales and offsets of blocks 0-3 in the low six bits of bytes 0-3 and 4-7; of blocks 4-7 the low
  // four bits in the two nibbles of bytes 8-11 and the upper two in the upper bits of the others.
  Vec six_bits(int block, int which, int v) const {
    const UVec first = load_bytes(scales + 64 + which * 64 + v * 4 * kWidth);
    if (block < 4) return __builtin_convertvector((IVec)(first >> 8 * block & each(63)), Vec);
    const UVec last = load_bytes(scales + 192 + v * 4 * kWidth);
    const int shift = 8 * (block - 4);
    const UVec found = (last >> (shift + 4 * which) & each(15)) | (first >> (shift + 2) & each(0x30));
    return __builtin_convertvector((IVec)found, Vec);
  }
};

template <>
struct Strip<ML_Q6_K> : StripReader {
  static constexpr int kBias = 32, kHalves = 2;
  static constexpr bool kOffset = false;
  using StripReader::StripReader;
  UVec code(int block, int j, int v) const {
    const int half = j / 4, shift = 2 * (j % 4);
    const UVec two = load_bytes(upper + (2 * block + half) * kQuadBytes + v * 4 * kWidth);
    return nibbles(block, j, v) | ((shift < 4 ? two << (4 - shift) : two >> (shift - 4)) & each(0x30303030));
  }
  Vec scale(int block, int half, int v) const {
    return halves(scales + v * kWidth * 2) *
           __builtin_convertvector(signed_numbers(scales + 64 + (2 * block + half) * kLine + v * kWidth), Vec);
  }
};

}  // namespace ml
