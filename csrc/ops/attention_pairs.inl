// Keys and values of a bf16 cache: multiplied as they are, two at a time, with queries and weights rounded to bf16.
// Included by attention.inl.
//
// Twice the products of an instruction in f32, where there is one for pairs; sums are kept in f32. Everywhere else the
// pairs are taken apart, in the order in which the instruction adds them.

#include "attention_state.inl"

namespace headrace::HEADRACE_ISA {

struct PairKv {
  static void TakeQueries(const AttentionTask& task, const UnitState& state) {
    const int head_dim = task.kv.head_dim;
    for (int q = 0; q < state.num_queries; ++q) {
      for (int d = 0; d < head_dim; d += kLanes) {
        StoreBf16(state.narrow_queries + static_cast<size_t>(q) * head_dim + d, Load(state.queries[q] + d));
      }
    }
  }

  static Vec Weight(Vec x) { return ExpForBf16(x); }
  static void StoreWeights(const UnitState& state, int query, int at, Vec weights) {
    StoreBf16(state.narrow_weights[query] + at, weights);
  }

  // As WideKv's, two dimensions at a time.
  template <int kQueries, int kVecs>
  static void ScoreVecs(const KvView& kv, const UnitState& state, const Tile& tile, int query, int vec) {
    const auto* keys = reinterpret_cast<const uint16_t*>(kv.keys);
    const uint16_t *columns[kVecs], *next_columns[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      const int run = (vec + i) * kLanes / kPositionLanes, lane = (vec + i) * kLanes % kPositionLanes;
      columns[i] = keys + tile.runs[run].elements + 2 * (tile.runs[run].offset + lane);
      next_columns[i] = keys + tile.next[run].elements + 2 * (tile.next[run].offset + lane);
    }
    const uint16_t* queries = state.narrow_queries + static_cast<size_t>(query) * kv.head_dim;
    Vec acc[kQueries][kVecs] = {};
    for (int d = 0; d < kv.head_dim; d += 2) {
      Pairs key[kVecs];
      for (int i = 0; i < kVecs; ++i) {
        key[i] = LoadPairs(columns[i] + static_cast<size_t>(d) * kv.block_size);
        FetchAhead(next_columns[i] + static_cast<size_t>(d) * kv.block_size);
      }
      for (int q = 0; q < kQueries; ++q) {
        const Pairs pair = SplatPair(queries + static_cast<size_t>(q) * kv.head_dim + d);
        for (int i = 0; i < kVecs; ++i) acc[q][i] = AddPairProducts(acc[q][i], key[i], pair);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int i = 0; i < kVecs; ++i) Store(state.scores[query + q] + (vec + i) * kLanes, acc[q][i]);
    }
  }

  // As WideKv's, two positions at a time. Where a pair begins before the first position that counts, its weight is zero;
  // where it ends after the last, the second value is not looked at: nothing may have been written there yet.
  template <int kQueries, int kVecs>
  static void AddValues(const KvView& kv, const UnitState& state, const Tile& tile, int query, int dim, float* sums) {
    const auto* values = reinterpret_cast<const uint16_t*>(kv.values) + 2 * dim;
    Vec acc[kQueries][kVecs];
    LoadSums(tile, query, sums, kv.head_dim, acc);
    for (int at = tile.values_begin / 2 * 2; at < tile.values_end;) {
      const Run &run = tile.runs[at / kPositionLanes], &next = tile.next[at / kPositionLanes];
      const int lane = at % kPositionLanes, end = std::min(tile.values_end, at - lane + kPositionLanes);
      const uint16_t* row = values + run.elements + static_cast<size_t>(run.offset + lane) * kv.head_dim;
      const uint16_t* next_row = values + next.elements + static_cast<size_t>(next.offset + lane) * kv.head_dim;
      for (; at < end; at += 2, row += 2 * kv.head_dim, next_row += 2 * kv.head_dim) {
        Pairs value[kVecs];
        for (int i = 0; i < kVecs; ++i) {
          value[i] = LoadPairs(row + 2 * i * kLanes);
          if (at + 1 == end) value[i] = FirstOfPairs(value[i]);
          FetchAhead(next_row + 2 * i * kLanes);
        }
        for (int q = 0; q < kQueries; ++q) {
          const Pairs weights = SplatPair(state.narrow_weights[query + q] + at);
          for (int i = 0; i < kVecs; ++i) acc[q][i] = AddPairProducts(acc[q][i], value[i], weights);
        }
      }
    }
    StoreSums(acc, sums, kv.head_dim);
  }
};

}  // namespace headrace::HEADRACE_ISA
