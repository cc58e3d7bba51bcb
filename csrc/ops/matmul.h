// Matrix product: out[row, n] = sum over k of x[row, k] * weight[n, k], then an epilogue.
//
// Rows of x are tokens; each output is one accumulation along k in a fixed order, so a token's result has the
// same bits whatever other tokens are computed with it. Quantised weights take quantised x and add up exactly
// in integers within a group of 32.
#pragma once

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

// Bytes of scratch a thread needs for MatmulPanel.
inline size_t MatmulScratchBytes(const PackedMatrix& weight) {
  return weight.num_groups() * (16 * 32 + 2 * 16 * sizeof(float)) + 64;
}

// Computes outputs [16 * panel, 16 * (panel + 1)) of rows [row_begin, row_end). `scratch` is 64-byte aligned.
using MatmulPanelFn = void (*)(const MatmulTask& task, int panel, int row_begin, int row_end, uint8_t* scratch);

}  // namespace headrace
