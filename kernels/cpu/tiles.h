// Work dealt in pieces whose size the compiler knows, so that a piece's sums stay in registers.
#pragma once

#include <type_traits>

namespace ml {

// Calls tile(how many as a constant, number of the first) for `count` things in pieces of at most kMost.
template <int kMost, class Tile>
static inline void in_tiles(int count, Tile&& tile, int first = 0) {
  if constexpr (kMost > 0) {
    for (; count - first >= kMost; first += kMost) tile(std::integral_constant<int, kMost>{}, first);
    if (first < count) in_tiles<kMost - 1>(count, tile, first);
  }
}

}  // namespace ml
