// What several tests need: random values, exactly sized aligned memory, bit comparison, the ISAs of this machine.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "../kernels.h"

namespace headrace::tests {

using Random = std::mt19937;

inline float Normal(Random& random) { return std::normal_distribution<float>()(random); }

// Half-open.
inline int Integer(Random& random, int begin, int end) {
  return std::uniform_int_distribution<int>(begin, end - 1)(random);
}

template <typename T>
T OneOf(Random& random, std::initializer_list<T> values) {
  return values.begin()[Integer(random, 0, static_cast<int>(values.size()))];
}

inline std::vector<float> Normals(Random& random, size_t count, float deviation = 1.0f) {
  std::vector<float> values(count);
  for (float& value : values) value = Normal(random) * deviation;
  return values;
}

// Zeroed, aligned to 64 bytes and not a byte longer than asked for, so that a sanitizer sees the first step too far.
template <typename T>
class Aligned {
 public:
  explicit Aligned(size_t count) : count_(count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, count * sizeof(T) + (count == 0)) != 0) throw std::bad_alloc();
    data_.reset(static_cast<T*>(memory));
    std::fill_n(data_.get(), count, T{});
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return count_; }
  T& operator[](size_t index) { return data_.get()[index]; }
  const T& operator[](size_t index) const { return data_.get()[index]; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t count_;
};

// Index of the first element whose bits differ, or -1.
inline int FirstDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return static_cast<int>(i);
  }
  return -1;
}

constexpr KvFormat kAllKvFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kInt8, KvFormat::kBf16};

// Every set of kernels this machine can run.
inline std::vector<const Kernels*> AvailableKernels() {
  std::vector<const Kernels*> available;
  for (const char* name : {"portable", "avx2", "avx512", "avx512_bf16"}) {
    if (const Kernels* kernels = KernelsNamed(name)) available.push_back(kernels);
  }
  return available;
}

}  // namespace headrace::tests
