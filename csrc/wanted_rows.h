// Which rows of a batch go on behind the last layer's keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

struct BatchView;

// The rows whose hidden states are wanted, side by side: of each sequence its last ones. Takes no memory after it is
// made.
class WantedRows {
 public:
  WantedRows(int max_tokens, int max_sequences);

  void Find(const BatchView& batch);

  int count() const { return static_cast<int>(rows_.size()); }
  std::span<const int32_t> rows() const { return rows_; }                // of the batch, ascending, [count]
  std::span<const int32_t> query_start() const { return query_start_; }  // of those side by side, [B + 1]
  int num_batch_rows() const { return static_cast<int>(places_.size()); }
  int PlaceOf(int row) const { return places_[row]; }                    // of a row of the batch; -1: not wanted

 private:
  std::vector<int32_t> rows_, query_start_, places_;  // capacity reserved
};

}  // namespace headrace
