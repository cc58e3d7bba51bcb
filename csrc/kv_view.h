// One layer's keys and values as the ops see them.
//
// Keys lie transposed inside a block, so that scores of neighbouring positions are neighbouring lanes:
//   keys    [num_blocks, num_kv_heads, head_dim, block_size]
//   values  [num_blocks, num_kv_heads, block_size, head_dim]
// A bf16 cache holds what products sum over in pairs, as instructions for them take it: keys two dimensions, values two
// positions at a time.
//   keys    [num_blocks, num_kv_heads, head_dim / 2, block_size, 2]
//   values  [num_blocks, num_kv_heads, block_size / 2, head_dim, 2]
// An int8 cache has one scale per position and head beside each: [num_blocks, num_kv_heads, block_size].
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Block sizes are multiples of this, so that every vector of positions lies in one block.
constexpr int kPositionLanes = 16;

enum class KvFormat : int32_t { kF32 = 0, kF16 = 1, kInt8 = 2, kBf16 = 3 };

constexpr size_t KvElementBytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : format == KvFormat::kInt8 ? 1 : 2;
}

struct KvView {
  KvFormat format;
  int num_kv_heads;
  int head_dim;
  int block_size;
  uint8_t* keys;
  uint8_t* values;
  float* key_scales;    // int8 only
  float* value_scales;  // int8 only

  size_t head_elements() const { return static_cast<size_t>(head_dim) * block_size; }
  // Index of the first element of a block's head, in keys and in values alike.
  size_t HeadIndex(int block, int head) const { return (static_cast<size_t>(block) * num_kv_heads + head) * head_elements(); }
  // Index of an element within its head.
  size_t KeyIndex(int d, int offset) const {
    if (format == KvFormat::kBf16) return (static_cast<size_t>(d / 2) * block_size + offset) * 2 + d % 2;
    return static_cast<size_t>(d) * block_size + offset;
  }
  size_t ValueIndex(int offset, int d) const {
    if (format == KvFormat::kBf16) return (static_cast<size_t>(offset / 2) * head_dim + d) * 2 + offset % 2;
    return static_cast<size_t>(offset) * head_dim + d;
  }
  // Index of the first scale of a block's head.
  size_t ScaleIndex(int block, int head) const {
    return (static_cast<size_t>(block) * num_kv_heads + head) * block_size;
  }
};

}  // namespace headrace
