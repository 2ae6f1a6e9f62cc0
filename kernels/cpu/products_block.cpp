// Products with a block of a prompt's tokens.
#include "packed_panel.h"
#include "products.h"

namespace ml {

void multiply_block(int storage, const uint8_t* panel, Columns in, int cols, int tokens, float* y) {
  const auto* halves = reinterpret_cast<const uint16_t*>(panel);
  auto packed = [&](auto kind) {
    in_tiles<kIntegerTile>(tokens, [&](auto count, int t) {
      packed_tile<kind, count>(panel, in.integers + t, cols, tokens, y + t * kRows);
    });
  };
  switch (storage) {
    case ML_F16: return panel_block<Half::kFloat16, 1>(halves, in.x, cols, tokens, y);
    case ML_BF16: return panel_block<Half::kBfloat16, 1>(halves, in.x, cols, tokens, y);
    case ML_FP8_BLOCK:
      return in_tiles<kTile>(tokens, [&](auto count, int t) { fp8_tile<count>(panel, in.x + t, cols, tokens, y + t * kRows); });
    default: return with_integers(storage, packed);
  }
}

void multiply_pair(int storage, const uint8_t* panels, Columns in, int cols, int tokens, float* y) {
  const auto* halves = reinterpret_cast<const uint16_t*>(panels);
  if constexpr (kTilePanels == 2) {
    if (storage == ML_F16) return panel_block<Half::kFloat16, 2>(halves, in.x, cols, tokens, y);
    panel_block<Half::kBfloat16, 2>(halves, in.x, cols, tokens, y);
  }
}

}  // namespace ml
