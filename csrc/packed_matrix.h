// Weight matrices in the one layout every instruction set computes from.
//
// Rows (outputs) are taken 16 at a time: a panel. Inside a panel the columns (inputs) come in groups of 32,
// and a group interleaves its 16 rows so that one 64-byte load holds 4 consecutive columns of all 16 rows:
// what a dot-product instruction wants beside 4 broadcast activations. Missing rows and columns are zero.
//
//   kInt4  a group's values are 4 x 64 bytes: byte (row r, j) of vector v holds column 4v+j in its low nibble
//          and column 16+4v+j in its high one. value = scale * nibble + minimum.
//   kInt8  a group's values are 8 x 64 bytes: byte (row r, j) of vector v holds column 4v+j, signed.
//          value = scale * byte.
//   kF32, kF16, kBF16  column after column, 16 rows each.
//
// Beside a group's values lie its 16 scales and, for int4, 16 minima. These are f16 as GGUF stores them, or f32
// (kInt4Wide) where a product of two stored factors is not exact in f16. A product with few rows waits for memory,
// and a processor fetches ahead by itself only along one stretch: so a panel is chunk after chunk of whole cache lines
// (a group, or two of int8), in each the values and then the scales, and is read from its first byte to its last.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Of this layout. Goes up with every change to it: what was packed by another version must not be read.
constexpr int kLayoutVersion = 2;

constexpr int kPanelRows = 16;
constexpr int kGroupColumns = 32;

enum class WeightFormat : int32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kInt8 = 3, kInt4 = 4, kInt4Wide = 5 };

constexpr bool IsQuantized(WeightFormat format) { return format >= WeightFormat::kInt8; }

constexpr size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

// Bytes of the values of 16 rows x 32 columns.
constexpr size_t ValueBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return 16 * 32 * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16: return 16 * 32 * 2;
    case WeightFormat::kInt8: return 16 * 32;
    case WeightFormat::kInt4:
    case WeightFormat::kInt4Wide: return 16 * 32 / 2;
  }
  return 0;
}

// Bytes of the scales and minima of 16 rows x 32 columns.
constexpr size_t ScaleBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8: return 16 * 2;
    case WeightFormat::kInt4: return 2 * 16 * 2;
    case WeightFormat::kInt4Wide: return 2 * 16 * 4;
    default: return 0;
  }
}

// Groups that fill whole cache lines with their scales.
constexpr size_t ChunkGroups(WeightFormat format) { return ScaleBytes(format) % 64 == 0 ? 1 : 2; }

constexpr size_t ChunkBytes(WeightFormat format) {
  return ChunkGroups(format) * (ValueBytes(format) + ScaleBytes(format));
}

// Where in a quantised panel a group's values begin, and its scales.
constexpr size_t ValueOffset(WeightFormat format, size_t group) {
  const size_t chunk_groups = ChunkGroups(format);
  return group / chunk_groups * ChunkBytes(format) + group % chunk_groups * ValueBytes(format);
}
constexpr size_t ScaleOffset(WeightFormat format, size_t group) {
  const size_t chunk_groups = ChunkGroups(format);
  return group / chunk_groups * ChunkBytes(format) + chunk_groups * ValueBytes(format) +
         group % chunk_groups * ScaleBytes(format);
}

struct PackedMatrix {
  WeightFormat format;
  int32_t num_rows;
  int32_t num_columns;
  const uint8_t* data;  // 64-byte aligned

  int num_panels() const { return static_cast<int>(CeilDiv(num_rows, kPanelRows)); }
  int num_groups() const { return static_cast<int>(CeilDiv(num_columns, kGroupColumns)); }
  size_t panel_bytes() const { return CeilDiv(num_groups(), ChunkGroups(format)) * ChunkBytes(format); }
  size_t num_bytes() const { return num_panels() * panel_bytes(); }
  const uint8_t* panel(int index) const { return data + index * panel_bytes(); }
};

// Activations as int8 with one scale per row and group: x = scale * value. `scaled_sum` is scale * sum(values)
// of the group, what a weight minimum is multiplied with.
struct QuantizedRows {
  const int8_t* values;     // [num_rows, num_groups * 32]
  const float* scale;       // [num_rows, num_groups]
  const float* scaled_sum;  // [num_rows, num_groups]
  int num_groups;
};

}  // namespace headrace
