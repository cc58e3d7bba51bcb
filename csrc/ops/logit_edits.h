// What a request changes about its logits before a token is chosen: as headrace/model/logit_edits.py says, in the same
// order and to the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "sampling_kernels.h"

namespace headrace {

// Ids outside the vocabulary name no token and change nothing.
struct LogitEdits {
  const uint32_t* mask;                // a bit per token, set where it may be chosen; null allows all
  std::span<const int32_t> allowed;    // if any, all others are forbidden
  std::span<const int32_t> forbidden;
  std::span<const int32_t> biased;
  std::span<const double> biases;      // one for each of `biased`
  std::span<const int32_t> history;    // prompt and output; empty unless a penalty is on
  std::span<const int32_t> output;     // the rest of `history` after the prompt
  double repetition_penalty;           // 1 is off
  double frequency_penalty;            // 0 is off
  double presence_penalty;             // 0 is off

  bool change_nothing() const {
    return mask == nullptr && allowed.empty() && forbidden.empty() && biased.empty() && history.empty();
  }
};

// out = logits of `size` tokens with the edits; `counts` [size] is overwritten.
void EditLogits(const float* logits, int size, const LogitEdits& edits, const SamplingKernels& kernels,
                uint32_t* counts, float* out);

}  // namespace headrace
