// Products of two panels side by side.
#include "panel_pair.h"
#include "products.h"

namespace ml {

void multiply_panel_pair(int storage, const uint8_t* panel, int64_t second, Columns in, int count, int cols, float* y,
                         int64_t y_second, WeightCursor& cursor) {
  if constexpr (kPanelsAtOnce == 2)
    multiply_panel_pair<WeightCursor>(storage, panel, second, in, count, cols, y, y_second, cursor);
}

}  // namespace ml
