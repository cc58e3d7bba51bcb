// Attention over block tables: any mix of prompt chunks and single new tokens in one call.
//
// A query at position p sees positions (p - window, p] of its own sequence. Softmax is computed online
// (Milakov and Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135) over tiles of kTilePositions, and
// tiles are summed up in splits of kSplitPositions that are then merged in order. Both boundaries are
// absolute positions, so a query's result has the same bits however the prompt was chunked, whoever is in the
// batch and however many threads share the work.
#pragma once

#include <cstdint>

#include "../kv_view.h"

namespace headrace {

constexpr int kTilePositions = 64;
constexpr int kSplitPositions = 512;
// Query vectors (tokens x heads that share a key head) computed together, while a tile of keys and values stays in the
// first-level cache. A multiple of 16 for vectors of them, and of 6 for the tiles of products.
constexpr int kMaxQueries = 48;

struct AttentionTask {
  const float* queries;         // [T, num_heads, head_dim], rotated and scaled; rows query_stride apart
  size_t query_stride;
  float* out;                   // [T, num_heads, head_dim]
  const int32_t* query_start;   // [B + 1]
  const int32_t* seq_lens;      // [B]
  const int32_t* block_tables;  // [B, max_blocks]
  int max_blocks;
  int num_heads;
  int window;      // 0: none
  float soft_cap;  // 0: none
  KvView kv;

  int queries_per_kv_head() const { return num_heads / kv.num_kv_heads; }
};

// Some tokens of one sequence and some of the queries of one key head, at most kMaxQueries vectors, against
// some of the splits of their context.
struct AttentionUnit {
  int sequence;
  int kv_head;
  int head_begin, head_end;    // within the key head's queries_per_kv_head
  int row_begin, row_end;      // of the T tokens
  int split_begin, split_end;  // splits to go through

  int num_heads() const { return head_end - head_begin; }
  int num_queries() const { return (row_end - row_begin) * num_heads(); }
};

// Unnormalised result of a split or several: per query the maximum score, the sum of weights and the weighted sum
// of values [kMaxQueries, head_dim].
struct AttentionPartial {
  float max[kMaxQueries];
  float sum[kMaxQueries];
  float* values;
};

// Floats of scratch a thread needs: the scores of a tile and a split's weighted values; and in half the width the
// queries and weights that are multiplied with a bf16 cache.
inline size_t AttentionScratchFloats(int head_dim) {
  const size_t of_query = static_cast<size_t>(head_dim) + kTilePositions;
  return kMaxQueries * (of_query + of_query / 2);
}

}  // namespace headrace
