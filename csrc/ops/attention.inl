// Included by the per-ISA translation units after vec.h. The contract is in attention.h.

#include <algorithm>
#include <limits>

#include "attention.h"

namespace headrace::HEADRACE_ISA {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How one KV format is widened to f32 lanes. `scale_of` is only read by the int8 cache.
struct F32Cache {
  using Element = float;
  static Vec LoadVec(const float* from) { return Load(from); }
};
struct F16Cache {
  using Element = uint16_t;
  static Vec LoadVec(const uint16_t* from) { return LoadF16(from); }
};
struct Int8Cache {
  using Element = int8_t;
  static Vec LoadVec(const int8_t* from) {
    typedef int8_t Narrow __attribute__((vector_size(kLanes)));
    Narrow narrow;
    std::memcpy(&narrow, from, sizeof(narrow));
    return __builtin_convertvector(narrow, Vec);
  }
};

// What a unit works with: its query vectors, the positions they stand at, and the thread's scratch.
struct UnitState {
  int num_queries;
  const float* queries[kMaxQueries];
  int positions[kMaxQueries];
  int first_position, last_position;  // of the queries
  float (*scores)[kTilePositions];    // [kMaxQueries, kTilePositions]
};

// Queries and vectors computed together: as many sums as the registers hold, beside a vector each of keys or values.
#if defined(__AVX512F__)
constexpr int kScoreQueries = 6, kScoreVecs = 4, kValueQueries = 6, kValueVecs = 4;
#else
constexpr int kScoreQueries = 6, kScoreVecs = 2, kValueQueries = 6, kValueVecs = 2;
#endif

// Where the unit's head begins in the block that holds `position`, or its last position if that comes first.
inline size_t HeadAt(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int position) {
  const int32_t* blocks = task.block_tables + static_cast<size_t>(unit.sequence) * task.max_blocks;
  return task.kv.HeadIndex(blocks[std::min(position, state.last_position) / task.kv.block_size], unit.kv_head);
}

// Attention of few queries waits for memory, so that the next tile is fetched while this one is computed: its keys
// during the scores, its values during the sums. Into the second-level cache, since more reads can be under way to it
// than to the first.
inline void FetchAhead(const void* address) { __builtin_prefetch(address, 0, 2); }

// Scores of `kQueries` queries against `kVecs` vectors of positions from `position` on. Several of each at once:
// every product waits for the one before it in its own row of sums, so there must be rows enough to fill the wait.
template <typename Cache, int kQueries, int kVecs>
void ScoreVecs(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int query, int tile_begin,
               int position) {
  const KvView& kv = task.kv;
  const int32_t* blocks = task.block_tables + static_cast<size_t>(unit.sequence) * task.max_blocks;
  const auto* keys = reinterpret_cast<const typename Cache::Element*>(kv.keys);
  const typename Cache::Element *columns[kVecs], *next_columns[kVecs];
  for (int i = 0; i < kVecs; ++i) {
    const int at = position + i * kLanes;
    columns[i] = keys + kv.HeadIndex(blocks[at / kv.block_size], unit.kv_head) + at % kv.block_size;
    next_columns[i] = keys + HeadAt(task, unit, state, at + kTilePositions) + at % kv.block_size;
  }
  const float* queries[kQueries];
  for (int q = 0; q < kQueries; ++q) queries[q] = state.queries[query + q];
  Vec acc[kQueries][kVecs] = {};
  for (int d = 0; d < kv.head_dim; ++d) {
    Vec key[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      key[i] = Cache::LoadVec(columns[i] + static_cast<size_t>(d) * kv.block_size);
      FetchAhead(next_columns[i] + static_cast<size_t>(d) * kv.block_size);
    }
    for (int q = 0; q < kQueries; ++q) {
      const Vec value = Splat(queries[q][d]);
      for (int i = 0; i < kVecs; ++i) acc[q][i] = MulAdd(value, key[i], acc[q][i]);
    }
  }
  for (int i = 0; i < kVecs; ++i) {
    const int at = position + i * kLanes;
    Vec scale = Splat(1.0f);
    if (kv.format == KvFormat::kInt8) {
      scale = Load(kv.key_scales + kv.ScaleIndex(blocks[at / kv.block_size], unit.kv_head) + at % kv.block_size);
    }
    for (int q = 0; q < kQueries; ++q) Store(state.scores[query + q] + (at - tile_begin), acc[q][i] * scale);
  }
}

// Calls body(std::integral_constant<int, n>, first) over [0, count) with n as large as possible, at most kMost.
template <int kMost, typename Body>
void ForRuns(int first, int count, const Body& body) {
  for (; first + kMost <= count; first += kMost) body(std::integral_constant<int, kMost>{}, first);
  if constexpr (kMost > 1) {
    if (first < count) ForRuns<kMost - 1>(first, count, body);
  }
}

// Scores of all queries against the vectors of positions in [begin, end); both are multiples of kLanes.
template <typename Cache>
void ScoreTile(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int begin, int end) {
  ForRuns<kScoreQueries>(0, state.num_queries, [&](auto queries, int query) {
    ForRuns<kScoreVecs>(0, (end - begin) / kLanes, [&](auto vecs, int vec) {
      ScoreVecs<Cache, queries, vecs>(task, unit, state, query, begin, begin + vec * kLanes);
    });
  });
}

inline IntVec Iota() {
  IntVec v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// Caps and masks a query's scores of the positions [begin, begin + count); returns the largest.
inline float MaskScores(const AttentionTask& task, float* scores, int begin, int count, int position) {
  const int first = task.window > 0 ? position - task.window + 1 : 0;
  const bool is_all_visible = first <= begin && begin + count - 1 <= position;
  Vec largest = Splat(kMinusInfinity);
  for (int i = 0; i < count; i += kLanes) {
    Vec score = Load(scores + i);
    if (task.soft_cap > 0.0f) score = Tanh(score / task.soft_cap) * task.soft_cap;
    if (!is_all_visible) {
      const IntVec at = Iota() + (begin + i);
      score = (at <= IntVec{} + position) & (at >= IntVec{} + first) ? score : Splat(kMinusInfinity);
    }
    Store(scores + i, score);
    largest = Max(score, largest);
  }
  return ReduceMax(largest);
}

// Turns the scores of a tile into weights: exponentials relative to each query's largest score so far. Leaves in
// `corrections` what earlier sums must be multiplied with.
inline void WeighTile(const AttentionTask& task, const UnitState& state, int begin, int count, float* corrections,
                      AttentionPartial* partial) {
  alignas(64) float largest[kMaxQueries];
  std::copy_n(partial->max, kMaxQueries, largest);
  for (int q = 0; q < state.num_queries; ++q) {
    const float of_tile = MaskScores(task, state.scores[q], begin, count, state.positions[q]);
    largest[q] = largest[q] > of_tile ? largest[q] : of_tile;  // a NaN must not look like nothing visible
  }
  for (int q = 0; q < kMaxQueries; q += kLanes) {
    const Vec before = Load(partial->max + q), now = Load(largest + q);
    Store(corrections + q, now == Splat(kMinusInfinity) ? Splat(1.0f) : Exp(before - now));
    Store(partial->max + q, now);
  }
  for (int q = 0; q < state.num_queries; ++q) {
    float* scores = state.scores[q];
    if (largest[q] == kMinusInfinity) {  // nothing of this tile or before it is visible
      std::fill(scores, scores + count, 0.0f);
      continue;
    }
    Vec sum = {};
    for (int i = 0; i < count; i += kLanes) {
      const Vec weight = Exp(Load(scores + i) - largest[q]);
      Store(scores + i, weight);
      sum += weight;
    }
    partial->sum[q] = partial->sum[q] * corrections[q] + ReduceAdd(sum);
  }
}

// acc[q] = acc[q] * corrections[q] + sum of weights x values over the positions [begin, end).
template <typename Cache, int kQueries, int kVecs>
void AddValues(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int query, int dim,
               int tile_begin, int begin, int end, const float* corrections, float* values_out) {
  const KvView& kv = task.kv;
  const int32_t* blocks = task.block_tables + static_cast<size_t>(unit.sequence) * task.max_blocks;
  const auto* values = reinterpret_cast<const typename Cache::Element*>(kv.values);
  Vec acc[kQueries][kVecs];
  for (int q = 0; q < kQueries; ++q) {
    const float* from = values_out + static_cast<size_t>(query + q) * kv.head_dim + dim;
    for (int i = 0; i < kVecs; ++i) acc[q][i] = Load(from + i * kLanes) * corrections[query + q];
  }
  int position = begin;
  while (position < end) {
    const int block = blocks[position / kv.block_size];
    const int offset = position % kv.block_size;
    const int count = std::min(end - position, kv.block_size - offset);
    const auto* row = values + kv.HeadIndex(block, unit.kv_head) + static_cast<size_t>(offset) * kv.head_dim + dim;
    const float* scales = kv.format == KvFormat::kInt8 ? kv.value_scales + kv.ScaleIndex(block, unit.kv_head) + offset
                                                       : nullptr;
    const auto* next_row = values + HeadAt(task, unit, state, position + kTilePositions) +
                           static_cast<size_t>(offset) * kv.head_dim + dim;
    for (int j = 0; j < count; ++j, row += kv.head_dim, next_row += kv.head_dim) {
      Vec value[kVecs];
      for (int i = 0; i < kVecs; ++i) {
        value[i] = Cache::LoadVec(row + i * kLanes);
        FetchAhead(next_row + i * kLanes);
      }
      for (int q = 0; q < kQueries; ++q) {
        float weight = state.scores[query + q][position - tile_begin + j];
        if (scales != nullptr) weight *= scales[j];
        for (int i = 0; i < kVecs; ++i) acc[q][i] = MulAdd(Splat(weight), value[i], acc[q][i]);
      }
    }
    position += count;
  }
  for (int q = 0; q < kQueries; ++q) {
    float* to = values_out + static_cast<size_t>(query + q) * kv.head_dim + dim;
    for (int i = 0; i < kVecs; ++i) Store(to + i * kLanes, acc[q][i]);
  }
}

template <typename Cache>
void AttendTile(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int tile_begin,
                AttentionPartial* partial) {
  const int last = std::min(state.last_position + 1, tile_begin + kTilePositions);
  const int scored_end = tile_begin + static_cast<int>(CeilDiv(last - tile_begin, kPositionLanes)) * kPositionLanes;
  ScoreTile<Cache>(task, unit, state, tile_begin, scored_end);
  alignas(64) float corrections[kMaxQueries];
  WeighTile(task, state, tile_begin, scored_end - tile_begin, corrections, partial);
  int begin = tile_begin;
  if (task.window > 0) begin = std::max(begin, state.first_position - task.window + 1);
  for (int dim = 0; dim < task.kv.head_dim;) {
    const int vecs_left = (task.kv.head_dim - dim) / kLanes;
    const auto add = [&](auto vecs) {
      ForRuns<kValueQueries>(0, state.num_queries, [&](auto queries, int query) {
        AddValues<Cache, queries, vecs>(task, unit, state, query, dim, tile_begin, begin, last, corrections,
                                        partial->values);
      });
      dim += vecs * kLanes;
    };
    if (vecs_left >= kValueVecs) {
      add(std::integral_constant<int, kValueVecs>{});
    } else {
      add(std::integral_constant<int, 1>{});
    }
  }
}

inline void ResetPartial(const UnitState& state, int head_dim, AttentionPartial* partial) {
  std::fill(partial->max, partial->max + kMaxQueries, kMinusInfinity);
  std::fill(partial->sum, partial->sum + kMaxQueries, 0.0f);
  std::fill(partial->values, partial->values + static_cast<size_t>(state.num_queries) * head_dim, 0.0f);
}

// total += partial, both relative to their own maxima.
inline void MergePartial(int num_queries, int head_dim, const AttentionPartial& partial, AttentionPartial* total) {
  alignas(64) float keep[kMaxQueries], add[kMaxQueries];
  for (int q = 0; q < kMaxQueries; q += kLanes) {
    const Vec before = Load(total->max + q), more = Load(partial.max + q), now = Max(before, more);
    const auto is_nothing = now == Splat(kMinusInfinity);
    Store(keep + q, is_nothing ? Vec{} : Exp(before - now));
    Store(add + q, is_nothing ? Vec{} : Exp(more - now));
    Store(total->max + q, now);
  }
  for (int q = 0; q < num_queries; ++q) {
    total->sum[q] = total->sum[q] * keep[q] + partial.sum[q] * add[q];
    float* to = total->values + static_cast<size_t>(q) * head_dim;
    const float* from = partial.values + static_cast<size_t>(q) * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) {
      Store(to + d, MulAdd(Load(from + d), Splat(add[q]), Load(to + d) * keep[q]));
    }
  }
}

inline UnitState MakeUnitState(const AttentionTask& task, const AttentionUnit& unit, float* scratch) {
  UnitState state;
  const int group = task.queries_per_kv_head();
  const int context = task.seq_lens[unit.sequence];
  const int row_end = task.query_start[unit.sequence + 1];
  state.num_queries = 0;
  for (int row = unit.row_begin; row < unit.row_end; ++row) {
    for (int head = unit.head_begin; head < unit.head_end; ++head) {
      state.queries[state.num_queries] =
          task.queries + row * task.query_stride + static_cast<size_t>(unit.kv_head * group + head) * task.kv.head_dim;
      state.positions[state.num_queries++] = context - row_end + row;
    }
  }
  state.first_position = state.positions[0];
  state.last_position = state.positions[state.num_queries - 1];
  state.scores = reinterpret_cast<float(*)[kTilePositions]>(scratch);
  return state;
}

template <typename Cache>
void AttendSplits(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state,
                  AttentionPartial* partial, AttentionPartial* total) {
  const int visible_end = state.last_position + 1;
  const int visible_begin = task.window > 0 ? std::max(0, state.first_position - task.window + 1) : 0;
  AttentionPartial* into = total;  // the first split; a merge with nothing would give the same bits
  ResetPartial(state, task.kv.head_dim, total);
  for (int split = unit.split_begin; split < unit.split_end; ++split) {
    const int begin = std::max(split * kSplitPositions, visible_begin / kTilePositions * kTilePositions);
    const int end = std::min((split + 1) * kSplitPositions, visible_end);
    if (begin >= end) continue;
    if (into == partial) ResetPartial(state, task.kv.head_dim, partial);
    for (int tile = begin; tile < end; tile += kTilePositions) AttendTile<Cache>(task, unit, state, tile, into);
    if (into == partial) MergePartial(state.num_queries, task.kv.head_dim, *partial, total);
    into = partial;
  }
}

// Goes through the unit's splits and leaves the merged, unnormalised result in `total`. `scratch` is the thread's.
void AttendUnit(const AttentionTask& task, const AttentionUnit& unit, float* scratch, AttentionPartial* total) {
  const UnitState state = MakeUnitState(task, unit, scratch);
  AttentionPartial partial;
  partial.values = scratch + kMaxQueries * kTilePositions;
  switch (task.kv.format) {
    case KvFormat::kF32: return AttendSplits<F32Cache>(task, unit, state, &partial, total);
    case KvFormat::kF16: return AttendSplits<F16Cache>(task, unit, state, &partial, total);
    case KvFormat::kInt8: return AttendSplits<Int8Cache>(task, unit, state, &partial, total);
  }
}

// Merges `count` more partials in order, each of one split, and writes the unit's outputs. One split each, because
// merging is not associative in floating point: only split by split do all divisions of work give the same bits.
void FinishUnit(const AttentionTask& task, const AttentionUnit& unit, AttentionPartial* total,
                const AttentionPartial* more, int count) {
  const int head_dim = task.kv.head_dim;
  for (int i = 0; i < count; ++i) MergePartial(unit.num_queries(), head_dim, more[i], total);
  for (int q = 0; q < unit.num_queries(); ++q) {
    const size_t row = unit.row_begin + q / unit.num_heads();
    const int head = unit.kv_head * task.queries_per_kv_head() + unit.head_begin + q % unit.num_heads();
    float* out = task.out + (row * task.num_heads + head) * head_dim;
    const float* values = total->values + static_cast<size_t>(q) * head_dim;
    const float inverse = 1.0f / total->sum[q];
    for (int d = 0; d < head_dim; d += kLanes) Store(out + d, Load(values + d) * inverse);
  }
}

}  // namespace headrace::HEADRACE_ISA
