// Between stored weights and packed ones. Slow paths, run once: clarity first.
#pragma once

#include <cstdint>

#include "packed_matrix.h"

namespace headrace {

// The blocks a GGUF file stores that a packed format can hold without loss.
enum class StoredFormat : int32_t { kQ4_0 = 0, kQ4_1 = 1, kQ8_0 = 2, kQ4_K = 3 };

struct StoredBlock {
  int num_columns;
  size_t num_bytes;
  WeightFormat packed;
};

constexpr StoredBlock BlockOf(StoredFormat stored) {
  switch (stored) {
    case StoredFormat::kQ4_0: return {32, 18, WeightFormat::kInt4};
    case StoredFormat::kQ4_1: return {32, 20, WeightFormat::kInt4};
    case StoredFormat::kQ8_0: return {32, 34, WeightFormat::kInt8};
    case StoredFormat::kQ4_K: return {256, 144, WeightFormat::kInt4Wide};
  }
  return {};
}

// Packs rows [row_begin, row_end) (a multiple of 16 to begin with) of a row-major matrix into `packed`.
// From f32 into kF32, kF16, kBF16 or, rounding to the nearest of 255 steps per group, kInt8. Into kInt4 the
// group's range is divided into 15 steps.
void PackFloats(const float* values, const PackedMatrix& shape, int row_begin, int row_end, uint8_t* packed);

// From stored blocks, bit for bit; the matrix has whole blocks, and the format BlockOf says.
void PackStored(const uint8_t* blocks, StoredFormat stored, const PackedMatrix& shape, int row_begin, int row_end,
                uint8_t* packed);

// One row, widened to f32 [num_columns].
void UnpackRow(const PackedMatrix& matrix, int row, float* out);

}  // namespace headrace
