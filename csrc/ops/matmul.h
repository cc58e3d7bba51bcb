// Matrix product: out[row, n] = sum over k of x[row, k] * weight[n, k], then an epilogue.
//
// Rows of x are tokens; each output is one accumulation along k in a fixed order, so a token's result has the
// same bits whatever other tokens are computed with it. Quantised weights take quantised x and add up exactly
// in integers within a group of 32.
#pragma once

#include <array>
#include <cstdint>

#include "../packed_matrix.h"

namespace headrace {

enum class Epilogue : int32_t {
  kStore = 0,  // out = acc + bias
  kAdd = 1,    // out += scale * (acc + bias)
};

struct MatmulTask {
  const PackedMatrix* weight;
  const float* x;          // [num_rows, num_columns]: for weights that are not quantised
  int x_stride;
  QuantizedRows quantized; // for those that are
  int num_rows;
  const float* bias;       // [weight->num_rows] or null
  Epilogue epilogue;
  float scale;
  float* out;              // [num_rows, out_stride]
  int out_stride;
};

constexpr int kMaxTilePanels = 2;

// How a product is cut up. It decides how fast the product is, never a bit of it.
struct MatmulTuning {
  int32_t tile_rows;    // rows of x summed up together in registers, at most
  int32_t tile_panels;  // panels summed up together
  int32_t block_rows;   // rows that share a panel while it is in cache
  int32_t piece_bytes;  // packed weights that a piece of work reads, at least
};

// Which rows a product has decides what bounds it: few rows wait for memory, many for arithmetic.
constexpr int kNumRowClasses = 4;
constexpr int kLargestRows[kNumRowClasses - 1] = {1, 8, 32};  // of each class but the last

constexpr int RowClass(int num_rows) {
  int row_class = 0;
  while (row_class < kNumRowClasses - 1 && num_rows > kLargestRows[row_class]) ++row_class;
  return row_class;
}

using MatmulTunings = std::array<MatmulTuning, kNumRowClasses>;

// Computes outputs [16 * panel_begin, 16 * panel_end) of rows [row_begin, row_end). Needs no memory of its own.
using MatmulPanelsFn = void (*)(const MatmulTask& task, const MatmulTuning& tuning, int panel_begin, int panel_end,
                                int row_begin, int row_end);

}  // namespace headrace
