// What one thread needs to sample a row, taken once.
#pragma once

#include <cstdint>
#include <memory>

#include "sampling_kernels.h"

namespace headrace {

constexpr int kMaxVocabSize = 1 << 22;  // see WeighTask
constexpr int kNumBins = 1024;
constexpr int kMaxFew = 512;  // likeliest tokens that are looked at before a whole vocabulary is

struct Bin {
  uint64_t weight;
  uint64_t count;
};

// Nothing is written on construction, so that pages are only taken when they are needed.
struct SamplingScratch {
  explicit SamplingScratch(int vocab_size)
      : num_blocks((vocab_size + kTokenBlock - 1) / kTokenBlock),
        edited(std::make_unique_for_overwrite<float[]>(vocab_size)),
        weights(std::make_unique_for_overwrite<uint32_t[]>(vocab_size)),
        keys(std::make_unique_for_overwrite<uint64_t[]>(vocab_size)),
        maxima(std::make_unique_for_overwrite<float[]>(num_blocks)),
        edited_maxima(std::make_unique_for_overwrite<float[]>(num_blocks)),
        sorted_maxima(std::make_unique_for_overwrite<float[]>(num_blocks)),
        block_weights(std::make_unique_for_overwrite<double[]>(num_blocks)) {}

  int num_blocks;
  std::unique_ptr<float[]> edited;         // [V] logits of a row after its edits
  std::unique_ptr<uint32_t[]> weights;     // [V]; before that, counts of tokens
  std::unique_ptr<uint64_t[]> keys;        // [V], see ranking.h
  std::unique_ptr<float[]> maxima;         // of each block of the row as it came
  std::unique_ptr<float[]> edited_maxima;  // of each block of `edited`
  std::unique_ptr<float[]> sorted_maxima;
  std::unique_ptr<double[]> block_weights;
  Bin bins[kNumBins];
  float few_logits[kMaxFew];
  uint32_t few_weights[kMaxFew];
};

}  // namespace headrace
