// Products with a vector of one request, or of each of several.
#include "packed_panel.h"
#include "products.h"

namespace ml {

void multiply_vector(int storage, const uint8_t* panel, Columns in, int cols, float* y, WeightCursor& cursor) {
  multiply_vector<WeightCursor>(storage, panel, in, cols, y, cursor);
}
void multiply_vector(int storage, const uint8_t* panel, Columns in, int cols, float* y, RunCursor& cursor) {
  multiply_vector<RunCursor>(storage, panel, in, cols, y, cursor);
}
void multiply_vectors(int storage, const uint8_t* panel, Columns in, int count, int cols, float* y, WeightCursor& cursor) {
  multiply_vectors<WeightCursor>(storage, panel, in, count, cols, y, cursor);
}

}  // namespace ml
