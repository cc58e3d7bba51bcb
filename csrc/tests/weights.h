// Packed matrices for tests, and quantised activations.
#pragma once

#include <algorithm>
#include <cstring>

#include "../half.h"
#include "../packing.h"
#include "values.h"

namespace headrace::tests {

constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32,  WeightFormat::kF16,  WeightFormat::kBF16,
                                        WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt4Wide};

// A matrix with the memory it lies in.
struct OwnedMatrix {
  PackedMatrix shape;
  Aligned<uint8_t> bytes;

  OwnedMatrix(WeightFormat format, int num_rows, int num_columns)
      : shape{format, num_rows, num_columns, nullptr}, bytes(shape.num_bytes()) {
    shape.data = bytes.data();
  }

  std::vector<float> Row(int row) const {
    std::vector<float> values(shape.num_columns);
    UnpackRow(shape, row, values.data());
    return values;
  }
};

// Random weights of the size a layer's have. kInt4Wide is filled from random nibbles, scales and minima.
inline OwnedMatrix RandomMatrix(WeightFormat format, int num_rows, int num_columns, Random& random) {
  OwnedMatrix matrix(format, num_rows, num_columns);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(num_columns));
  if (format != WeightFormat::kInt4Wide) {
    PackFloats(Normals(random, static_cast<size_t>(num_rows) * num_columns, deviation).data(), matrix.shape, 0,
               num_rows, matrix.bytes.data());
    return matrix;
  }
  // nothing but whole stored blocks is packed into this format, and sizes here are to be of every kind
  const int num_groups = matrix.shape.num_groups();
  const size_t num_all = static_cast<size_t>(num_rows) * num_groups;
  std::vector<uint8_t> nibbles(num_all * kGroupColumns);
  for (uint8_t& nibble : nibbles) nibble = static_cast<uint8_t>(Integer(random, 0, 16));
  const std::vector<float> scales = Normals(random, num_all, deviation / 8), minima = Normals(random, num_all, deviation);
  for (int row = 0; row < num_rows; ++row) {
    uint8_t* panel = matrix.bytes.data() + row / kPanelRows * matrix.shape.panel_bytes();
    for (int group = 0; group < num_groups; ++group) {
      const size_t index = static_cast<size_t>(row) * num_groups + group;
      uint8_t* values = panel + ValueOffset(format, group) + row % kPanelRows * 4;
      const uint8_t* of_group = nibbles.data() + index * kGroupColumns;
      for (int i = 0; i < 16; ++i) values[i / 4 * 64 + i % 4] = of_group[i] | of_group[16 + i] << 4;
      std::memcpy(panel + ScaleOffset(format, group) + row % kPanelRows * 4, &scales[index], 4);
      std::memcpy(panel + ScaleOffset(format, group) + 64 + row % kPanelRows * 4, &minima[index], 4);
    }
  }
  return matrix;
}

// Activations [num_rows, num_columns] as floats, and quantised as the kernels take them.
struct Activations {
  int num_columns, num_groups;
  Aligned<float> floats;
  Aligned<int8_t> values;
  Aligned<float> scale, scaled_sum;

  Activations(int num_rows, int num_columns)
      : num_columns(num_columns),
        num_groups(static_cast<int>(CeilDiv(num_columns, kGroupColumns))),
        floats(static_cast<size_t>(num_rows) * num_columns),
        values(static_cast<size_t>(num_rows) * num_groups * kGroupColumns),
        scale(static_cast<size_t>(num_rows) * num_groups),
        scaled_sum(static_cast<size_t>(num_rows) * num_groups) {}

  QuantizedRows quantized() const { return {values.data(), scale.data(), scaled_sum.data(), num_groups}; }
  QuantizedRow quantized_row(int row) {
    const size_t group = static_cast<size_t>(row) * num_groups;
    return {values.data() + group * kGroupColumns, scale.data() + group, scaled_sum.data() + group};
  }
  // What the quantised row stands for.
  float Dequantized(int row, int column) const {
    const size_t index = (static_cast<size_t>(row) * num_groups) * kGroupColumns + column;
    return scale[index / kGroupColumns] * values[index];
  }
};

inline Activations RandomActivations(int num_rows, int num_columns, Random& random) {
  Activations x(num_rows, num_columns);
  for (size_t i = 0; i < x.floats.size(); ++i) x.floats[i] = Normal(random);
  for (size_t group = 0; group < x.scale.size(); ++group) {
    const int first_column = static_cast<int>(group % x.num_groups) * kGroupColumns;
    const int count = std::min(kGroupColumns, num_columns - first_column);
    int sum = 0;
    for (int i = 0; i < count; ++i) {
      x.values[group * kGroupColumns + i] = static_cast<int8_t>(Integer(random, -127, 128));
      sum += x.values[group * kGroupColumns + i];
    }
    x.scale[group] = 0.01f + 0.02f * std::fabs(Normal(random));
    x.scaled_sum[group] = x.scale[group] * static_cast<float>(sum);
  }
  return x;
}

}  // namespace headrace::tests
