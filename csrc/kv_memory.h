// The keys and values of all layers.
#pragma once

#include "kv_view.h"
#include "memory.h"
#include "shape.h"

namespace headrace {

class KvMemory {
 public:
  KvMemory(const Shape& shape, KvFormat format, int num_blocks, int block_size);

  const Shape& shape() const { return shape_; }
  KvFormat format() const { return format_; }
  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  size_t num_bytes() const { return bytes_.size(); }
  KvView layer(int index) const;
  // Zeroes what a slot holds in every layer: a sequence that went wrong must leave no NaN behind.
  void ClearSlot(int slot);
  // Bytes of one block in all layers, scales included: what a copy of it takes elsewhere.
  size_t block_bytes() const;
  // Copies a block's content to block_bytes() bytes, and back into a block of a memory of the same kind.
  void CopyOut(int block, uint8_t* content) const;
  void CopyIn(int block, const uint8_t* content);
  void CopyBlock(int source, int target);

 private:
  // Calls part(bytes, num_bytes) for every piece of a block: keys, values and scales of each layer, in a fixed order.
  template <typename Part>
  void EachPart(int block, const Part& part) const;

  Shape shape_;
  KvFormat format_;
  int num_blocks_, block_size_;
  size_t elements_per_layer_, scales_per_layer_;
  AlignedBytes bytes_;
};

}  // namespace headrace
