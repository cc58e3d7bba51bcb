// Drawing a token from a row of logits, as exactly specified as in headrace/model/draw.py, whose words these are:
// weights are integers (see WeighTask), every filter keeps the first tokens of the ranking (see ranking.h), and the
// token is the first kept one in vocabulary order at which the running sum of weights exceeds
// min(floor(u * W), W - 1), where u is Uniform(seed, position) and W the weight of the kept tokens.
#pragma once

#include <cstdint>

#include "ranking.h"
#include "sampling_kernels.h"
#include "sampling_scratch.h"

namespace headrace {

struct DrawRule {
  double temperature;  // > 0, finite
  double top_p;        // in (0, 1]; 1 is off
  double min_p;        // in [0, 1]; 0 is off
  int64_t top_k;       // 0 or less is off
  uint64_t seed;
  uint64_t position;
};

// A number in [0, 1), a multiple of 2**-53: the upper 53 bits of the first 64 that Philox4x32-10 (Salmon et al., SC
// 2011) makes of counter (position, 0) and key seed.
double Uniform(uint64_t seed, uint64_t position);

// The token drawn. Costs a pass or two over the row; some more if filters keep more than a few hundred tokens.
int DrawToken(const PeakedRow& row, const DrawRule& rule, const SamplingKernels& kernels, SamplingScratch& scratch);

}  // namespace headrace
