#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "packed_matrix.h"

namespace headrace {
namespace {
constexpr size_t kHugePageBytes = size_t{2} << 20;
}

void RequireArgument(bool condition, const std::string& message) {
          if (!condition) throw std::invalid_argument(message);
}

size_t CheckedProduct(std::initializer_list<size_t> factors) {
  size_t product = 1;
  for (const size_t factor : factors) {
    RequireArgument(!__builtin_mul_overflow(product, factor, &product) && product <= kMaxBytes,
                    "the sizes ask for more memory than can be addressed");
  }
  return product;
}

AlignedBytes::AlignedBytes(size_t num_bytes) : num_bytes_(num_bytes) {
  // Huge pages begin at multiples of their size, and the system itself aligns hardly any mapping to them.
  const size_t unit = num_bytes >= kHugePageBytes ? kHugePageBytes : kAlignment;
  mapped_bytes_ = CeilDiv(std::max<size_t>(num_bytes, 1), unit) * unit + (unit == kHugePageBytes ? unit : 0);
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);  // a hint; without huge pages it is only slower
  data_ = reinterpret_cast<uint8_t*>(CeilDiv(reinterpret_cast<uintptr_t>(mapped_), unit) * unit);
}

AlignedBytes::~AlignedBytes() { munmap(mapped_, mapped_bytes_); }

}  // namespace headrace
