#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"

namespace headrace {
namespace {

// Where the parts of one row of one group lie.
struct Place {
  const PackedMatrix& shape;
  uint8_t* panel;
  int group;
  int row;  // within the panel

  uint8_t* values() const { return panel + ValueOffset(shape.format, group); }
  uint8_t* scales() const { return panel + ScaleOffset(shape.format, group); }
  void PutNibble(int column, int nibble) const {
    const int j = column % 16;  // low half of the group in the low nibbles
    uint8_t* byte = values() + 64 * (j / 4) + 4 * row + j % 4;
    *byte = column < 16 ? (*byte & 0xf0) | nibble : (*byte & 0x0f) | (nibble << 4);
  }
  int Nibble(int column) const {
    const int j = column % 16;
    const uint8_t byte = values()[64 * (j / 4) + 4 * row + j % 4];
    return column < 16 ? byte & 15 : byte >> 4;
  }
  int8_t* Byte(int column) const { return reinterpret_cast<int8_t*>(values() + 64 * (column / 4) + 4 * row + column % 4); }

  void PutScale16(int index, uint16_t bits) const { std::memcpy(scales() + (index * 16 + row) * 2, &bits, 2); }
  float Scale16(int index) const {
    uint16_t bits;
    std::memcpy(&bits, scales() + (index * 16 + row) * 2, 2);
    return FloatFromF16(bits);
  }
  void PutScale32(int index, float value) const { std::memcpy(scales() + (index * 16 + row) * 4, &value, 4); }
  float Scale32(int index) const {
    float value;
    std::memcpy(&value, scales() + (index * 16 + row) * 4, 4);
    return value;
  }
};

Place PlaceOf(const PackedMatrix& shape, uint8_t* packed, int row, int group) {
  return {shape, packed + (row / kPanelRows) * shape.panel_bytes(), group, row % kPanelRows};
}

// Scale of the nearest f16 that still reaches `largest` in `steps` steps, so that nothing saturates.
uint16_t ScaleBits(float largest, float steps) {
  uint16_t bits = F16FromFloat(largest / steps);
  if (FloatFromF16(bits) * steps < largest && bits < 0x7bff) ++bits;
  return bits;
}

void PackInt8Group(const float* x, int count, const Place& place) {
  float largest = 0.0f;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  const uint16_t bits = ScaleBits(largest, 127.0f);
  const float scale = FloatFromF16(bits);
  place.PutScale16(0, bits);
  for (int i = 0; i < count; ++i) {
    const float q = scale > 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
    *place.Byte(i) = static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f));
  }
}

void PackInt4Group(const float* x, int count, const Place& place) {
  const auto [low, high] = std::minmax_element(x, x + count);
  const uint16_t minimum_bits = F16FromFloat(*low);
  const float minimum = FloatFromF16(minimum_bits);
  const uint16_t scale_bits = ScaleBits(std::max(*high - minimum, 0.0f), 15.0f);
  const float scale = FloatFromF16(scale_bits);
  place.PutScale16(0, scale_bits);
  place.PutScale16(1, minimum_bits);
  for (int i = 0; i < count; ++i) {
    const float q = scale > 0.0f ? std::nearbyint((x[i] - minimum) / scale) : 0.0f;
    place.PutNibble(i, static_cast<int>(std::clamp(q, 0.0f, 15.0f)));
  }
}

void PackColumns(const float* x, int row, const PackedMatrix& shape, uint8_t* packed) {
  uint8_t* panel = packed + (row / kPanelRows) * shape.panel_bytes();
  for (int k = 0; k < shape.num_columns; ++k) {
    const size_t index = static_cast<size_t>(k) * kPanelRows + row % kPanelRows;
    if (shape.format == WeightFormat::kF32) {
      std::memcpy(panel + index * 4, &x[k], 4);
    } else {
      const uint16_t bits = shape.format == WeightFormat::kF16 ? F16FromFloat(x[k]) : Bf16FromFloat(x[k]);
      std::memcpy(panel + index * 2, &bits, 2);
    }
  }
}

}  // namespace

void PackFloats(const float* values, const PackedMatrix& shape, int row_begin, int row_end, uint8_t* packed) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* x = values + static_cast<size_t>(row - row_begin) * shape.num_columns;
    if (!IsQuantized(shape.format)) {
      PackColumns(x, row, shape, packed);
      continue;
    }
    for (int group = 0; group < shape.num_groups(); ++group) {
      const int count = std::min(kGroupColumns, shape.num_columns - group * kGroupColumns);
      const Place place = PlaceOf(shape, packed, row, group);
      if (shape.format == WeightFormat::kInt8) {
        PackInt8Group(x + group * kGroupColumns, count, place);
      } else {
        PackInt4Group(x + group * kGroupColumns, count, place);
      }
    }
  }
}

namespace {

// One block of 32 columns into one group.
void PackBlock(const uint8_t* block, StoredFormat stored, const Place& place) {
  uint16_t scale;
  std::memcpy(&scale, block, 2);
  place.PutScale16(0, scale);
  const uint8_t* values = block + 2;
  if (stored == StoredFormat::kQ4_0) {
    place.PutScale16(1, F16FromFloat(-8.0f * FloatFromF16(scale)));  // exact unless it overflows
  } else if (stored == StoredFormat::kQ4_1) {
    uint16_t minimum;
    std::memcpy(&minimum, values, 2);
    place.PutScale16(1, minimum);
    values += 2;
  }
  // a stored block pairs column i with column 16 + i in a byte, as a packed group does: words of four columns
  // move as they are
  const int num_words = stored == StoredFormat::kQ8_0 ? 8 : 4;
  for (int v = 0; v < num_words; ++v) std::memcpy(place.values() + 64 * v + 4 * place.row, values + 4 * v, 4);
}

// One block of 256 columns into eight groups: two f16 factors, then six bits of scale and six of minimum for each
// group (those of the last four in pieces), then pairs of groups in the halves of 32 bytes. A product of a factor and
// six bits is exact in f32.
void PackSuperBlock(const uint8_t* block, const PackedMatrix& shape, uint8_t* packed, int row, int first_group) {
  uint16_t factors[2];
  std::memcpy(factors, block, 4);
  const uint8_t *bits = block + 4, *nibbles = block + 16;
  for (int i = 0; i < 8; ++i) {
    const Place place = PlaceOf(shape, packed, row, first_group + i);
    const int scale = i < 4 ? bits[i] & 63 : (bits[i + 4] & 15) | bits[i - 4] >> 6 << 4;
    const int minimum = i < 4 ? bits[i + 4] & 63 : bits[i + 4] >> 4 | bits[i] >> 6 << 4;
    place.PutScale32(0, FloatFromF16(factors[0]) * static_cast<float>(scale));
    place.PutScale32(1, -(FloatFromF16(factors[1]) * static_cast<float>(minimum)));
    for (int column = 0; column < kGroupColumns; ++column) {
      const uint8_t pair = nibbles[i / 2 * kGroupColumns + column];
      place.PutNibble(column, i % 2 == 0 ? pair & 15 : pair >> 4);
    }
  }
}

}  // namespace

void PackStored(const uint8_t* blocks, StoredFormat stored, const PackedMatrix& shape, int row_begin, int row_end,
                uint8_t* packed) {
  const StoredBlock block = BlockOf(stored);
  const int groups_per_block = block.num_columns / kGroupColumns;
  for (int row = row_begin; row < row_end; ++row) {
    for (int group = 0; group < shape.num_groups(); group += groups_per_block, blocks += block.num_bytes) {
      if (stored == StoredFormat::kQ4_K) {
        PackSuperBlock(blocks, shape, packed, row, group);
      } else {
        PackBlock(blocks, stored, PlaceOf(shape, packed, row, group));
      }
    }
  }
}

void UnpackRow(const PackedMatrix& matrix, int row, float* out) {
  uint8_t* data = const_cast<uint8_t*>(matrix.data);  // only read below
  const uint8_t* panel = matrix.panel(row / kPanelRows);
  for (int k = 0; k < matrix.num_columns; ++k) {
    const size_t index = static_cast<size_t>(k) * kPanelRows + row % kPanelRows;
    const Place place = PlaceOf(matrix, data, row, k / kGroupColumns);
    const int column = k % kGroupColumns;
    uint16_t bits = 0;
    switch (matrix.format) {
      case WeightFormat::kF32: std::memcpy(&out[k], panel + index * 4, 4); break;
      case WeightFormat::kF16: std::memcpy(&bits, panel + index * 2, 2); out[k] = FloatFromF16(bits); break;
      case WeightFormat::kBF16: std::memcpy(&bits, panel + index * 2, 2); out[k] = FloatFromBf16(bits); break;
      case WeightFormat::kInt8: out[k] = place.Scale16(0) * *place.Byte(column); break;
      case WeightFormat::kInt4: out[k] = place.Scale16(0) * place.Nibble(column) + place.Scale16(1); break;
      case WeightFormat::kInt4Wide: out[k] = place.Scale32(0) * place.Nibble(column) + place.Scale32(1); break;
    }
  }
}

}  // namespace headrace
