// Included by the per-ISA translation units after vec.h: the passes over a vocabulary that sampling makes.

#include <algorithm>
#include <limits>

#include "sampling_kernels.h"

namespace headrace::HEADRACE_ISA {

// Where registers are narrower than Vec, compilers take its comparisons apart lane by lane; sampling compares much.
#if defined(__AVX2__)
constexpr int kTokenLanes = kLanes;
#else
constexpr int kTokenLanes = 4;
#endif
constexpr int kDoubleLanes = kTokenLanes / 2;

typedef float TokenVec __attribute__((vector_size(kTokenLanes * 4)));
typedef int32_t TokenMaskVec __attribute__((vector_size(kTokenLanes * 4)));
typedef double DoubleVec __attribute__((vector_size(kDoubleLanes * 8)));
typedef int64_t LongVec __attribute__((vector_size(kDoubleLanes * 8)));
typedef float HalfVec __attribute__((vector_size(kDoubleLanes * 4)));
typedef uint32_t NarrowVec __attribute__((vector_size(kDoubleLanes * 4)));

constexpr float kForbiddenLogit = -std::numeric_limits<float>::infinity();

inline TokenVec SplatLogit(float value) { return value - TokenVec{}; }
inline DoubleVec SplatDouble(double value) { return value - DoubleVec{}; }
inline DoubleVec MaxDouble(DoubleVec a, DoubleVec b) { return a < b ? b : a; }
inline TokenVec MaxLogit(TokenVec a, TokenVec b) { return a < b ? b : a; }

inline TokenVec LoadLogits(const float* from) {
  TokenVec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline DoubleVec LoadWidened(const float* from) {
  HalfVec v;
  std::memcpy(&v, from, sizeof(v));
  return __builtin_convertvector(v, DoubleVec);
}

// The largest lane, in registers: there is one call for each block of a vocabulary.
inline float MaxLane(TokenVec v) {
#if defined(__AVX512F__)
  v = MaxLogit(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif defined(__AVX2__)
  v = MaxLogit(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
  v = MaxLogit(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  v = MaxLogit(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
  return v[0];
}

// The maximum of each block of x; returns whether x is free of NaN (if not, maxima mean nothing).
bool BlockMaxima(const float* x, int size, float* maxima) {
  TokenMaskVec broken = {};
  bool is_rest_broken = false;
  for (int begin = 0; begin < size; begin += kTokenBlock) {
    const int end = std::min(begin + kTokenBlock, size);
    TokenVec lanes = SplatLogit(kForbiddenLogit);
    int i = begin;
    for (; i + kTokenLanes <= end; i += kTokenLanes) {
      const TokenVec v = LoadLogits(x + i);
      broken |= v != v;
      lanes = MaxLogit(v, lanes);
    }
    float max = MaxLane(lanes);
    for (; i < end; ++i) {
      is_rest_broken |= x[i] != x[i];
      max = x[i] > max ? x[i] : max;
    }
    *maxima++ = max;
  }
  int32_t any = is_rest_broken;
  for (int lane = 0; lane < kTokenLanes; ++lane) any |= broken[lane];
  return any == 0;
}

// out = x where the bit of mask is set and -inf elsewhere. Bit i is bit i % 32 of word i / 32.
void CopyAllowed(const float* x, const uint32_t* mask, int size, float* out) {
  TokenMaskVec bits;
  for (int lane = 0; lane < kTokenLanes; ++lane) bits[lane] = static_cast<int32_t>(1u << lane);
  int i = 0;
  for (; i + kTokenLanes <= size; i += kTokenLanes) {
    const TokenMaskVec word = static_cast<int32_t>(mask[i / 32] >> (i % 32)) - TokenMaskVec{};
    const TokenVec kept = (word & bits) != 0 ? LoadLogits(x + i) : SplatLogit(kForbiddenLogit);
    std::memcpy(out + i, &kept, sizeof(kept));
  }
  for (; i < size; ++i) out[i] = (mask[i / 32] >> (i % 32)) & 1 ? x[i] : kForbiddenLogit;
}

// Vectors worked on side by side: one exponential is a chain of dependent steps, which alone would leave the
// arithmetic units waiting.
constexpr int kGroup = 4;
constexpr int kGroupTokens = kGroup * kDoubleLanes;

// z becomes 2**31 * e**z with a relative error below 2**-50, for z in [-40, 0]. Range reduction by log 2 in two
// parts and 1 + r + r**2 q(r), where q interpolates at Chebyshev nodes: 2**-55 off before rounding.
inline void ScaledExp(DoubleVec (&z)[kGroup]) {
  DoubleVec power[kGroup], r[kGroup], r2[kGroup], even[kGroup], odd[kGroup];
  const auto each = [](const auto& step) {
#pragma GCC unroll 4
    for (int k = 0; k < kGroup; ++k) step(k);
  };
  each([&](int k) { power[k] = z[k] * 1.4426950408889634 + 0x1.8p52; });  // rounds to an integer, in the low bits
  each([&](int k) { r2[k] = power[k] - 0x1.8p52; });
  each([&](int k) { r[k] = z[k] - r2[k] * 0x1.62e42fefa3800p-1; });
  each([&](int k) { r[k] = r[k] - r2[k] * 0x1.ef35793c76730p-45; });
  each([&](int k) { r2[k] = r[k] * r[k]; });
  each([&](int k) { even[k] = r2[k] * 2.7620075880100385e-07 + 2.4801521322368448e-05; });
  each([&](int k) { odd[k] = r2[k] * 2.510037583265122e-08 + 2.7557268480309837e-06; });
  each([&](int k) { even[k] = even[k] * r2[k] + 0.0013888888917196719; });
  each([&](int k) { odd[k] = odd[k] * r2[k] + 0.00019841269863040545; });
  each([&](int k) { even[k] = even[k] * r2[k] + 0.041666666666624164; });
  each([&](int k) { odd[k] = odd[k] * r2[k] + 0.008333333333330065; });
  each([&](int k) { even[k] = even[k] * r2[k] + 0.5000000000000001; });
  each([&](int k) { odd[k] = odd[k] * r2[k] + 0.16666666666666669; });
  each([&](int k) { even[k] = odd[k] * r[k] + even[k]; });
  each([&](int k) { even[k] = (even[k] * r2[k] + r[k]) + 1.0; });
  each([&](int k) {
    const LongVec exponent = ((LongVec)power[k] - int64_t{0x4338000000000000}) + (1023 + 31);
    z[k] = even[k] * (DoubleVec)(exponent << 52);
  });
}

// What has been added up over the lanes of a block's weights.
struct WeightLanes {
  DoubleVec sum = {};
  DoubleVec squared_error = {};  // the largest, of rounding
};

// Weights of kGroupTokens tokens.
inline void WeighGroup(const WeighTask& task, const float* x, uint32_t* weights, WeightLanes& lanes) {
  constexpr double kToInteger = 0x1p52;
  DoubleVec z[kGroup];
#pragma GCC unroll 4
  for (int k = 0; k < kGroup; ++k) {
    z[k] = (LoadWidened(x + k * kDoubleLanes) - task.peak) / task.temperature;
    z[k] = z[k] >= task.min_distance ? z[k] : SplatDouble(-40.0);  // whose weight is 0
  }
  ScaledExp(z);
#pragma GCC unroll 4
  for (int k = 0; k < kGroup; ++k) {
    const DoubleVec biased = z[k] + kToInteger;  // rounds to nearest even; the integer is in the low bits
    const DoubleVec rounded = biased - kToInteger;
    const DoubleVec error = z[k] - rounded;
    lanes.squared_error = MaxDouble(lanes.squared_error, error * error);
    lanes.sum += rounded;
    const NarrowVec narrow = __builtin_convertvector((LongVec)biased, NarrowVec);
    std::memcpy(weights + k * kDoubleLanes, &narrow, sizeof(narrow));
  }
}

// Weights of one block of count tokens; returns their sum. See WeighTask.
double WeighBlock(const WeighTask& task, const float* x, int count, uint32_t* weights) {
  // Where the vector exponential comes this near to a tie, rounding it could give another integer than
  // rounding the library's: this is many times the error of both.
  constexpr double kSafeError = 0.5 - 0x1p-18;
  WeightLanes lanes;
  int i = 0;
  for (; i + kGroupTokens <= count; i += kGroupTokens) WeighGroup(task, x + i, weights + i, lanes);
  if (i < count) {
    float padded[kGroupTokens];
    uint32_t padded_weights[kGroupTokens];
    std::fill(std::copy(x + i, x + count, padded), padded + kGroupTokens, kForbiddenLogit);
    WeighGroup(task, padded, padded_weights, lanes);
    std::copy_n(padded_weights, count - i, weights + i);
  }
  double sum = 0.0, squared_error = 0.0;
  for (int lane = 0; lane < kDoubleLanes; ++lane) {
    sum += lanes.sum[lane];  // of integers: exact in any order
    squared_error = std::max(squared_error, lanes.squared_error[lane]);
  }
  return squared_error < kSafeError * kSafeError ? sum : WeighBlockExactly(task, x, count, weights);
}

// bins = min((peak - x) * bins_per_unit, last_bin), rounded down.
void BinBlock(const float* x, int count, const BinTask& task, int32_t* bins) {
  const float last_bin = static_cast<float>(task.last_bin);
  for (int i = 0; i < count; ++i) {
    const float bin = (task.peak - x[i]) * task.bins_per_unit;
    bins[i] = static_cast<int32_t>(bin < last_bin ? bin : last_bin);
  }
}

// Sets the weights of tokens below `border` to 0, and of those at `border` from index `num_ties` on; returns the
// sum of what is left.
double DropBlock(const float* x, int count, float border, int num_ties, uint32_t* weights) {
  uint64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const bool is_kept = (x[i] > border) | ((x[i] == border) & (i < num_ties));
    weights[i] = is_kept ? weights[i] : 0;
    sum += weights[i];
  }
  return static_cast<double>(sum);
}

// The sum of e**(x - peak) over one block.
float SumExpBlock(const float* x, int count, float peak) {
  Vec lanes = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes += Exp(Load(x + i) - peak);
  float sum = ReduceAdd(lanes);
  for (; i < count; ++i) sum += Exp(Splat(x[i] - peak))[0];
  return sum;
}

// The sum of e**(x - peak) over those of one block whose bit of mask is set. Bit i is bit i % 32 of word i / 32.
float SumExpAllowedBlock(const float* x, const uint32_t* mask, int count, float peak) {
  float kept[kTokenBlock];
  CopyAllowed(x, mask, count, kept);
  return SumExpBlock(kept, count, peak);
}

// How many of x are larger than value.
int CountAbove(const float* x, int count, float value) {
  int above = 0;
  for (int i = 0; i < count; ++i) above += x[i] > value;
  return above;
}

constexpr SamplingKernels kSamplingKernels = {
    .block_maxima = BlockMaxima,
    .copy_allowed = CopyAllowed,
    .weigh_block = WeighBlock,
    .bin_block = BinBlock,
    .drop_block = DropBlock,
    .sum_exp_block = SumExpBlock,
    .sum_exp_allowed_block = SumExpAllowedBlock,
    .count_above = CountAbove,
};

}  // namespace headrace::HEADRACE_ISA
