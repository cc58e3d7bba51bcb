#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "draw.h"
#include "logit_edits.h"
#include "ranking.h"

namespace headrace {
namespace {

constexpr int32_t kNoToken = -1;

// Blocks that lie this far below a row's peak are left out of its mass: 2**22 such tokens add 6e-5 to it.
constexpr float kNegligible = -25.0f;

// The row with its maxima; a peak that is not finite says that the row is unusable.
PeakedRow PeaksOf(const float* logits, int size, const SamplingKernels& kernels, float* maxima) {
  PeakedRow row{logits, size, maxima, std::numeric_limits<float>::quiet_NaN()};
  if (kernels.block_maxima(logits, size, maxima)) row.peak = *std::max_element(maxima, maxima + row.num_blocks());
  return row;
}

// Log-probabilities of one row. They are the logits minus the logarithm of the sum of their exponentials; blocks
// are summed in float, and their sums in double.
class RowLogprobs {
 public:
  RowLogprobs(const PeakedRow& row, const SamplingKernels& kernels) : row_(row), kernels_(kernels) {
    double sum = 0.0;
    for (int block = 0; block < row.num_blocks(); ++block) {
      sum += kernels.sum_exp_block(row.logits + block * kTokenBlock, row.block_size(block), row.peak);
    }
    normalizer_ = row.peak + std::log(sum);
  }

  float Of(float logit) const { return static_cast<float>(logit - normalizer_); }

  // One more than the number of likelier tokens.
  int RankOf(float logit) const {
    int rank = 1;
    for (int block = 0; block < row_.num_blocks(); ++block) {
      if (row_.maxima[block] <= logit) continue;
      rank += kernels_.count_above(row_.logits + block * kTokenBlock, row_.block_size(block), logit);
    }
    return rank;
  }

 private:
  const PeakedRow& row_;
  const SamplingKernels& kernels_;
  double normalizer_;
};

void Report(const PeakedRow& row, int token_id, int num_top, const SamplingKernels& kernels, SamplingScratch& scratch,
            const LogprobColumns& out, int index) {
  const RowLogprobs logprobs(row, kernels);
  out.logprobs[index] = logprobs.Of(row.logits[token_id]);
  out.ranks[index] = logprobs.RankOf(row.logits[token_id]);
  if (num_top == 0) return;
  size_t at = static_cast<size_t>(index) * out.num_top;
  for (uint64_t key : FirstRanked(row, num_top, scratch)) {
    const int id = TokenOfKey(key);
    out.top_ids[at] = id;
    out.top_logprobs[at++] = logprobs.Of(row.logits[id]);
  }
}

// Whether the bits of `size` tokens are all set, or all clear.
bool AllowsAll(const uint32_t* mask, int size) {
  const int words = size / 32;
  if (!std::all_of(mask, mask + words, [](uint32_t word) { return word == ~0u; })) return false;
  const uint32_t rest = (1u << (size % 32)) - 1;
  return rest == 0 || (mask[words] & rest) == rest;
}

bool AllowsNone(const uint32_t* mask, int size) {
  const int words = size / 32;
  if (!std::all_of(mask, mask + words, [](uint32_t word) { return word == 0; })) return false;
  const uint32_t rest = (1u << (size % 32)) - 1;
  return rest == 0 || (mask[words] & rest) == 0;
}

// The share of a row's probability, as softmax gives it, that lies on tokens a mask forbids. Costs an exponential for
// each token of the blocks that count, and two where a block has both allowed and forbidden ones.
float MaskedMass(const PeakedRow& row, const uint32_t* mask, const SamplingKernels& kernels) {
  if (mask == nullptr || AllowsAll(mask, row.size)) return 0.0f;
  double total = 0.0, allowed = 0.0;
  for (int block = 0; block < row.num_blocks(); ++block) {
    if (row.maxima[block] - row.peak < kNegligible) continue;
    const int size = row.block_size(block);
    const float* logits = row.logits + block * kTokenBlock;
    const uint32_t* words = mask + block * (kTokenBlock / 32);
    const double sum = kernels.sum_exp_block(logits, size, row.peak);
    total += sum;
    if (AllowsNone(words, size)) continue;
    allowed += AllowsAll(words, size) ? sum : kernels.sum_exp_allowed_block(logits, words, size, row.peak);
  }
  return static_cast<float>(std::clamp(1.0 - allowed / total, 0.0, 1.0));
}

// One row's parameters, picked from the columns.
class RowView {
 public:
  RowView(const SampleBatch& batch, int row, int vocab_size) : batch_(batch), row_(row) {
    const size_t words = (static_cast<size_t>(vocab_size) + 31) / 32;
    if (!batch.token_mask.empty()) mask_ = batch.token_mask.data() + row * words;
  }

  bool is_greedy() const { return Real(SampleBatch::kTemperature) == 0.0 || Integer(SampleBatch::kTopK) == 1; }
  int num_top() const { return static_cast<int>(Integer(SampleBatch::kNumTop)); }
  const uint32_t* mask() const { return mask_; }

  DrawRule rule() const {
    return {.temperature = Real(SampleBatch::kTemperature),
            .top_p = Real(SampleBatch::kTopP),
            .min_p = Real(SampleBatch::kMinP),
            .top_k = Integer(SampleBatch::kTopK),
            .seed = static_cast<uint64_t>(Integer(SampleBatch::kSeed)),
            .position = static_cast<uint64_t>(Integer(SampleBatch::kPosition))};
  }

  LogitEdits edits() const {
    const std::span<const int32_t> prompt = List(SampleBatch::kPrompt), output = List(SampleBatch::kOutput);
    const size_t first_bias = batch_.bias_starts[row_];
    return {.mask = mask_,
            .allowed = List(SampleBatch::kAllowed),
            .forbidden = List(SampleBatch::kForbidden),
            .biased = List(SampleBatch::kBiased),
            .biases = batch_.biases.subspan(first_bias, batch_.bias_starts[row_ + 1] - first_bias),
            .history = {prompt.data(), prompt.size() + output.size()},
            .output = output,
            .repetition_penalty = Real(SampleBatch::kRepetition),
            .frequency_penalty = Real(SampleBatch::kFrequency),
            .presence_penalty = Real(SampleBatch::kPresence)};
  }

 private:
  double Real(SampleBatch::Real name) const { return batch_.reals[row_ * SampleBatch::kNumReals + name]; }
  int64_t Integer(SampleBatch::Integer name) const { return batch_.integers[row_ * SampleBatch::kNumIntegers + name]; }
  std::span<const int32_t> List(SampleBatch::List name) const {
    const int64_t* start = &batch_.list_starts[row_ * SampleBatch::kNumLists + name];
    return batch_.token_ids.subspan(start[0], start[1] - start[0]);
  }

  const SampleBatch& batch_;
  size_t row_;
  const uint32_t* mask_ = nullptr;
};

void SampleRow(const float* logits, const RowView& view, SamplingWorkspace& workspace, SamplingScratch& scratch,
               const SampledRows& out, int index) {
  const SamplingKernels& kernels = workspace.kernels();
  const int size = workspace.vocab_size();
  const PeakedRow raw = PeaksOf(logits, size, kernels, scratch.maxima.get());
  out.token_ids[index] = kNoToken;
  out.statuses[index] = RowStatus::kNotFinite;
  out.masked_mass[index] = 0.0f;
  if (!std::isfinite(raw.peak)) return;
  out.masked_mass[index] = MaskedMass(raw, view.mask(), kernels);
  PeakedRow row = raw;
  const LogitEdits edits = view.edits();
  if (!edits.change_nothing()) {
    EditLogits(logits, size, edits, kernels, scratch.weights.get(), scratch.edited.get());
    row = PeaksOf(scratch.edited.get(), size, kernels, scratch.edited_maxima.get());
    out.statuses[index] = RowStatus::kNothingLeft;
    if (!std::isfinite(row.peak)) return;
  }
  const int token = view.is_greedy() ? FirstToken(row) : DrawToken(row, view.rule(), kernels, scratch);
  out.token_ids[index] = token;
  out.statuses[index] = RowStatus::kChosen;
  if (view.num_top() >= 0) Report(raw, token, view.num_top(), kernels, scratch, out.logprobs, index);
}

// Whether starts [n + 1] rise from 0 to size.
bool AreStarts(std::span<const int64_t> starts, size_t count, size_t size) {
  return starts.size() == count + 1 && starts.front() == 0 && starts.back() == static_cast<int64_t>(size) &&
         std::is_sorted(starts.begin(), starts.end());
}

std::string CheckRow(const SampleBatch& batch, size_t row) {
  const double* reals = &batch.reals[row * SampleBatch::kNumReals];
  if (!std::all_of(reals, reals + SampleBatch::kNumReals, [](double value) { return std::isfinite(value); })) {
    return "a parameter is not finite";
  }
  if (reals[SampleBatch::kTemperature] < 0.0) return "temperature must not be negative";
  if (!(reals[SampleBatch::kTopP] > 0.0 && reals[SampleBatch::kTopP] <= 1.0)) return "top_p must be in (0, 1]";
  if (!(reals[SampleBatch::kMinP] >= 0.0 && reals[SampleBatch::kMinP] <= 1.0)) return "min_p must be in [0, 1]";
  if (!(reals[SampleBatch::kRepetition] > 0.0)) return "repetition_penalty must be positive";
  const int64_t* starts = &batch.list_starts[row * SampleBatch::kNumLists + SampleBatch::kBiased];
  if (starts[1] - starts[0] != batch.bias_starts[row + 1] - batch.bias_starts[row]) return "there is a bias per biased id";
  return "";
}

std::string CheckLogprobs(const LogprobColumns& out, size_t num_rows) {
  if (out.num_top < 0 || out.logprobs.size() != num_rows || out.ranks.size() != num_rows ||
      out.top_ids.size() != num_rows * out.num_top || out.top_logprobs.size() != num_rows * out.num_top) {
    return "the columns of log-probabilities have other sizes than the rows";
  }
  return "";
}

std::string CheckLogits(const LogitRows& logits, const ThreadPool& pool, const SamplingWorkspace& workspace) {
  if (logits.num_columns < workspace.vocab_size()) {
    return "logits have " + std::to_string(logits.num_columns) + " columns, fewer than the vocabulary's " +
           std::to_string(workspace.vocab_size()) + " tokens";
  }
  if (pool.num_threads() > workspace.num_threads()) {
    return "the pool has " + std::to_string(pool.num_threads()) + " threads but the workspace is for " +
           std::to_string(workspace.num_threads());
  }
  return "";
}

std::string CheckBatch(const LogitRows& logits, const SampleBatch& batch, const SamplingWorkspace& workspace,
                       const SampledRows& out) {
  const size_t num_rows = logits.num_rows;
  const size_t words = (static_cast<size_t>(workspace.vocab_size()) + 31) / 32;
  if (batch.reals.size() != num_rows * SampleBatch::kNumReals ||
      batch.integers.size() != num_rows * SampleBatch::kNumIntegers || out.token_ids.size() != num_rows ||
      out.statuses.size() != num_rows || out.masked_mass.size() != num_rows) {
    return "parameters and logits have different numbers of rows";
  }
  if (!batch.token_mask.empty() && batch.token_mask.size() != num_rows * words) return "the token mask has another shape";
  if (!AreStarts(batch.list_starts, num_rows * SampleBatch::kNumLists, batch.token_ids.size()) ||
      !AreStarts(batch.bias_starts, num_rows, batch.biases.size())) {
    return "the starts of lists do not rise from 0 to their end";
  }
  for (size_t row = 0; row < num_rows; ++row) {
    if (std::string problem = CheckRow(batch, row); !problem.empty()) return problem;
    const int64_t num_top = batch.integers[row * SampleBatch::kNumIntegers + SampleBatch::kNumTop];
    if (num_top < -1 || num_top > out.logprobs.num_top) return "num_top is out of bounds";
  }
  return "";
}

}  // namespace

SamplingWorkspace::SamplingWorkspace(int vocab_size, int num_threads, const Kernels& kernels)
    : vocab_size_(vocab_size), kernels_(kernels) {
  scratch_.reserve(num_threads);
  for (int thread = 0; thread < num_threads; ++thread) scratch_.push_back(std::make_unique<SamplingScratch>(vocab_size));
}

std::string Sample(const LogitRows& logits, const SampleBatch& batch, ThreadPool& pool, SamplingWorkspace& workspace,
                   const SampledRows& out) {
  std::string problem = CheckLogits(logits, pool, workspace);
  if (problem.empty()) problem = CheckBatch(logits, batch, workspace, out);
  if (problem.empty()) problem = CheckLogprobs(out.logprobs, logits.num_rows);
  if (!problem.empty()) return problem;
  pool.Run(logits.num_rows, [&](int row, int thread) {
    const RowView view(batch, row, workspace.vocab_size());
    SampleRow(logits.row(row), view, workspace, workspace.scratch(thread), out, row);
  });
  return "";
}

std::string ReportLogprobs(const LogitRows& logits, std::span<const int32_t> token_ids,
                           std::span<const int32_t> num_top, ThreadPool& pool, SamplingWorkspace& workspace,
                           const LogprobColumns& out) {
  const size_t num_rows = logits.num_rows;
  std::string problem = CheckLogits(logits, pool, workspace);
  if (problem.empty()) problem = CheckLogprobs(out, num_rows);
  if (!problem.empty()) return problem;
  if (token_ids.size() != num_rows || num_top.size() != num_rows) return "there is a token and a num_top per row";
  for (size_t row = 0; row < num_rows; ++row) {
    if (num_top[row] < 0 || num_top[row] > out.num_top) return "num_top is out of bounds";
    if (token_ids[row] < 0 || token_ids[row] >= workspace.vocab_size()) return "a token is out of the vocabulary";
  }
  pool.Run(logits.num_rows, [&](int index, int thread) {
    SamplingScratch& scratch = workspace.scratch(thread);
    const PeakedRow row =
        PeaksOf(logits.row(index), workspace.vocab_size(), workspace.kernels(), scratch.maxima.get());
    if (std::isfinite(row.peak)) {
      Report(row, token_ids[index], num_top[index], workspace.kernels(), scratch, out, index);
      return;
    }
    out.logprobs[index] = std::numeric_limits<float>::quiet_NaN();
    out.ranks[index] = 0;
    std::fill_n(out.top_ids.begin() + static_cast<size_t>(index) * out.num_top, num_top[index], kNoToken);
  });
  return "";
}

}  // namespace headrace
