// Choosing the next token of each row of logits, and reporting log-probabilities.
//
// A row's token depends on its logits and its parameters alone: rows are pieces of work that share nothing.
// headrace/model/sampler.py says what is computed; this gives the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../kernels.h"
#include "../thread_pool.h"
#include "sampling_scratch.h"

namespace headrace {

// What each thread needs for rows of a vocabulary. One call at a time.
class SamplingWorkspace {
 public:
  SamplingWorkspace(int vocab_size, int num_threads, const Kernels& kernels);
  SamplingWorkspace(const SamplingWorkspace&) = delete;
  SamplingWorkspace& operator=(const SamplingWorkspace&) = delete;

  int vocab_size() const { return vocab_size_; }
  int num_threads() const { return static_cast<int>(scratch_.size()); }
  const SamplingKernels& kernels() const { return kernels_.sampling; }
  SamplingScratch& scratch(int thread) { return *scratch_[thread]; }

 private:
  int vocab_size_;
  const Kernels& kernels_;
  std::vector<std::unique_ptr<SamplingScratch>> scratch_;  // one per thread
};

// Rows of float32 logits; columns from the vocabulary's size on are padding.
struct LogitRows {
  const float* data;
  int num_rows;
  int num_columns;

  const float* row(int index) const { return data + static_cast<size_t>(index) * num_columns; }
};

// The parameters of S rows, as columns.
struct SampleBatch {
  enum Real { kTemperature, kTopP, kMinP, kRepetition, kFrequency, kPresence, kNumReals };
  enum Integer { kSeed, kPosition, kTopK, kNumTop, kNumIntegers };  // kNumTop: alternatives to report, -1: report nothing
  enum List { kAllowed, kForbidden, kBiased, kPrompt, kOutput, kNumLists };

  std::span<const double> reals;        // [S, kNumReals]
  std::span<const int64_t> integers;    // [S, kNumIntegers]
  std::span<const int64_t> list_starts; // [S * kNumLists + 1]: where in token_ids each list of each row starts
  std::span<const int32_t> token_ids;   // all lists, one after another; kPrompt and kOutput only for penalties
  std::span<const double> biases;       // one for each entry of the kBiased lists, in order
  std::span<const int64_t> bias_starts; // [S + 1]
  std::span<const uint32_t> token_mask; // [S, ceil(vocab_size / 32)], or empty
};

enum class RowStatus : int32_t {
  kChosen = 0,
  kNotFinite = 1,    // NaN, +inf, or nothing but -inf
  kNothingLeft = 2,  // the edits forbid every token
};

// Log-probabilities of R rows: of one token and of the likeliest ones in order.
struct LogprobColumns {
  std::span<float> logprobs;      // [R]
  std::span<int32_t> ranks;       // [R], from 1
  std::span<int32_t> top_ids;     // [R, num_top]; a row with fewer leaves the rest alone
  std::span<float> top_logprobs;  // [R, num_top]
  int num_top;
};

struct SampledRows {
  std::span<int32_t> token_ids;   // [S], -1 where a row failed
  std::span<RowStatus> statuses;  // [S]
  std::span<float> masked_mass;   // [S]: how likely a token was that the token mask forbids, in [0, 1]
  LogprobColumns logprobs;        // of the rows that ask and have not failed
};

// Chooses a token for each row. Returns an empty string, or what is wrong with an argument (then nothing has been
// written). Costs one pass over a greedy row; see DrawToken for the others.
std::string Sample(const LogitRows& logits, const SampleBatch& batch, ThreadPool& pool, SamplingWorkspace& workspace,
                   const SampledRows& out);

// Reports on token_ids[r] and the num_top[r] likeliest tokens of each row. A row that is not finite has NaN as its
// log-probabilities, rank 0 and -1 as alternatives. Returns as Sample does.
std::string ReportLogprobs(const LogitRows& logits, std::span<const int32_t> token_ids,
                           std::span<const int32_t> num_top, ThreadPool& pool, SamplingWorkspace& workspace,
                           const LogprobColumns& out);

}  // namespace headrace
