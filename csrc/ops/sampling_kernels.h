// The passes over a vocabulary that sampling makes: what the per-ISA translation units provide to it.
//
// Logits are looked at in blocks of kTokenBlock tokens, so that what lies far from anything wanted is skipped as
// a whole and only one block is searched for the token drawn.
#pragma once

#include <cstdint>

namespace headrace {

constexpr int kTokenBlock = 128;  // tokens; a multiple of every vector's lanes

// What weights come from. The weight of logit x is the integer round(exp(z) * 2**31), ties to even, where
// z = (x - peak) / temperature, all in double, and 0 if z < min_distance, which is kZeroDistance or more. Neither
// rounding nor order can change a sum of at most 2**22 such weights.
constexpr double kZeroDistance = -22.2;  // below -32 * log(2) = -22.18 all weights are 0

struct WeighTask {
  double peak;
  double temperature;
  double min_distance;
};

// A histogram over the distance from the peak.
struct BinTask {
  float peak;
  float bins_per_unit;
  int last_bin;
};

struct SamplingKernels {
  bool (*block_maxima)(const float* x, int size, float* maxima);
  void (*copy_allowed)(const float* x, const uint32_t* mask, int size, float* out);
  double (*weigh_block)(const WeighTask& task, const float* x, int count, uint32_t* weights);
  void (*bin_block)(const float* x, int count, const BinTask& task, int32_t* bins);
  double (*drop_block)(const float* x, int count, float border, int num_ties, uint32_t* weights);
  float (*sum_exp_block)(const float* x, int count, float peak);
  float (*sum_exp_allowed_block)(const float* x, const uint32_t* mask, int count, float peak);
  int (*count_above)(const float* x, int count, float value);
};

// The definition of weigh_block, with the C library's exponential. The vector versions fall back to it where
// their last bits could matter, so that all of them give these very integers.
double WeighBlockExactly(const WeighTask& task, const float* x, int count, uint32_t* weights);

}  // namespace headrace
