#include "kv_memory.h"

#include <cstring>

namespace headrace {

namespace {
size_t CheckedElements(const Shape& shape, int num_blocks, int block_size) {
  RequireArgument(num_blocks > 0, "num_blocks must be positive");
  RequireArgument(block_size > 0 && block_size % kPositionLanes == 0,
                  "block_size is " + std::to_string(block_size) + " but must be a multiple of 16");
  // what a layer has, times what all layers' keys and values can come to, must stay a size
  const size_t elements = CheckedProduct({static_cast<size_t>(num_blocks), static_cast<size_t>(shape.num_kv_heads),
                                          static_cast<size_t>(shape.head_dim), static_cast<size_t>(block_size)});
  CheckedProduct({elements, static_cast<size_t>(shape.num_layers), 2 * sizeof(float)});
  return elements;
}
}  // namespace

KvMemory::KvMemory(const Shape& shape, KvFormat format, int num_blocks, int block_size)
    : shape_(shape),
      format_(format),
      num_blocks_(num_blocks),
      block_size_(block_size),
      elements_per_layer_(CheckedElements(shape, num_blocks, block_size)),
      scales_per_layer_(format == KvFormat::kInt8 ? static_cast<size_t>(num_blocks) * shape.num_kv_heads * block_size
                                                  : 0),
      bytes_(2 * shape.num_layers *
             (elements_per_layer_ * KvElementBytes(format) + scales_per_layer_ * sizeof(float))) {}

KvView KvMemory::layer(int index) const {
  const size_t element_bytes = elements_per_layer_ * KvElementBytes(format_);
  const size_t scale_bytes = scales_per_layer_ * sizeof(float);
  uint8_t* base = bytes_.data() + 2 * index * (element_bytes + scale_bytes);
  KvView view{format_, shape_.num_kv_heads, shape_.head_dim, block_size_, base, base + element_bytes, nullptr, nullptr};
  if (format_ == KvFormat::kInt8) {
    view.key_scales = reinterpret_cast<float*>(base + 2 * element_bytes);
    view.value_scales = view.key_scales + scales_per_layer_;
  }
  return view;
}

void KvMemory::ClearSlot(int slot) {
  const size_t size = KvElementBytes(format_);
  for (int index = 0; index < shape_.num_layers; ++index) {
    const KvView view = layer(index);
    const int block = slot / block_size_, offset = slot % block_size_;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      uint8_t* keys = view.keys + view.HeadIndex(block, head) * size;
      uint8_t* values = view.values + view.HeadIndex(block, head) * size;
      for (int d = 0; d < shape_.head_dim; ++d) {
        std::memset(keys + view.KeyIndex(d, offset) * size, 0, size);
        std::memset(values + view.ValueIndex(offset, d) * size, 0, size);
      }
      if (format_ == KvFormat::kInt8) {
        view.key_scales[view.ScaleIndex(block, head) + offset] = 0.0f;
        view.value_scales[view.ScaleIndex(block, head) + offset] = 0.0f;
      }
    }
  }
}

template <typename Part>
void KvMemory::EachPart(int block, const Part& part) const {
  const size_t num_elements = elements_per_layer_ / num_blocks_ * KvElementBytes(format_);
  const size_t num_scales = scales_per_layer_ / num_blocks_;
  for (int index = 0; index < shape_.num_layers; ++index) {
    const KvView view = layer(index);
    part(view.keys + block * num_elements, num_elements);
    part(view.values + block * num_elements, num_elements);
    if (format_ == KvFormat::kInt8) {
      part(reinterpret_cast<uint8_t*>(view.key_scales + block * num_scales), num_scales * sizeof(float));
      part(reinterpret_cast<uint8_t*>(view.value_scales + block * num_scales), num_scales * sizeof(float));
    }
  }
}

size_t KvMemory::block_bytes() const { return bytes_.size() / num_blocks_; }

void KvMemory::CopyOut(int block, uint8_t* content) const {
  EachPart(block, [&content](const uint8_t* bytes, size_t num_bytes) {
    std::memcpy(content, bytes, num_bytes);
    content += num_bytes;
  });
}

void KvMemory::CopyIn(int block, const uint8_t* content) {
  EachPart(block, [&content](uint8_t* bytes, size_t num_bytes) {
    std::memcpy(bytes, content, num_bytes);
    content += num_bytes;
  });
}

void KvMemory::CopyBlock(int source, int target) {
  const ptrdiff_t distance = target - ptrdiff_t{source};
  EachPart(source, [distance](uint8_t* bytes, size_t num_bytes) {
    std::memmove(bytes + distance * static_cast<ptrdiff_t>(num_bytes), bytes, num_bytes);
  });
}

}  // namespace headrace
