// One layer's KV memory for tests, read and written by the layout as kv_view.h describes it.
#pragma once

#include <algorithm>
#include <cstring>
#include <set>

#include "../half.h"
#include "../kv_view.h"
#include "values.h"

namespace headrace::tests {

class OwnedKv {
 public:
  OwnedKv(KvFormat format, int num_blocks, int num_kv_heads, int head_dim, int block_size)
      : num_elements_(static_cast<size_t>(num_blocks) * num_kv_heads * head_dim * block_size),
        num_scales_(format == KvFormat::kInt8 ? num_elements_ / head_dim : 0),
        keys_(num_elements_ * KvElementBytes(format)),
        values_(num_elements_ * KvElementBytes(format)),
        key_scales_(num_scales_),
        value_scales_(num_scales_),
        view{format,       num_kv_heads,   head_dim,           block_size,
             keys_.data(), values_.data(), key_scales_.data(), value_scales_.data()} {}

  float Key(int block, int head, int d, int offset) const {
    return Widened(keys_.data(), KeyIndex(block, head, d, offset), key_scales_, ScaleIndex(block, head, offset));
  }
  float Value(int block, int head, int d, int offset) const {
    return Widened(values_.data(), ValueIndex(block, head, d, offset), value_scales_, ScaleIndex(block, head, offset));
  }
  // Bits of an f16 or bf16 cache.
  uint16_t RawKey(int block, int head, int d, int offset) const {
    return Bits16(keys_.data(), KeyIndex(block, head, d, offset));
  }
  uint16_t RawValue(int block, int head, int d, int offset) const {
    return Bits16(values_.data(), ValueIndex(block, head, d, offset));
  }

  // Random keys and values everywhere.
  void FillRandom(Random& random) {
    for (size_t i = 0; i < num_elements_; ++i) {
      Put(keys_.data(), i, Normal(random));
      Put(values_.data(), i, Normal(random));
    }
    for (size_t i = 0; i < num_scales_; ++i) {
      key_scales_[i] = 0.005f + 0.01f * std::fabs(Normal(random));
      value_scales_[i] = 0.005f + 0.01f * std::fabs(Normal(random));
    }
  }

  // A slot's keys or values become NaN.
  void PoisonKeys(int slot) {
    const int block = slot / view.block_size, offset = slot % view.block_size;
    for (int head = 0; head < view.num_kv_heads; ++head) {
      for (int d = 0; d < view.head_dim; ++d) Put(keys_.data(), KeyIndex(block, head, d, offset), NAN);
      if (num_scales_ > 0) key_scales_[ScaleIndex(block, head, offset)] = NAN;
    }
  }
  void PoisonValues(int slot) {
    const int block = slot / view.block_size, offset = slot % view.block_size;
    for (int head = 0; head < view.num_kv_heads; ++head) {
      for (int d = 0; d < view.head_dim; ++d) Put(values_.data(), ValueIndex(block, head, d, offset), NAN);
      if (num_scales_ > 0) value_scales_[ScaleIndex(block, head, offset)] = NAN;
    }
  }

  // A pattern that no test writes, to see which slots an operation touches.
  void FillWithSentinel() {
    std::memset(keys_.data(), kSentinel, keys_.size());
    std::memset(values_.data(), kSentinel, values_.size());
    std::memset(key_scales_.data(), kSentinel, num_scales_ * sizeof(float));
    std::memset(value_scales_.data(), kSentinel, num_scales_ * sizeof(float));
  }
  void MarkWritten(int slot) { written_.insert(slot); }
  bool OtherSlotsHoldSentinel() const {
    const size_t size = KvElementBytes(view.format);
    const size_t num_blocks = num_elements_ / view.head_elements() / view.num_kv_heads;
    for (size_t slot = 0; slot < num_blocks * view.block_size; ++slot) {
      if (written_.contains(static_cast<int>(slot))) continue;
      const int block = static_cast<int>(slot) / view.block_size, offset = static_cast<int>(slot) % view.block_size;
      for (int head = 0; head < view.num_kv_heads; ++head) {
        for (int d = 0; d < view.head_dim; ++d) {
          if (!IsSentinel(keys_.data() + KeyIndex(block, head, d, offset) * size, size)) return false;
          if (!IsSentinel(values_.data() + ValueIndex(block, head, d, offset) * size, size)) return false;
        }
        if (num_scales_ == 0) continue;
        const size_t scale = ScaleIndex(block, head, offset);
        if (!IsSentinel(&key_scales_[scale], sizeof(float)) || !IsSentinel(&value_scales_[scale], sizeof(float)))
          return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kSentinel = 0x5a;

  static bool IsSentinel(const void* memory, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(memory);
    return std::all_of(bytes, bytes + size, [](uint8_t byte) { return byte == kSentinel; });
  }
  static uint16_t Bits16(const uint8_t* memory, size_t index) {
    uint16_t bits;
    std::memcpy(&bits, memory + 2 * index, 2);
    return bits;
  }

  size_t KeyIndex(int block, int head, int d, int offset) const {
    const size_t row = (static_cast<size_t>(block) * view.num_kv_heads + head) * view.head_dim + d;
    if (view.format == KvFormat::kBf16) return (row / 2 * view.block_size + offset) * 2 + d % 2;
    return row * view.block_size + offset;
  }
  size_t ValueIndex(int block, int head, int d, int offset) const {
    const size_t row = (static_cast<size_t>(block) * view.num_kv_heads + head) * view.block_size + offset;
    if (view.format == KvFormat::kBf16) return (row / 2 * view.head_dim + d) * 2 + offset % 2;
    return row * view.head_dim + d;
  }
  size_t ScaleIndex(int block, int head, int offset) const {
    return (static_cast<size_t>(block) * view.num_kv_heads + head) * view.block_size + offset;
  }

  float Widened(const uint8_t* memory, size_t index, const Aligned<float>& scales, size_t scale) const {
    if (view.format == KvFormat::kInt8) return scales[scale] * static_cast<int8_t>(memory[index]);
    if (view.format == KvFormat::kF16) return FloatFromF16(Bits16(memory, index));
    if (view.format == KvFormat::kBf16) return FloatFromBf16(Bits16(memory, index));
    float value;
    std::memcpy(&value, memory + 4 * index, 4);
    return value;
  }
  // An int8 element becomes some int8 for any value: its slot's scale says whether it is a number.
  void Put(uint8_t* memory, size_t index, float value) {
    if (view.format == KvFormat::kInt8) {
      memory[index] =
          static_cast<uint8_t>(std::isnan(value) ? 77 : static_cast<int>(std::clamp(value * 40.0f, -127.0f, 127.0f)));
    } else if (KvElementBytes(view.format) == 2) {
      const uint16_t bits = view.format == KvFormat::kF16 ? F16FromFloat(value) : Bf16FromFloat(value);
      std::memcpy(memory + 2 * index, &bits, 2);
    } else {
      std::memcpy(memory + 4 * index, &value, 4);
    }
  }

  size_t num_elements_, num_scales_;
  Aligned<uint8_t> keys_, values_;
  Aligned<float> key_scales_, value_scales_;
  std::set<int> written_;

 public:
  KvView view;
};

}  // namespace headrace::tests
