// A model's sizes.
#pragma once

#include <cstdint>

namespace headrace {

struct Shape {
  int32_t vocab_size, hidden_size;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t num_layers;
};

}  // namespace headrace
