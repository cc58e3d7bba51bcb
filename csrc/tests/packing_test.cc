#include "../packing.h"

#include <cstring>

#include "../half.h"
#include "check.h"
#include "weights.h"

namespace headrace::tests {
namespace {

// One element of a packed matrix read by the layout as packed_matrix.h describes it.
float ElementByLayout(const PackedMatrix& m, int row, int column) {
  const uint8_t* panel = m.data + row / 16 * m.panel_bytes();
  const int r = row % 16, group = column / 32, c = column % 32;
  const auto f16_at = [&](size_t offset) {
    uint16_t bits;
    std::memcpy(&bits, panel + offset, 2);
    return FloatFromF16(bits);
  };
  const auto f32_at = [&](size_t offset) {
    float value;
    std::memcpy(&value, panel + offset, 4);
    return value;
  };
  const size_t element = static_cast<size_t>(column) * 16 + r;
  const int chunk_groups = m.format == WeightFormat::kInt8 ? 2 : 1;
  const size_t chunk = group / chunk_groups * chunk_groups * (ValueBytes(m.format) + ScaleBytes(m.format));
  const size_t scales = chunk + chunk_groups * ValueBytes(m.format) + group % chunk_groups * ScaleBytes(m.format);
  const uint8_t* values = panel + chunk + group % chunk_groups * ValueBytes(m.format);
  const int nibble_byte = values[64 * (c % 16 / 4) + 4 * r + c % 4];
  const int nibble = c < 16 ? nibble_byte & 15 : nibble_byte >> 4;
  switch (m.format) {
    case WeightFormat::kF32:
      return f32_at(element * 4);
    case WeightFormat::kF16:
      return f16_at(element * 2);
    case WeightFormat::kBF16: {
      uint16_t bits;
      std::memcpy(&bits, panel + element * 2, 2);
      return FloatFromBf16(bits);
    }
    case WeightFormat::kInt8:
      return f16_at(scales + 2 * r) * static_cast<int8_t>(values[64 * (c / 4) + 4 * r + c % 4]);
    case WeightFormat::kInt4:
      return f16_at(scales + 2 * r) * static_cast<float>(nibble) + f16_at(scales + 32 + 2 * r);
    case WeightFormat::kInt4Wide:
      return f32_at(scales + 4 * r) * static_cast<float>(nibble) + f32_at(scales + 64 + 4 * r);
  }
  return NAN;
}

TEST("packing: rows unpack to what the documented layout holds") {
  Random random(1);
  for (const WeightFormat format : kAllFormats) {
    for (const int num_columns : {1, 32, 45, 97}) {
      for (const int num_rows : {1, 16, 35}) {
        const OwnedMatrix matrix = RandomMatrix(format, num_rows, num_columns, random);
        for (int row = 0; row < num_rows; ++row) {
          const std::vector<float> values = matrix.Row(row);
          for (int k = 0; k < num_columns; ++k) {
            const float expected = ElementByLayout(matrix.shape, row, k);
            CHECK_NEAR(values[k], expected, 1e-6 * std::fabs(expected), static_cast<int>(format), "row", row, "column",
                       k);
          }
        }
      }
    }
  }
}

TEST("packing: floats come back exactly, or with half a step's error") {
  Random random(2);
  const int num_rows = 37, num_columns = 75;
  const std::vector<float> values = Normals(random, num_rows * num_columns);
  for (const WeightFormat format : kAllFormats) {
    if (format == WeightFormat::kInt4Wide) continue;  // is not made from floats
    OwnedMatrix matrix(format, num_rows, num_columns);
    PackFloats(values.data(), matrix.shape, 0, num_rows, matrix.bytes.data());
    for (int row = 0; row < num_rows; ++row) {
      const std::vector<float> unpacked = matrix.Row(row);
      for (int k = 0; k < num_columns; ++k) {
        const float* x = values.data() + row * num_columns;
        const int begin = k / 32 * 32, end = std::min(begin + 32, num_columns);
        const auto [low, high] = std::minmax_element(x + begin, x + end);
        const float largest = std::max(std::fabs(*low), std::fabs(*high));
        const double tolerance = format == WeightFormat::kF32    ? 0.0
                                 : format == WeightFormat::kF16  ? std::fabs(x[k]) / 2048
                                 : format == WeightFormat::kBF16 ? std::fabs(x[k]) / 256
                                 : format == WeightFormat::kInt8 ? largest / 254 * 1.002
                                                                 // the minimum in f16 may be off by its last bit
                                                                 : (*high - *low) / 30 * 1.01 + largest / 1024;
        CHECK_NEAR(unpacked[k], x[k], tolerance, static_cast<int>(format), "row", row, "column", k);
      }
    }
  }
}

TEST("packing: groups that are constant, zero, tiny or one-sided lose nothing that matters") {
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const float base : {0.0f, 1.0f, -3.5f, 1e-6f, 100.0f}) {
      std::vector<float> values(32, base);
      values[5] = base * 1.5f;
      OwnedMatrix matrix(format, 1, 32);
      PackFloats(values.data(), matrix.shape, 0, 1, matrix.bytes.data());
      const std::vector<float> unpacked = matrix.Row(0);
      const double steps = format == WeightFormat::kInt8 ? 254 : 30;
      for (int k = 0; k < 32; ++k) {
        // 6e-8 is the smallest step f16 has
        CHECK_NEAR(unpacked[k], values[k], std::fabs(1.5 * base) / steps * 1.01 + std::fabs(base) / 1024 + 15 * 6e-8,
                   static_cast<int>(format), "base", base, "column", k);
      }
    }
  }
}

TEST("packing: stored blocks of every layout mean the same packed, bit for bit") {
  Random random(3);
  const int num_rows = 21, num_columns = 96, num_groups = 3;
  for (const StoredFormat stored : {StoredFormat::kQ4_0, StoredFormat::kQ4_1, StoredFormat::kQ8_0}) {
    const size_t block_bytes = stored == StoredFormat::kQ4_0 ? 18 : stored == StoredFormat::kQ4_1 ? 20 : 34;
    std::vector<uint8_t> blocks(num_rows * num_groups * block_bytes);
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(Integer(random, 0, 256));
    for (size_t at = 0; at < blocks.size(); at += block_bytes) {
      const uint16_t scale = F16FromFloat(Normal(random) * 0.02f), minimum = F16FromFloat(Normal(random));
      std::memcpy(&blocks[at], &scale, 2);
      if (stored == StoredFormat::kQ4_1) std::memcpy(&blocks[at + 2], &minimum, 2);
    }
    OwnedMatrix matrix(stored == StoredFormat::kQ8_0 ? WeightFormat::kInt8 : WeightFormat::kInt4, num_rows,
                       num_columns);
    PackStored(blocks.data(), stored, matrix.shape, 0, num_rows, matrix.bytes.data());
    for (int row = 0; row < num_rows; ++row) {
      const std::vector<float> unpacked = matrix.Row(row);
      for (int k = 0; k < num_columns; ++k) {
        const uint8_t* block = blocks.data() + (row * num_groups + k / 32) * block_bytes;
        const int i = k % 32;
        uint16_t bits[2];
        std::memcpy(bits, block, 4);
        const float scale = FloatFromF16(bits[0]), minimum = FloatFromF16(bits[1]);
        const uint8_t* nibbles = block + (stored == StoredFormat::kQ4_1 ? 4 : 2);
        const int nibble = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
        const float expected = stored == StoredFormat::kQ8_0   ? scale * static_cast<int8_t>(block[2 + i])
                               : stored == StoredFormat::kQ4_0 ? scale * static_cast<float>(nibble - 8)
                                                               : scale * static_cast<float>(nibble) + minimum;
        CHECK_EQ(unpacked[k], expected, static_cast<int>(stored), "row", row, "column", k);
      }
    }
  }
}

TEST("packing: rows may be packed in several goes, in any order") {
  Random random(4);
  const int num_rows = 50, num_columns = 70;
  const std::vector<float> values = Normals(random, num_rows * num_columns);
  for (const WeightFormat format : kAllFormats) {
    if (format == WeightFormat::kInt4Wide) continue;
    OwnedMatrix whole(format, num_rows, num_columns), parts(format, num_rows, num_columns);
    PackFloats(values.data(), whole.shape, 0, num_rows, whole.bytes.data());
    for (const int begin : {32, 0, 48, 16}) {
      PackFloats(values.data() + begin * num_columns, parts.shape, begin, std::min(begin + 16, num_rows),
                 parts.bytes.data());
    }
    CHECK(std::memcmp(whole.bytes.data(), parts.bytes.data(), whole.bytes.size()) == 0, static_cast<int>(format));
  }
}

TEST("packing: rows and columns that the matrix does not have are zero bytes") {
  std::vector<float> values(17 * 33, 1.0f);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    OwnedMatrix matrix(format, 17, 33);
    PackFloats(values.data(), matrix.shape, 0, 17, matrix.bytes.data());
    PackedMatrix all = matrix.shape;
    all.num_rows = 32;  // the same panels and groups, with their padding
    for (int row = 17; row < 32; ++row) {
      for (int k = 0; k < 33; ++k) CHECK_EQ(ElementByLayout(all, row, k), 0.0f, "row", row, "column", k);
    }
    if (!IsQuantized(format)) continue;
    for (int k = 33; k < 64; ++k) CHECK_EQ(ElementByLayout(all, 0, k), 0.0f, "column", k);
  }
}

TEST("packing: a matrix's bytes are whole cache lines, panel by panel") {
  for (const WeightFormat format : kAllFormats) {
    for (const int num_columns : {1, 32, 33, 576}) {
      const PackedMatrix one{format, 16, num_columns, nullptr}, three{format, 33, num_columns, nullptr};
      CHECK_EQ(one.panel_bytes() % 64, size_t{0});
      CHECK_EQ(three.num_bytes(), 3 * one.num_bytes());
    }
  }
}

}  // namespace
}  // namespace headrace::tests
