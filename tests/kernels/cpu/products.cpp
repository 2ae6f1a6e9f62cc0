// Products with one panel of any storage. Usage: products STORAGE COLUMNS TOKENS. Reads sixteen rows as a file has them, their
// FP8 scales [16][COLUMNS / 128, rounded up] and activations [COLUMNS][TOKENS]; writes, in FP32, the rows as they are read
// back, and products [TOKENS][16] with each token by itself, with those of as many requests, and with a block of them. Exits with 4
// if two panels side by side give other bits than one after the other.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "panel_pair.h"
#include "products.h"

namespace {

struct NoCursor {
  const char *next = nullptr, *end_of_run = nullptr;
  int64_t lead = 0;
  void prefetch(int) {}
  void fill_lead() {}
};

template <class T>
std::vector<T> read(size_t count) {
  std::vector<T> values(count);
  if (std::fread(values.data(), sizeof(T), count, stdin) != count) std::exit(3);
  return values;
}
void write(const std::vector<float>& values) { std::fwrite(values.data(), sizeof(float), values.size(), stdout); }

// Bit for bit, but for what is no number.
bool same(const ml::IntegerBlock& one, const ml::IntegerBlock& other) {
  return std::isnan(one.scale) ? std::isnan(other.scale) : std::memcmp(&one, &other, sizeof one) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int storage = std::atoi(argv[1]), cols = std::atoi(argv[2]), tokens = std::atoi(argv[3]);
  const int64_t row = ml::row_bytes(storage, cols), groups = (cols + ml::kFp8Side - 1) / ml::kFp8Side;
  const auto rows = read<uint8_t>(ml::kLine * row);
  const auto scales = read<float>(ml::kLine * groups);
  const auto x = read<float>(size_t(cols) * tokens);

  // The second panel has the rows of the first in the opposite order.
  const int64_t second = (ml::panel_bytes(storage, cols) + 63) / 64 * 64;
  std::vector<uint8_t> memory(2 * second + 64);
  uint8_t* panel = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  for (int r = 0; r < ml::kLine; ++r)
    for (int p = 0; p < 2; ++p) {
      const uint8_t* from = rows.data() + r * row;
      const int to = p ? ml::kLine - 1 - r : r;
      if (ml::is_packed(storage))
        ml::pack_row(storage, panel + p * second, to, from, scales.data() + r * groups, cols);
      else
        ml::pack_halves(reinterpret_cast<uint16_t*>(panel + p * second), to, reinterpret_cast<const uint16_t*>(from), cols);
    }

  std::vector<float> back(size_t(ml::kLine) * cols), single(size_t(tokens) * ml::kLine), together(single.size()), block(single.size());
  for (int r = 0; r < ml::kLine; ++r) ml::read_row(storage, panel, r, cols, back.data() + r * cols, 1);
  const int blocks = cols / ml::kIntegers;
  std::vector<ml::IntegerBlock> integers(size_t(blocks) * tokens + 1);
  std::vector<float> columns(x.size());
  NoCursor cursor;
  for (int t = 0; t < tokens; ++t) {
    float* column = columns.data() + size_t(t) * cols;
    ml::IntegerBlock* whole = integers.data() + size_t(t) * blocks;
    for (int k = 0; k < cols; ++k) column[k] = x[size_t(k) * tokens + t];
    if (ml::takes_integers(storage)) ml::to_integers(column, cols, 1, whole);
    ml::multiply_vector(storage, panel, {column, whole}, cols, single.data() + t * ml::kLine, cursor);
  }
  ml::multiply_vectors(storage, panel, {columns.data(), integers.data(), cols, blocks}, tokens, cols, together.data(), cursor);
  if (ml::takes_integers(storage) && ml::kPanelsAtOnce == 2) {
    const ml::Columns in{columns.data(), integers.data(), cols, blocks};
    std::vector<float> other(together.size()), pair(2 * together.size());
    const size_t bytes = together.size() * sizeof(float);
    ml::multiply_vectors(storage, panel + second, in, tokens, cols, other.data(), cursor);
    ml::multiply_panel_pair(storage, panel, second, in, tokens, cols, pair.data(), int64_t(together.size()), cursor);
    if (std::memcmp(pair.data(), together.data(), bytes) || std::memcmp(pair.data() + together.size(), other.data(), bytes)) return 4;
  }
  if (ml::takes_integers(storage)) {
    const auto alone = integers;
    ml::to_integers(x.data(), cols, tokens, integers.data());
    for (int t = 0; t < tokens; ++t)
      for (int k = 0; k < blocks; ++k)
        if (!same(alone[size_t(t) * blocks + k], integers[size_t(k) * tokens + t])) return 3;
  }
  ml::multiply_block(storage, panel, {x.data(), integers.data()}, cols, tokens, block.data());
  write(back);
  write(single);
  write(together);
  write(block);
}
