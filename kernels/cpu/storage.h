// How a panel of packed weights lies in memory, and how rows in the format of a file get there.
//
// A packed panel is a list of strips: sixteen rows of up to 256 columns, scales first, then the integers, four columns of
// sixteen rows in 64 bytes (a quad), so that one instruction multiplies and adds four columns of each row. It takes the
// bytes that the file's blocks take, and up to 64 more a strip. With n the blocks of 32 columns in a strip:
//
//     Q8_0       n x 16 FP16 scales; n x 8 quads of 8 bits, raised by 128
//     Q5_0       n x 16 FP16 scales; n x 64 bytes of fifth bits (bit j: quad j); n x 4 pairs of quads
//     Q4_1       n x 16 FP16 d and 16 FP16 m; n x 4 pairs of quads
//     MXFP4      n x 16 exponents; n x 4 pairs of quads
//     Q4_K       16 FP16 d, 16 FP16 m; 16 x 4 bytes three times: scales and offsets in six bits; 32 pairs of quads
//     Q6_K       16 FP16 d, 32 bytes unused; 16 x 16 int8 scales; 32 pairs of quads; 16 x 64 bytes of upper bits
//     FP8_BLOCK  16 FP32 scales for each 128 columns; columns of 16 rows, 8 bits
//
// A pair holds quad i of a block in its low nibbles and quad i + 4 in its high ones. engine/models/storage.py lists the
// formats, engine/models/checkpoints/block_formats.py what their bits mean.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "contract.h"
#include "mailbox.h"

namespace ml {

constexpr int kStrip = 256;      // columns
constexpr int kIntegers = 32;    // columns that are multiplied as integers before a scale: a block
constexpr int kFp8Side = 128;    // columns that share a scale
constexpr int kQuadBytes = 64;   // four columns of sixteen rows

static inline bool is_packed(int storage) { return storage > ML_BF16 && storage <= ML_Q4_1; }
// Products with these take activations as integers.
static inline bool takes_integers(int storage) { return storage > ML_FP8_BLOCK && storage <= ML_Q4_1; }
// Calls then(storage as a constant) for one of them.
template <class Then>
static inline void with_integers(int storage, Then&& then) {
  switch (storage) {
    case ML_Q8_0: return then(std::integral_constant<int, ML_Q8_0>{});
    case ML_Q5_0: return then(std::integral_constant<int, ML_Q5_0>{});
    case ML_Q4_K: return then(std::integral_constant<int, ML_Q4_K>{});
    case ML_Q4_1: return then(std::integral_constant<int, ML_Q4_1>{});
    case ML_Q6_K: return then(std::integral_constant<int, ML_Q6_K>{});
    default: return then(std::integral_constant<int, ML_MXFP4>{});
  }
}
// Columns of a row that a file keeps together.
static inline int run_of(int storage) {
  switch (storage) {
    case ML_FP8_BLOCK: return kFp8Side;
    case ML_Q4_K:
    case ML_Q6_K: return kStrip;
    default: return is_packed(storage) ? kIntegers : 1;
  }
}
static inline int64_t lines_of(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Where the parts of a strip of `cols` columns lie, in bytes.
struct StripLayout {
  int64_t upper, codes, bytes;  // bits beyond the lowest four; integers; all
};
static inline StripLayout strip_layout(int storage, int cols) {
  const int64_t blocks = cols / kIntegers;
  switch (storage) {
    case ML_FP8_BLOCK: {
      const int64_t scales = (cols + kFp8Side - 1) / kFp8Side * 64;
      return {scales, scales, scales + lines_of(int64_t(cols) * kLine)};
    }
    case ML_Q8_0: return {lines_of(blocks * 32), lines_of(blocks * 32), lines_of(blocks * 32) + blocks * 512};
    case ML_Q5_0: {
      const int64_t scales = lines_of(blocks * 32);
      return {scales, scales + blocks * 64, scales + blocks * (64 + 256)};
    }
    case ML_MXFP4: return {lines_of(blocks * 16), lines_of(blocks * 16), lines_of(blocks * 16) + blocks * 256};
    case ML_Q4_1: return {blocks * 64, blocks * 64, blocks * (64 + 256)};
    case ML_Q4_K: return {64 + 192, 64 + 192, 64 + 192 + 2048};
    default: return {64 + 256 + 2048, 64 + 256, 64 + 256 + 2048 + 1024};  // Q6_K
  }
}
static inline int64_t panel_bytes(int storage, int cols) {
  if (!is_packed(storage)) return int64_t(cols) * kLine * 2;
  const int rest = cols % kStrip;
  return cols / kStrip * strip_layout(storage, kStrip).bytes + (rest ? strip_layout(storage, rest).bytes : 0);
}
// Bytes of a row in the format of a file.
static inline int64_t row_bytes(int storage, int64_t cols) {
  switch (storage) {
    case ML_FP8_BLOCK: return cols;
    case ML_Q8_0: return cols / 32 * 34;
    case ML_Q5_0: return cols / 32 * 22;
    case ML_MXFP4: return cols / 32 * 17;
    case ML_Q4_1: return cols / 32 * 20;
    case ML_Q4_K: return cols / 256 * 144;
    case ML_Q6_K: return cols / 256 * 210;
    default: return cols * 2;
  }
}

// Writes one row of a strip: the codes of a block of 32 columns, or a part of them.
struct StripRow {
  uint8_t* strip;
  StripLayout at;
  int row;

  void whole(int block, const uint8_t* codes) const {
    uint8_t* to = strip + at.codes + block * 512 + row * 4;
    for (int j = 0; j < 8; ++j) std::memcpy(to + j * kQuadBytes, codes + 4 * j, 4);
  }
  void nibbles(int block, const uint8_t* codes) const {
    uint8_t* to = strip + at.codes + block * 256 + row * 4;
    for (int j = 0; j < 16; ++j)
      to[j / 4 * kQuadBytes + j % 4] = uint8_t((codes[j] & 15) | (codes[16 + j] & 15) << 4);
  }
  void fifth_bits(int block, const uint8_t* codes) const {
    uint8_t* to = strip + at.upper + block * kQuadBytes + row * 4;
    for (int c = 0; c < 4; ++c) {
      int bits = 0;
      for (int j = 0; j < 8; ++j) bits |= (codes[4 * j + c] >> 4 & 1) << j;
      to[c] = uint8_t(bits);
    }
  }
  void upper_bits(int block, const uint8_t* codes) const {
    for (int half = 0; half < 2; ++half) {
      uint8_t* to = strip + at.upper + (2 * block + half) * kQuadBytes + row * 4;
      for (int c = 0; c < 4; ++c) {
        int bits = 0;
        for (int j = 0; j < 4; ++j) bits |= (codes[16 * half + 4 * j + c] >> 4 & 3) << 2 * j;
        to[c] = uint8_t(bits);
      }
    }
  }
  // Two bytes, number `i` of sixteen rows each.
  void half(int i, const uint8_t* bytes) const { std::memcpy(strip + (i * kLine + row) * 2, bytes, 2); }
};

static inline void pack_q8_0(StripRow to, int block, const uint8_t* from) {
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = from[2 + i] ^ 0x80;
  to.half(block, from);
  to.whole(block, codes);
}
static inline void pack_q5_0(StripRow to, int block, const uint8_t* from) {
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? from[6 + i] & 15 : from[6 + i - 16] >> 4;
    codes[i] = uint8_t(low | (from[2 + i / 8] >> i % 8 & 1) << 4);
  }
  to.half(block, from);
  to.nibbles(block, codes);
  to.fifth_bits(block, codes);
}
static inline void pack_q4_1(StripRow to, int block, const uint8_t* from) {
  uint8_t codes[32];
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[4 + i] & 15;
    codes[16 + i] = from[4 + i] >> 4;
  }
  to.half(2 * block, from);
  to.half(2 * block + 1, from + 2);
  to.nibbles(block, codes);
}
static inline void pack_mxfp4(StripRow to, int block, const uint8_t* from) {
  uint8_t codes[32];
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[1 + i] & 15;
    codes[16 + i] = from[1 + i] >> 4;
  }
  to.strip[block * kLine + to.row] = from[0];
  to.nibbles(block, codes);
}
static inline void pack_q4_k(StripRow to, const uint8_t* from) {
  to.half(0, from);
  to.half(1, from + 2);
  for (int i = 0; i < 3; ++i) std::memcpy(to.strip + 64 + i * 64 + to.row * 4, from + 4 + 4 * i, 4);
  for (int block = 0; block < 8; ++block) {
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i) codes[i] = from[16 + block / 2 * 32 + i] >> (block % 2 * 4) & 15;
    to.nibbles(block, codes);
  }
}
static inline void pack_q6_k(StripRow to, const uint8_t* from) {
  to.half(0, from + 208);
  for (int group = 0; group < 16; ++group) to.strip[64 + group * kLine + to.row] = from[192 + group];
  for (int block = 0; block < 8; ++block) {
    uint8_t codes[32];
    const int run = block / 4, part = block % 4;  // 128 columns, and 32 of them
    for (int i = 0; i < 32; ++i) {
      const int low = from[run * 64 + part % 2 * 32 + i] >> (part / 2 * 4) & 15;
      codes[i] = uint8_t(low | (from[128 + run * 32 + i] >> 2 * part & 3) << 4);
    }
    to.nibbles(block, codes);
    to.upper_bits(block, codes);
  }
}

// Row `row` (of sixteen) of a packed panel, from `cols` columns as a file has them. `scales`: of FP8, one for each 128.
static inline void pack_row(int storage, uint8_t* panel, int row, const uint8_t* from, const float* scales, int cols) {
  for (int first = 0; first < cols; first += kStrip) {
    const int here = std::min(kStrip, cols - first);
    const StripRow to{panel, strip_layout(storage, here), row};
    const uint8_t* block = from + row_bytes(storage, first);
    switch (storage) {
      case ML_FP8_BLOCK:
        for (int i = 0; i * kFp8Side < here; ++i)
          std::memcpy(panel + (i * kLine + row) * 4, scales + first / kFp8Side + i, 4);
        for (int k = 0; k < here; ++k) panel[to.at.codes + k * kLine + row] = block[k];
        break;
      case ML_Q4_K: pack_q4_k(to, block); break;
      case ML_Q6_K: pack_q6_k(to, block); break;
      default:
        for (int b = 0; b < here / kIntegers; ++b, block += row_bytes(storage, kIntegers)) {
          if (storage == ML_Q8_0) pack_q8_0(to, b, block);
          if (storage == ML_Q5_0) pack_q5_0(to, b, block);
          if (storage == ML_Q4_1) pack_q4_1(to, b, block);
          if (storage == ML_MXFP4) pack_mxfp4(to, b, block);
        }
    }
    panel += to.at.bytes;
  }
}

}  // namespace ml
