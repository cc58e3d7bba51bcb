// The order of tokens that filters and lists of alternatives agree on: falling logit, equal ones by rising id.
//
// A token's place is one integer, its key, so that selecting and sorting compare integers. No vocabulary is sorted:
// the maxima of blocks give a threshold that few tokens reach.
#pragma once

#include <cstdint>
#include <span>

#include "sampling_scratch.h"

namespace headrace {

// A row of logits free of NaN, with the maximum of each block and of all.
struct PeakedRow {
  const float* logits;
  int size;
  const float* maxima;
  float peak;  // finite

  int num_blocks() const { return (size + kTokenBlock - 1) / kTokenBlock; }
  int block_size(int block) const { return block + 1 < num_blocks() ? kTokenBlock : size - block * kTokenBlock; }
};

// Smaller keys rank first.
uint64_t RankKey(float logit, int token_id);
float LogitOfKey(uint64_t key);  // -0 comes back as 0
inline int TokenOfKey(uint64_t key) { return static_cast<int>(key & 0xffffffffu); }

// The keys of the first min(count, row.size) tokens, in order; they lie in `scratch.keys`. count >= 1.
std::span<uint64_t> FirstRanked(const PeakedRow& row, int count, SamplingScratch& scratch);

// The likeliest token.
int FirstToken(const PeakedRow& row);

}  // namespace headrace
