// Memory of a size that was asked for: checked before it is taken, aligned, in huge pages where it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace headrace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxBytes = size_t{1} << 47;  // what an address can name

// Throws std::invalid_argument with the message.
void RequireArgument(bool condition, const std::string& message);

// The product, unless no memory could hold it: then no size wraps around to a small one. Throws std::invalid_argument.
size_t CheckedProduct(std::initializer_list<size_t> factors);

// Zeroed memory aligned for vector loads; pages are only taken when they are first written.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t num_bytes);
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return num_bytes_; }

 private:
  void* mapped_;
  size_t mapped_bytes_;
  uint8_t* data_;  // the first aligned byte of what is mapped
  size_t num_bytes_;
};

}  // namespace headrace
