#include "attention_plan.h"

#include <algorithm>

#include "packed_matrix.h"

namespace headrace {
namespace {

// Tokens and heads that a unit takes at most.
struct UnitSize {
  int heads, rows;

  explicit UnitSize(int group) : heads(std::min(group, kMaxQueries)), rows(kMaxQueries / heads) {}
};

size_t NumWhole(const AttentionTask& task, int num_sequences, const UnitSize& size) {
  const size_t units_per_rows = task.kv.num_kv_heads * CeilDiv(task.queries_per_kv_head(), size.heads);
  size_t total = 0;
  for (int b = 0; b < num_sequences; ++b) {
    total += CeilDiv(task.query_start[b + 1] - task.query_start[b], size.rows) * units_per_rows;
  }
  return total;
}

}  // namespace

bool PlanAttention(const AttentionTask& task, int num_sequences, size_t least_whole, std::vector<AttentionUnit>* units,
                   std::vector<int32_t>* first_part) {
  const int group = task.queries_per_kv_head();
  const UnitSize size(group);
  const bool is_split = NumWhole(task, num_sequences, size) <= least_whole;
  units->clear();
  first_part->clear();
  const auto add = [&](AttentionUnit whole, int num_splits) {
    first_part->push_back(static_cast<int32_t>(units->size()));
    const int step = is_split ? 1 : num_splits;
    for (int split = 0; split < num_splits; split += step) {
      whole.split_begin = split, whole.split_end = split + step;
      units->push_back(whole);
    }
  };
  for (int b = 0; b < num_sequences; ++b) {
    const int end = task.query_start[b + 1];
    for (int row = task.query_start[b]; row < end; row += size.rows) {
      const int row_end = std::min(row + size.rows, end);
      const int num_splits = static_cast<int>(CeilDiv(task.seq_lens[b] - (end - row_end), kSplitPositions));
      for (int kv_head = 0; kv_head < task.kv.num_kv_heads; ++kv_head) {
        for (int head = 0; head < group; head += size.heads) {
          add({b, kv_head, head, std::min(head + size.heads, group), row, row_end, 0, 0}, num_splits);
        }
      }
    }
  }
  first_part->push_back(static_cast<int32_t>(units->size()));
  return is_split;
}

}  // namespace headrace
