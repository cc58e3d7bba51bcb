// Included by the per-ISA translation units after vec.h. The contract is in matmul.h.

#include <algorithm>

#include "matmul.h"

namespace headrace::HEADRACE_ISA {

constexpr int kVecsPerPanel = kPanelRows / kLanes;

// A tile is some rows of x against some panels, summed up in registers: enough independent sums to hide
// latencies, few enough not to spill. Two panels share each load of x.
#if defined(__AVX512F__)
constexpr int kMaxTileRows[kMaxTilePanels] = {8, 6};
constexpr MatmulTunings kMatmulTunings = {{
    {8, 1, 128, 96 << 10},
    {8, 1, 128, 96 << 10},
    {6, 2, 128, 48 << 10},
    {6, 2, 256, 48 << 10},
}};
#else
constexpr int kMaxTileRows[kMaxTilePanels] = {6, 0};
constexpr MatmulTunings kMatmulTunings = {{
    {4, 1, 128, 96 << 10},
    {4, 1, 128, 96 << 10},
    {4, 1, 128, 48 << 10},
    {4, 1, 256, 48 << 10},
}};
#endif

// Writes one row's outputs of a panel from its kVecsPerPanel sums.
inline void Finish(const MatmulTask& task, int panel, int row, const Vec* sums) {
  const int first = panel * kPanelRows;
  const int count = std::min(kPanelRows, task.weight->num_rows - first);
  float* out = task.out + static_cast<size_t>(row) * task.out_stride + first;
  if (count == kPanelRows) {
    for (int i = 0; i < kVecsPerPanel; ++i) {
      Vec value = sums[i];
      if (task.bias != nullptr) value += Load(task.bias + first + i * kLanes);
      if (task.epilogue == Epilogue::kAdd) value = MulAdd(Splat(task.scale), value, Load(out + i * kLanes));
      Store(out + i * kLanes, value);
    }
    return;
  }
  alignas(64) float values[kPanelRows];
  for (int i = 0; i < kVecsPerPanel; ++i) Store(values + i * kLanes, sums[i]);
  for (int n = 0; n < count; ++n) {
    const float value = task.bias != nullptr ? values[n] + task.bias[first + n] : values[n];
    out[n] = task.epilogue == Epilogue::kAdd ? task.scale * value + out[n] : value;
  }
}

template <int kRows, int kPanels>
inline void FinishTile(const MatmulTask& task, int panel, int row, const Vec (&sums)[kRows][kPanels * kVecsPerPanel]) {
  for (int t = 0; t < kRows; ++t) {
    for (int p = 0; p < kPanels; ++p) Finish(task, panel + p, row + t, sums[t] + p * kVecsPerPanel);
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

template <typename Weights, int kRows, int kPanels>
void FloatTile(const MatmulTask& task, int panel, int row) {
  using Element = typename Weights::Element;
  constexpr int kVecs = kPanels * kVecsPerPanel;
  const Element* weights[kPanels];
  for (int p = 0; p < kPanels; ++p) weights[p] = reinterpret_cast<const Element*>(task.weight->panel(panel + p));
  const float* x = task.x + static_cast<size_t>(row) * task.x_stride;
  Vec sums[kRows][kVecs] = {};
  for (int k = 0; k < task.weight->num_columns; ++k) {
    Vec column[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      column[i] = Weights::LoadColumn(weights[i / kVecsPerPanel] + k * kPanelRows + i % kVecsPerPanel * kLanes);
    }
    for (int t = 0; t < kRows; ++t) {
      const Vec value = Splat(x[static_cast<size_t>(t) * task.x_stride + k]);
      for (int i = 0; i < kVecs; ++i) sums[t][i] = MulAdd(value, column[i], sums[t][i]);
    }
  }
  FinishTile<kRows, kPanels>(task, panel, row, sums);
}

// ---- integer weights ------------------------------------------------------------------------------

// Sums of a group: AddDot adds the products of a word (4 columns of each row, unsigned) with the same 4 of x.

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
inline Sums NoSums() { return _mm512_setzero_si512(); }
inline Sums AddDot(Sums sums, Bytes word, Bytes x) { return _mm512_dpbusd_epi32(sums, word, x); }
inline Vec FloatOf(Sums sums) { return (Vec)_mm512_cvtepi32_ps(sums); }
// Signed weights become unsigned by adding 128; the minimum -128 * scale takes it away again, exactly.
constexpr bool kBiasInt8 = true;
inline Bytes BiasInt8(Bytes b) { return _mm512_xor_si512(b, _mm512_set1_epi8(-128)); }
inline Sums AddDotInt8(Sums sums, Bytes word, Bytes x) { return AddDot(sums, word, x); }
inline Vec FloatOfInt8(Sums sums) { return FloatOf(sums); }

#elif defined(__AVX2__)
constexpr int kByteVecs = 2;  // 32-byte vectors, 8 rows at a time
using Bytes = __m256i;
using Sums = __m256i;
inline Bytes LoadBytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Bytes LowNibbles(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes HighNibbles(Bytes b) { return LowNibbles(_mm256_srli_epi16(b, 4)); }
inline Bytes Broadcast4(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, 4);
  return _mm256_set1_epi32(word);
}
inline Sums NoSums() { return _mm256_setzero_si256(); }
// Compilers like to form all products of a group before they add up any, and then run out of registers.
inline Sums InOrder(Sums sums) {
  asm("" : "+x"(sums));
  return sums;
}
// |weight| <= 15 and |x| <= 127 keep a sum of eight products within 15240 * 2 = 30480 < 32768, so a whole group
// adds up in 16 bits and is widened once.
inline Sums AddDot(Sums sums, Bytes word, Bytes x) {
  return InOrder(_mm256_add_epi16(sums, _mm256_maddubs_epi16(word, x)));
}
inline Vec FloatOf(Sums sums) { return (Vec)_mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1))); }
// Eight-bit weights: a pair of products reaches 32512, so each pair is widened before it is added.
constexpr bool kBiasInt8 = false;
inline Bytes BiasInt8(Bytes b) { return b; }
inline Sums AddDotInt8(Sums sums, Bytes word, Bytes x) {
  const Bytes products = _mm256_maddubs_epi16(_mm256_abs_epi8(word), _mm256_sign_epi8(x, word));
  return InOrder(_mm256_add_epi32(sums, _mm256_madd_epi16(products, _mm256_set1_epi16(1))));
}
inline Vec FloatOfInt8(Sums sums) { return (Vec)_mm256_cvtepi32_ps(sums); }

#else
constexpr int kByteVecs = 4;  // 16-byte vectors, 4 rows at a time
typedef int8_t SignedBytes __attribute__((vector_size(16)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));
inline Bytes LoadBytes(const void* from) {
  Bytes b;
  std::memcpy(&b, from, sizeof(b));
  return b;
}
inline Bytes LowNibbles(Bytes b) { return b & 15; }
inline Bytes HighNibbles(Bytes b) { return b >> 4; }
// Four columns of x, twice: beside those of two rows.
inline Shorts Broadcast4(const int8_t* from) {
  const int16_t a = from[0], b = from[1], c = from[2], d = from[3];
  return Shorts{a, b, c, d, a, b, c, d};
}
// Two rows each, four columns apart until the group is done. Products of four bits add up in 16 of them, as above.
struct Sums {
  Shorts narrow[2];
  IntVec wide[2];  // of eight bits: a row's columns in pairs
};
inline Sums NoSums() { return {}; }
inline Shorts FirstRows(SignedBytes b) {
  return __builtin_convertvector(__builtin_shufflevector(b, b, 0, 1, 2, 3, 4, 5, 6, 7), Shorts);
}
inline Shorts LastRows(SignedBytes b) {
  return __builtin_convertvector(__builtin_shufflevector(b, b, 8, 9, 10, 11, 12, 13, 14, 15), Shorts);
}
inline IntVec AddNeighbours(Shorts s) { return (((IntVec)s << 16) >> 16) + ((IntVec)s >> 16); }
inline Sums AddDot(Sums sums, Bytes word, Shorts x) {
  sums.narrow[0] += FirstRows((SignedBytes)word) * x;
  sums.narrow[1] += LastRows((SignedBytes)word) * x;
  return sums;
}
inline Sums AddDotInt8(Sums sums, Bytes word, Shorts x) {
  sums.wide[0] += AddNeighbours(FirstRows((SignedBytes)word) * x);
  sums.wide[1] += AddNeighbours(LastRows((SignedBytes)word) * x);
  return sums;
}
inline Vec FloatOfPairs(IntVec first, IntVec last) {
  return __builtin_convertvector(
      __builtin_shufflevector(first, last, 0, 2, 4, 6) + __builtin_shufflevector(first, last, 1, 3, 5, 7), Vec);
}
inline Vec FloatOf(const Sums& sums) {
  return FloatOfPairs(AddNeighbours(sums.narrow[0]), AddNeighbours(sums.narrow[1]));
}
inline Vec FloatOfInt8(const Sums& sums) { return FloatOfPairs(sums.wide[0], sums.wide[1]); }
constexpr bool kBiasInt8 = false;
inline Bytes BiasInt8(Bytes b) { return b; }
#endif

static_assert(kByteVecs == kVecsPerPanel);
constexpr int kBytesPerVec = 64 / kByteVecs;
constexpr int kWordsPerGroup = 8;  // of 4 columns

struct Int4F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4;
  static constexpr bool kHasMinimum = true;
  static Bytes Word(const uint8_t* values, int word) {
    const Bytes packed = LoadBytes(values + 64 * (word % 4));
    return word < 4 ? LowNibbles(packed) : HighNibbles(packed);
  }
  static Vec Scale(const uint8_t* scales, int vec) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + kLanes * vec);
  }
  static Vec Minimum(const uint8_t* scales, int vec) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + 16 + kLanes * vec);
  }
  template <typename X>
  static Sums Add(Sums sums, const Bytes& word, const X& x) {
    return AddDot(sums, word, x);
  }
  static Vec Float(Sums sums) { return FloatOf(sums); }
};

struct Int4F32 : Int4F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt4Wide;
  static Vec Scale(const uint8_t* scales, int vec) {
    return Load(reinterpret_cast<const float*>(scales) + kLanes * vec);
  }
  static Vec Minimum(const uint8_t* scales, int vec) {
    return Load(reinterpret_cast<const float*>(scales) + 16 + kLanes * vec);
  }
};

struct Int8F16 {
  static constexpr WeightFormat kFormat = WeightFormat::kInt8;
  static constexpr bool kHasMinimum = kBiasInt8;
  static Bytes Word(const uint8_t* values, int word) { return BiasInt8(LoadBytes(values + 64 * word)); }
  static Vec Scale(const uint8_t* scales, int vec) {
    return LoadF16(reinterpret_cast<const uint16_t*>(scales) + kLanes * vec);
  }
  static Vec Minimum(const uint8_t* scales, int vec) { return Scale(scales, vec) * -128.0f; }
  template <typename X>
  static Sums Add(Sums sums, const Bytes& word, const X& x) {
    return AddDotInt8(sums, word, x);
  }
  static Vec Float(Sums sums) { return FloatOfInt8(sums); }
};

// A panel as it is packed.
template <typename Format>
struct PackedPanel {
  const uint8_t* data;

  PackedPanel(const PackedMatrix& weight, int panel) : data(weight.panel(panel)) {}
  Bytes Word(size_t group, int word, int vec) const {
    return Format::Word(data + ValueOffset(Format::kFormat, group) + kBytesPerVec * vec, word);
  }
  Vec Scale(size_t group, int vec) const { return Format::Scale(data + ScaleOffset(Format::kFormat, group), vec); }
  Vec Minimum(size_t group, int vec) const { return Format::Minimum(data + ScaleOffset(Format::kFormat, group), vec); }
};

// sum += dot * (scale * x_scale) + minimum * x_scaled_sum: the one order of operations, whatever the tile.
template <bool kHasMinimum>
inline Vec AddGroup(Vec sum, Vec dot, Vec scale, Vec minimum, float x_scale, float x_scaled_sum) {
  sum = MulAdd(dot, scale * x_scale, sum);
  if constexpr (kHasMinimum) sum = MulAdd(minimum, Splat(x_scaled_sum), sum);
  return sum;
}

// Fetches what is needed after a tile into the second-level cache, a little with each group: memory would be idle
// while the tile is computed.
class Fetcher {
 public:
  Fetcher(const uint8_t* begin, const uint8_t* end, size_t num_turns)
      : at_(reinterpret_cast<uintptr_t>(begin) / kLine * kLine),
        end_(reinterpret_cast<uintptr_t>(end) / kLine * kLine),
        step_(CeilDiv(CeilDiv(end_ - at_, kLine), num_turns) * kLine) {}

  // Behind the last panel lies the next piece's, or nothing: a prefetch never faults.
  void Turn() {
    for (const uintptr_t end = std::min(end_, at_ + step_); at_ < end; at_ += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
    }
  }

 private:
  static constexpr uintptr_t kLine = 64;
  uintptr_t at_, end_, step_;
};

struct NoFetcher {
  void Turn() {}
};

template <typename Format, int kRows, int kPanels, typename Fetching>
void QuantizedTile(const MatmulTask& task, int panel, int row, Fetching fetching) {
  constexpr int kVecs = kPanels * kVecsPerPanel;
  const PackedPanel<Format> first(*task.weight, panel), second(*task.weight, panel + kPanels - 1);
  const auto of = [&](int vec) -> const PackedPanel<Format>& { return vec < kVecsPerPanel ? first : second; };
  const QuantizedRows& x = task.quantized;
  const size_t num_groups = x.num_groups;
  const int8_t* x_values = x.values + row * num_groups * kGroupColumns;
  const float* x_scales = x.scale + row * num_groups;
  const float* x_scaled_sums = x.scaled_sum + row * num_groups;
  Vec sums[kRows][kVecs] = {};
  for (size_t group = 0; group < num_groups; ++group) {
    fetching.Turn();
    Sums dots[kRows][kVecs];
    for (int t = 0; t < kRows; ++t) {
      for (int i = 0; i < kVecs; ++i) dots[t][i] = NoSums();
    }
#pragma GCC unroll 8
    for (int step = 0; step < kWordsPerGroup; ++step) {
      const int word = step / 2 + step % 2 * 4;  // words v and v + 4 share packed bytes
      Bytes weights[kVecs];
      for (int i = 0; i < kVecs; ++i) weights[i] = of(i).Word(group, word, i % kVecsPerPanel);
      for (int t = 0; t < kRows; ++t) {
        const auto four = Broadcast4(x_values + (t * num_groups + group) * kGroupColumns + 4 * word);
        for (int i = 0; i < kVecs; ++i) dots[t][i] = Format::Add(dots[t][i], weights[i], four);
      }
    }
    for (int i = 0; i < kVecs; ++i) {
      const Vec scale = of(i).Scale(group, i % kVecsPerPanel);
      const Vec minimum = of(i).Minimum(group, i % kVecsPerPanel);
      for (int t = 0; t < kRows; ++t) {
        const size_t index = t * num_groups + group;
        sums[t][i] = AddGroup<Format::kHasMinimum>(sums[t][i], Format::Float(dots[t][i]), scale, minimum,
                                                    x_scales[index], x_scaled_sums[index]);
      }
    }
  }
  FinishTile<kRows, kPanels>(task, panel, row, sums);
}

// ---- cutting into tiles ---------------------------------------------------------------------------

// Calls tile(std::integral_constant<int, n>, row) over [row_begin, row_end), as many rows n at a time as there are
// and the tuning allows.
template <int kMost, typename Tile>
void ForRowTiles(int most, int row_begin, int row_end, const Tile& tile) {
  int row = row_begin;
  if (kMost <= most) {
    for (; row + kMost <= row_end; row += kMost) tile(std::integral_constant<int, kMost>{}, row);
  }
  if constexpr (kMost > 1) {
    if (row < row_end) ForRowTiles<kMost - 1>(most, row, row_end, tile);
  }
}

template <typename Weights, int kPanels>
void FloatPanels(const MatmulTask& task, int tile_rows, int panel, int row_begin, int row_end) {
  ForRowTiles<kMaxTileRows[kPanels - 1]>(tile_rows, row_begin, row_end, [&](auto rows, int row) {
    FloatTile<Weights, rows, kPanels>(task, panel, row);
  });
}

// Tiles of one or two rows wait for memory as it is, and do best undisturbed.
constexpr int kLeastFetchingRows = 3;
// With more rows a panel stays in the caches for many tiles: there is time for the next, and none to ask in each group.
constexpr int kMostFetchingRows = kLargestRows[2];

// Each tile fetches its part of the next panels.
template <typename Format, int kPanels>
void QuantizedPanels(const MatmulTask& task, int tile_rows, int panel, int row_begin, int row_end) {
  const uint8_t* next = task.weight->panel(panel + kPanels);
  const size_t num_bytes = kPanels * task.weight->panel_bytes();
  const int num_rows = row_end - row_begin;
  ForRowTiles<kMaxTileRows[kPanels - 1]>(tile_rows, row_begin, row_end, [&](auto rows, int row) {
    const int first = row - row_begin;
    const uint8_t *begin = next + num_bytes * first / num_rows, *end = next + num_bytes * (first + rows) / num_rows;
    if constexpr (rows >= kLeastFetchingRows) {
      if (num_rows <= kMostFetchingRows) {
        return QuantizedTile<Format, rows, kPanels>(task, panel, row, Fetcher(begin, end, task.quantized.num_groups));
      }
    }
    if (rows < num_rows) Fetcher(begin, end, 1).Turn();
    QuantizedTile<Format, rows, kPanels>(task, panel, row, NoFetcher());
  });
}

template <int kPanels>
void ComputePanels(const MatmulTask& task, int tile_rows, int panel, int row_begin, int row_end) {
  switch (task.weight->format) {
    case WeightFormat::kF32: return FloatPanels<F32Weights, kPanels>(task, tile_rows, panel, row_begin, row_end);
    case WeightFormat::kF16: return FloatPanels<F16Weights, kPanels>(task, tile_rows, panel, row_begin, row_end);
    case WeightFormat::kBF16: return FloatPanels<BF16Weights, kPanels>(task, tile_rows, panel, row_begin, row_end);
    case WeightFormat::kInt8: return QuantizedPanels<Int8F16, kPanels>(task, tile_rows, panel, row_begin, row_end);
    case WeightFormat::kInt4: return QuantizedPanels<Int4F16, kPanels>(task, tile_rows, panel, row_begin, row_end);
    case WeightFormat::kInt4Wide: return QuantizedPanels<Int4F32, kPanels>(task, tile_rows, panel, row_begin, row_end);
  }
}

void MatmulPanels(const MatmulTask& task, const MatmulTuning& tuning, int panel_begin, int panel_end, int row_begin,
                  int row_end) {
  int panel = panel_begin;
  if constexpr (kMaxTileRows[1] > 0) {
    if (tuning.tile_panels == 2) {
      for (; panel + 2 <= panel_end; panel += 2) ComputePanels<2>(task, tuning.tile_rows, panel, row_begin, row_end);
    }
  }
  for (; panel < panel_end; ++panel) ComputePanels<1>(task, tuning.tile_rows, panel, row_begin, row_end);
}

}  // namespace headrace::HEADRACE_ISA
