// What the parts of attention share. Included by attention.inl.
#pragma once

#include <algorithm>

#include "attention.h"

namespace headrace::HEADRACE_ISA {

// What a unit works with: its query vectors, the positions they stand at, and the thread's scratch.
struct UnitState {
  int num_queries;
  const float* queries[kMaxQueries];
  int positions[kMaxQueries];
  int first_position, last_position;           // of the queries
  float (*scores)[kTilePositions];             // [kMaxQueries, kTilePositions], and the weights they become
  uint16_t* narrow_queries;                    // bf16, [kMaxQueries, head_dim]
  uint16_t (*narrow_weights)[kTilePositions];  // bf16, [kMaxQueries, kTilePositions]
};

// Where kPositionLanes neighbouring positions of the unit's head lie: always in one block.
struct Run {
  size_t elements;  // index of the head's first element in the block
  size_t scales;    // likewise of its first scale
  int offset;       // of the first position in the block
};
constexpr int kRunsPerTile = kTilePositions / kPositionLanes;

struct Tile {
  Run runs[kRunsPerTile], next[kRunsPerTile];  // of its positions, and of those of the tile after it
  int scored;                                  // positions to score, from its first on: a multiple of kPositionLanes
  int values_begin, values_end;                // positions whose values count for any query, from its first on
  alignas(64) float corrections[kMaxQueries];  // what earlier sums are multiplied with
};

// Queries and vectors computed together: as many sums as the registers hold, beside a vector each of keys or values.
#if defined(__AVX512F__)
constexpr int kScoreQueries = 6, kScoreVecs = 4, kValueQueries = 6, kValueVecs = 4;
#else
constexpr int kScoreQueries = 6, kScoreVecs = 2, kValueQueries = 6, kValueVecs = 2;
#endif

// Attention of few queries waits for memory, so that the next tile is fetched while this one is computed: its keys
// during the scores, its values during the sums. Into the second-level cache, since more reads can be under way to it
// than to the first.
inline void FetchAhead(const void* address) { __builtin_prefetch(address, 0, 2); }

// acc = what earlier tiles left of `kQueries` x `kVecs` sums, corrected.
template <int kQueries, int kVecs>
inline void LoadSums(const Tile& tile, int query, const float* from, int head_dim, Vec (&acc)[kQueries][kVecs]) {
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < kVecs; ++i) {
      acc[q][i] = Load(from + static_cast<size_t>(q) * head_dim + i * kLanes) * tile.corrections[query + q];
    }
  }
}

template <int kQueries, int kVecs>
inline void StoreSums(const Vec (&acc)[kQueries][kVecs], float* to, int head_dim) {
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < kVecs; ++i) Store(to + static_cast<size_t>(q) * head_dim + i * kLanes, acc[q][i]);
  }
}

}  // namespace headrace::HEADRACE_ISA
