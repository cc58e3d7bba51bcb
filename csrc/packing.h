// Between stored weights and packed ones. Slow paths, run once: clarity first.
#pragma once

#include <cstdint>

#include "packed_matrix.h"

namespace headrace {

// The 32-column blocks a GGUF file stores that kInt4 and kInt8 can hold without loss.
enum class StoredFormat : int32_t { kQ4_0 = 0, kQ4_1 = 1, kQ8_0 = 2 };

// Packs rows [row_begin, row_end) (a multiple of 16 to begin with) of a row-major matrix into `packed`.
// From f32 into kF32, kF16, kBF16 or, rounding to the nearest of 255 steps per group, kInt8. Into kInt4 the
// group's range is divided into 15 steps.
void PackFloats(const float* values, const PackedMatrix& shape, int row_begin, int row_end, uint8_t* packed);

// From stored blocks, bit for bit.
void PackStored(const uint8_t* blocks, StoredFormat stored, const PackedMatrix& shape, int row_begin, int row_end,
                uint8_t* packed);

// From 4-bit values with f32 scales and minima per group: values [rows, columns] of 0..15, the others
// [rows, columns / 32]. Into kInt4Wide.
void PackNibbles(const uint8_t* nibbles, const float* scales, const float* minima, const PackedMatrix& shape,
                 int row_begin, int row_end, uint8_t* packed);

// One row, widened to f32 [num_columns].
void UnpackRow(const PackedMatrix& matrix, int row, float* out);

}  // namespace headrace
