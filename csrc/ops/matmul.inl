// Included by the per-ISA translation units after vec.h. The contract is in matmul.h.

#include <algorithm>

#include "matmul.h"

namespace headrace::HEADRACE_ISA {

constexpr int kVecsPerPanel = kPanelRows / kLanes;

// Rows of x computed together: enough independent accumulators to hide latencies, few enough for registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

// Fewer rows than this compute straight from the packed weights, more from a panel unpacked once.
constexpr int kUnpackRows = 2 * kTileRows;

struct Panel {
  Vec vecs[kVecsPerPanel];
};

inline void Finish(const MatmulTask& task, int panel, int row, const Panel& acc) {
  const int first = panel * kPanelRows;
  const int count = std::min(kPanelRows, task.weight->num_rows - first);
  float* out = task.out + static_cast<size_t>(row) * task.out_stride + first;
  alignas(64) float values[kPanelRows];
  for (int i = 0; i < kVecsPerPanel; ++i) Store(values + i * kLanes, acc.vecs[i]);
  if (task.bias != nullptr) {
    for (int n = 0; n < count; ++n) values[n] += task.bias[first + n];
  }
  if (task.epilogue == Epilogue::kStore) {
    std::memcpy(out, values, count * sizeof(float));
  } else {
    for (int n = 0; n < count; ++n) out[n] += task.scale * values[n];
  }
}

// ---- floating-point weights ---------------------------------------------------------------------

struct F32Weights {
  using Element = float;
  static Vec LoadColumn(const float* from) { return Load(from); }
};
struct F16Weights {
  using Element = uint16_t;
  static Vec LoadColumn(const uint16_t* from) { return LoadF16(from); }
};
struct BF16Weights {
  using Element = uint16_t;
  static Vec LoadColumn(const uint16_t* from) { return LoadBf16(from); }
};

template <typename Weights, int kRows>
void FloatTile(const MatmulTask& task, int panel, int row) {
  using Element = typename Weights::Element;
  const auto* weights = reinterpret_cast<const Element*>(task.weight->panel(panel));
  const float* x = task.x + static_cast<size_t>(row) * task.x_stride;
  Panel acc[kRows] = {};
  for (int k = 0; k < task.weight->num_columns; ++k) {
    Panel column;
    for (int i = 0; i < kVecsPerPanel; ++i) column.vecs[i] = Weights::LoadColumn(weights + k * kPanelRows + i * kLanes);
    for (int t = 0; t < kRows; ++t) {
      const Vec value = Splat(x[static_cast<size_t>(t) * task.x_stride + k]);
      for (int i = 0; i < kVecsPerPanel; ++i) acc[t].vecs[i] = MulAdd(value, column.vecs[i], acc[t].vecs[i]);
    }
  }
  for (int t = 0; t < kRows; ++t) Finish(task, panel, row + t, acc[t]);
}

// ---- integer weights ------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
constexpr int kByteVecs = 1;  // 64-byte vectors, 16 rows at a time
using Bytes = __m512i;
using Sums = __m512i;
inline Bytes LoadBytes(const void* from) { return _mm512_loadu_si512(from); }
inline Bytes LowNibbles(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes HighNibbles(Bytes b) { return LowNibbles(_mm512_srli_epi16(b, 4)); }
inline Bytes Broadcast4(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, 4);
  return _mm512_set1_epi32(word);
}
// Dot products of a group: 8 vectors of unsigned weights with 32 signed activations.
inline Vec DotGroup(const Bytes weights[8], const int8_t* x) {
  Sums sums = _mm512_setzero_si512();
  for (int v = 0; v < 8; ++v) sums = _mm512_dpbusd_epi32(sums, weights[v], Broadcast4(x + 4 * v));
  return (Vec)_mm512_cvtepi32_ps(sums);
}
// Signed weights become unsigned by adding 128; the minimum -128 * scale takes it away again, exactly.
constexpr bool kBiasInt8 = true;
inline Bytes BiasInt8(Bytes b) { return _mm512_xor_si512(b, _mm512_set1_epi8(-128)); }
inline Vec DotGroupInt8(const Bytes weights[8], const int8_t* x) { return DotGroup(weights, x); }

#elif defined(__AVX2__)
constexpr int kByteVecs = 2;  // 32-byte vectors, 8 rows at a time
using Bytes = __m256i;
inline Bytes LoadBytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Bytes LowNibbles(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes HighNibbles(Bytes b) { return LowNibbles(_mm256_srli_epi16(b, 4)); }
inline Bytes Broadcast4(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, 4);
  return _mm256_set1_epi32(word);
}
// |weight| <= 15 and |x| <= 127 keep a sum of eight products within 15240 * 2 = 30480 < 32768, so a whole group
// adds up in 16 bits and is widened once.
inline Vec DotGroup(const Bytes weights[8], const int8_t* x) {
  Bytes sums = _mm256_maddubs_epi16(weights[0], Broadcast4(x));
  for (int v = 1; v < 8; ++v) sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights[v], Broadcast4(x + 4 * v)));
  return (Vec)_mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
}
// Eight-bit weights: a pair of products reaches 32512, so each pair is widened before it is added.
constexpr bool kBiasInt8 = false;
inline Bytes BiasInt8(Bytes b) { return b; }
inline Vec DotGroupInt8(const Bytes weights[8], const int8_t* x) {
  const Bytes ones = _mm256_set1_epi16(1);
  Bytes sums = _mm256_setzero_si256();
  for (int v = 0; v < 8; ++v) {
    const Bytes value = Broadcast4(x + 4 * v);
    const Bytes products = _mm256_maddubs_epi16(_mm256_abs_epi8(weights[v]), _mm256_sign_epi8(value, weights[v]));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(products, ones));
  }
  return (Vec)_mm256_cvtepi32_ps(sums);
}

#else
constexpr int kByteVecs = 2;
struct Bytes {
  uint8_t bytes[32];
};
inline Bytes LoadBytes(const void* from) {
  Bytes b;
  std::memcpy(b.bytes, from, 32);
  return b;
}
inline Bytes LowNibbles(Bytes b) {
  for (uint8_t& byte : b.bytes) byte &= 15;
  return b;
}
inline Bytes HighNibbles(Bytes b) {
  for (uint8_t& byte : b.bytes) byte >>= 4;
  return b;
}
template <typename Weight>
inline Vec PortableDot(const Bytes weights[8], const int8_t* x) {
  Vec dots;
  for (int row = 0; row < 8; ++row) {
    int32_t sum = 0;
    for (int v = 0; v < 8; ++v) {
      for (int j = 0; j < 4; ++j) sum += static_cast<Weight>(weights[v].bytes[4 * row + j]) * x[4 * v + j];
    }
    dots[row] = static_cast<float>(sum);
  }
  return dots;
}
inline Vec DotGroup(const Bytes weights[8], const int8_t* x) { return PortableDot<uint8_t>(weights, x); }
constexpr bool kBiasInt8 = false;
inline Bytes BiasInt8(Bytes b) { return b; }
inline Vec DotGroupInt8(const Bytes weights[8], const int8_t* x) { return PortableDot<int8_t>(weights, x); }
#endif

static_assert(kByteVecs == kVecsPerPanel);
constexpr int kBytesPerVec = 64 / kByteVecs;

struct Int4F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr bool kHasMinimum = true;
  static void LoadGroup(const uint8_t* values, int half, Bytes weights[8]) {
    for (int v = 0; v < 4; ++v) {
      const Bytes packed = LoadBytes(values + 64 * v + kBytesPerVec * half);
      weights[v] = LowNibbles(packed);
      weights[4 + v] = HighNibbles(packed);
    }
  }
  static Vec Scale(const uint8_t* scales, int half) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + kLanes * half);
  }
  static Vec Minimum(const uint8_t* scales, int half) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + 16 + kLanes * half);
  }
  static Vec Dot(const Bytes weights[8], const int8_t* x) { return DotGroup(weights, x); }
};

struct Int4F32 : Int4F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Wide;
  static Vec Scale(const uint8_t* scales, int half) {
    return Load(reinterpret_cast<const float*>(scales) + kLanes * half);
  }
  static Vec Minimum(const uint8_t* scales, int half) {
    return Load(reinterpret_cast<const float*>(scales) + 16 + kLanes * half);
  }
};

struct Int8F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr bool kHasMinimum = kBiasInt8;
  static void LoadGroup(const uint8_t* values, int half, Bytes weights[8]) {
    for (int v = 0; v < 8; ++v) weights[v] = BiasInt8(LoadBytes(values + 64 * v + kBytesPerVec * half));
  }
  static Vec Scale(const uint8_t* scales, int half) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + kLanes * half);
  }
  static Vec Minimum(const uint8_t* scales, int half) { return Scale(scales, half) * -128.0f; }
  static Vec Dot(const Bytes weights[8], const int8_t* x) { return DotGroupInt8(weights, x); }
};

// acc += dot * (scale * x_scale) + minimum * x_scaled_sum: the one order of operations, in both paths below.
template <bool kHasMinimum>
inline Vec AddGroup(Vec acc, Vec dot, Vec scale, Vec minimum, float x_scale, float x_scaled_sum) {
  acc = MulAdd(dot, scale * x_scale, acc);
  if constexpr (kHasMinimum) acc = MulAdd(minimum, Splat(x_scaled_sum), acc);
  return acc;
}

template <typename Weights, int kRows>
void PackedTile(const MatmulTask& task, int panel, int row) {
  const QuantizedRows& x = task.quantized;
  const int num_groups = x.num_groups;
  const uint8_t* values = task.weight->panel(panel);
  const uint8_t* scales = values + num_groups * ValueBytes(Weights::kFormat);
  Panel acc[kRows] = {};
  for (int half = 0; half < kByteVecs; ++half) {
    for (int group = 0; group < num_groups; ++group) {
      Bytes weights[8];
      Weights::LoadGroup(values + group * ValueBytes(Weights::kFormat), half, weights);
      const Vec scale = Weights::Scale(scales + group * ScaleBytes(Weights::kFormat), half);
      const Vec minimum = Weights::Minimum(scales + group * ScaleBytes(Weights::kFormat), half);
      for (int t = 0; t < kRows; ++t) {
        const size_t index = static_cast<size_t>(row + t) * num_groups + group;
        const Vec dot = Weights::Dot(weights, x.values + index * kGroupColumns);
        acc[t].vecs[half] = AddGroup<Weights::kHasMinimum>(acc[t].vecs[half], dot, scale, minimum, x.scale[index],
                                                          x.scaled_sum[index]);
      }
    }
  }
  for (int t = 0; t < kRows; ++t) Finish(task, panel, row + t, acc[t]);
}

// Unpacked panel: the 8 x 64 weight bytes of every group, then per group 16 scales and 16 minima in f32.
template <typename Weights>
void Unpack(const PackedMatrix& weight, int panel, uint8_t* scratch) {
  const int num_groups = weight.num_groups();
  const uint8_t* values = weight.panel(panel);
  const uint8_t* scales = values + num_groups * ValueBytes(Weights::kFormat);
  float* unpacked_scales = reinterpret_cast<float*>(scratch + num_groups * 512);
  for (int group = 0; group < num_groups; ++group) {
    const uint8_t* group_scales = scales + group * ScaleBytes(Weights::kFormat);
    for (int half = 0; half < kByteVecs; ++half) {
      Bytes weights[8];
      Weights::LoadGroup(values + group * ValueBytes(Weights::kFormat), half, weights);
      for (int v = 0; v < 8; ++v) {
        std::memcpy(scratch + group * 512 + 64 * v + kBytesPerVec * half, &weights[v], sizeof(Bytes));
      }
      Store(unpacked_scales + group * 32 + kLanes * half, Weights::Scale(group_scales, half));
      Store(unpacked_scales + group * 32 + 16 + kLanes * half, Weights::Minimum(group_scales, half));
    }
  }
}

template <typename Weights, int kRows>
void UnpackedTile(const MatmulTask& task, int panel, int row, const uint8_t* scratch) {
  const QuantizedRows& x = task.quantized;
  const int num_groups = x.num_groups;
  const float* scales = reinterpret_cast<const float*>(scratch + num_groups * 512);
  Panel acc[kRows] = {};
  for (int half = 0; half < kByteVecs; ++half) {
    for (int group = 0; group < num_groups; ++group) {
      Bytes weights[8];
      for (int v = 0; v < 8; ++v) weights[v] = LoadBytes(scratch + group * 512 + 64 * v + kBytesPerVec * half);
      const Vec scale = Load(scales + group * 32 + kLanes * half);
      const Vec minimum = Load(scales + group * 32 + 16 + kLanes * half);
      for (int t = 0; t < kRows; ++t) {
        const size_t index = static_cast<size_t>(row + t) * num_groups + group;
        const Vec dot = Weights::Dot(weights, x.values + index * kGroupColumns);
        acc[t].vecs[half] = AddGroup<Weights::kHasMinimum>(acc[t].vecs[half], dot, scale, minimum, x.scale[index],
                                                          x.scaled_sum[index]);
      }
    }
  }
  for (int t = 0; t < kRows; ++t) Finish(task, panel, row + t, acc[t]);
}

// Calls tile(std::integral_constant<int, n>, row) over [row_begin, row_end) with n <= kTileRows rows at a time.
template <int kRows, typename Tile>
void ForRowTiles(int row_begin, int row_end, const Tile& tile) {
  int row = row_begin;
  for (; row + kRows <= row_end; row += kRows) tile(std::integral_constant<int, kRows>{}, row);
  if constexpr (kRows > 1) {
    if (row < row_end) ForRowTiles<kRows / 2>(row, row_end, tile);
  }
}

template <typename Weights>
void FloatPanel(const MatmulTask& task, int panel, int row_begin, int row_end) {
  ForRowTiles<kTileRows>(row_begin, row_end, [&](auto rows, int row) { FloatTile<Weights, rows>(task, panel, row); });
}

template <typename Weights>
void QuantizedPanel(const MatmulTask& task, int panel, int row_begin, int row_end, uint8_t* scratch) {
  if (row_end - row_begin < kUnpackRows) {
    ForRowTiles<kTileRows>(row_begin, row_end,
                           [&](auto rows, int row) { PackedTile<Weights, rows>(task, panel, row); });
    return;
  }
  Unpack<Weights>(*task.weight, panel, scratch);
  ForRowTiles<kTileRows>(row_begin, row_end,
                         [&](auto rows, int row) { UnpackedTile<Weights, rows>(task, panel, row, scratch); });
}

void MatmulPanel(const MatmulTask& task, int panel, int row_begin, int row_end, uint8_t* scratch) {
  switch (task.weight->format) {
    case WeightFormat::kF32: return FloatPanel<F32Weights>(task, panel, row_begin, row_end);
    case WeightFormat::kF16: return FloatPanel<F16Weights>(task, panel, row_begin, row_end);
    case WeightFormat::kBF16: return FloatPanel<BF16Weights>(task, panel, row_begin, row_end);
    case WeightFormat::kInt8: return QuantizedPanel<Int8F16>(task, panel, row_begin, row_end, scratch);
    case WeightFormat::kInt4: return QuantizedPanel<Int4F16>(task, panel, row_begin, row_end, scratch);
    case WeightFormat::kInt4Wide: return QuantizedPanel<Int4F32>(task, panel, row_begin, row_end, scratch);
  }
}

}  // namespace headrace::HEADRACE_ISA
