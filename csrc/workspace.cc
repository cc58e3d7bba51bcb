#include "workspace.h"

#include <algorithm>

#include "packed_matrix.h"
#include "program.h"

namespace headrace {

namespace {
int CheckedTokens(int max_tokens, int max_sequences, int num_threads, int max_context) {
  RequireArgument(max_tokens > 0 && max_sequences > 0 && max_sequences <= max_tokens && num_threads > 0 &&
                      max_context > 0,
                  "max_tokens, max_sequences (at most max_tokens), num_threads and max_context must be positive");
  return max_tokens;
}

// Units of a step that is split up: few, of every split of the longest context.
size_t MaxParts(int num_threads, int max_context) {
  return static_cast<size_t>(kUnitsPerThread) * num_threads * (CeilDiv(max_context, kSplitPositions) + 1);
}
}  // namespace

Workspace::Workspace(const Program& program, int max_tokens, int max_sequences, int num_threads, int max_context)
    : max_tokens_(CheckedTokens(max_tokens, max_sequences, num_threads, max_context)),
      max_sequences_(max_sequences),
      needs_(program.needs()),
      wanted_(max_tokens, max_sequences),
      arena_(CheckedProduct({needs_.arena_row_bytes, static_cast<size_t>(max_tokens)})),
      angles_(CheckedProduct({needs_.angle_row_floats, static_cast<size_t>(max_tokens), sizeof(float)})),
      partial_values_(
          CheckedProduct({MaxParts(num_threads, max_context), kMaxQueries, needs_.head_dim, sizeof(float)})) {
  for (int thread = 0; thread < num_threads; ++thread) {
    scratch_.push_back(std::make_unique<AlignedBytes>(needs_.scratch_bytes));
  }
  const size_t num_parts = MaxParts(num_threads, max_context);
  units_.reserve(std::max(needs_.attention_units_per_row * max_tokens, num_parts));
  first_part_.reserve(std::max(needs_.attention_units_per_row * max_tokens, num_parts) + 1);
  partials_.resize(num_parts);
  float* values = reinterpret_cast<float*>(partial_values_.data());
  for (AttentionPartial& partial : partials_) {
    partial.values = values;
    values += kMaxQueries * needs_.head_dim;
  }
}

size_t Workspace::num_bytes() const {
  size_t total = arena_.size() + angles_.size() + partial_values_.size();
  for (const auto& scratch : scratch_) total += scratch->size();
  return total;
}

void Workspace::StartTiming() { operation_seconds_.assign(needs_.num_operations, 0.0); }

}  // namespace headrace
