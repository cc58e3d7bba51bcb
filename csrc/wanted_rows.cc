#include "wanted_rows.h"

#include "program.h"

namespace headrace {

WantedRows::WantedRows(int max_tokens, int max_sequences) {
  rows_.reserve(max_tokens);
  query_start_.reserve(static_cast<size_t>(max_sequences) + 1);
  places_.reserve(max_tokens);
}

void WantedRows::Find(const BatchView& batch) {
  rows_.clear();
  query_start_.assign(1, 0);
  places_.assign(batch.num_tokens(), -1);
  for (int b = 0; b < batch.num_sequences(); ++b) {
    const int end = batch.query_start[b + 1];
    for (int row = end - batch.num_wanted[b]; row < end; ++row) {
      places_[row] = count();
      rows_.push_back(row);
    }
    query_start_.push_back(count());
  }
}

}  // namespace headrace
