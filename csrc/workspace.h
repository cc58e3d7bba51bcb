// What a program writes while it runs, besides the KV memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "memory.h"
#include "ops/attention.h"
#include "wanted_rows.h"

namespace headrace {

class Program;

constexpr int kUnitsPerThread = 4;  // fewer attention units than this and contexts are split as well

// What a program asks of the workspace it runs in.
struct WorkspaceNeeds {
  size_t arena_row_bytes = 0;
  size_t angle_row_floats = 0;
  size_t scratch_bytes = 0;
  size_t attention_units_per_row = 0;
  size_t head_dim = 0;
  size_t num_operations = 0;  // of body, tail and head

  bool operator==(const WorkspaceNeeds&) const = default;
};

// Everything a run writes besides the KV memory. One run at a time.
class Workspace {
 public:
  Workspace(const Program& program, int max_tokens, int max_sequences, int num_threads, int max_context);

  int max_tokens() const { return max_tokens_; }
  int max_sequences() const { return max_sequences_; }
  size_t num_bytes() const;

  // From now on runs add up how long each operation takes, at the cost of two clock reads for each.
  void StartTiming();
  // Seconds of each operation since then, in the order body, tail, head; empty if never started.
  std::span<const double> operation_seconds() const { return operation_seconds_; }

 private:
  friend class Program;
  int max_tokens_, max_sequences_;
  std::vector<double> operation_seconds_;
  WorkspaceNeeds needs_;                    // of the program it was made for
  WantedRows wanted_;                       // of the last run: what `head` may ask for
  AlignedBytes arena_;
  AlignedBytes angles_;                     // per rope: cosines then sines, [max_tokens, rotary_dim / 2] each
  std::vector<std::unique_ptr<AlignedBytes>> scratch_;  // one per thread
  std::vector<AttentionUnit> units_;        // capacity reserved
  std::vector<int32_t> first_part_;         // capacity reserved
  std::vector<AttentionPartial> partials_;  // fixed size
  AlignedBytes partial_values_;
};

}  // namespace headrace
