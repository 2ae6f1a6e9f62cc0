// Products of panels of any storage, as workers call them. Their loops are many: each is compiled once, in products_*.cpp.
#pragma once

#include "activations.h"
#include "experts.h"
#include "panel.h"
#include "weight_cursor.h"

namespace ml {

// A panel times one vector: `y` gets sixteen numbers.
void multiply_vector(int storage, const uint8_t* panel, Columns in, int cols, float* y, WeightCursor& cursor);
void multiply_vector(int storage, const uint8_t* panel, Columns in, int cols, float* y, RunCursor& cursor);

// A panel times a vector of each of `count` requests: [count][16]. Each gets, bit for bit, what multiply_vector gives it; the
// panel comes from memory once.
void multiply_vectors(int storage, const uint8_t* panel, Columns in, int count, int cols, float* y, WeightCursor& cursor);

// Panels that are multiplied side by side with `count` vectors: with fewer than three, memory is the bound and not the loads.
constexpr int panels_together(int count) { return count > 2 ? kPanelsAtOnce : 1; }

// Two panels of one storage that takes integers, `second` bytes apart, as multiply_vectors; those of the second one `y_second`
// further on. Where kPanelsAtOnce is 2.
void multiply_panel_pair(int storage, const uint8_t* panel, int64_t second, Columns in, int count, int cols, float* y,
                         int64_t y_second, WeightCursor& cursor);

// A panel times a block of tokens: [tokens][16].
void multiply_block(int storage, const uint8_t* panel, Columns in, int cols, int tokens, float* y);

// Two panels of sixteen bits, one after the other, as multiply_block. Where kTilePanels is 2.
void multiply_pair(int storage, const uint8_t* panels, Columns in, int cols, int tokens, float* y);

}  // namespace ml
