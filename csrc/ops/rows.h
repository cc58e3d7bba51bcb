// Operations on one token's row at a time: norms, quantisation, rotation, activations.
#pragma once

#include <cstdint>

#include "../kv_view.h"

namespace headrace {

enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// Where a quantised row goes; the arrays of one row of QuantizedRows, written.
struct QuantizedRow {
  int8_t* values;     // [num_groups * 32]
  float* scale;       // [num_groups]
  float* scaled_sum;  // [num_groups]
};

struct RotaryTask {
  int num_heads, num_kv_heads, head_dim;
  int rotary_dim;               // the first so many dimensions of a head turn, as pairs (i, i + rotary_dim / 2)
  float query_scale;            // on the queries after rotation: the attention scale
  float norm_eps;               // for the norms of queries and keys
  bool norm_whole;              // normalise over all heads at once, not head by head
  const float* query_norm;      // [head_dim] or, over all heads, [num_heads * head_dim]; null: no norm
  const float* key_norm;        // likewise
};

}  // namespace headrace
