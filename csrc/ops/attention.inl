// Included by the per-ISA translation units after vec.h. The contract is in attention.h.

#include <algorithm>
#include <limits>

#include "attention.h"
#include "attention_pairs.inl"
#include "attention_wide.inl"

namespace headrace::HEADRACE_ISA {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Calls body(std::integral_constant<int, n>, first) over [0, count) with n as large as possible, at most kMost.
template <int kMost, typename Body>
void ForRuns(int first, int count, const Body& body) {
  for (; first + kMost <= count; first += kMost) body(std::integral_constant<int, kMost>{}, first);
  if constexpr (kMost > 1) {
    if (first < count) ForRuns<kMost - 1>(first, count, body);
  }
}

// Scores of all queries against a tile's positions.
template <typename Kv>
void ScoreTile(const KvView& kv, const UnitState& state, const Tile& tile) {
  ForRuns<kScoreQueries>(0, state.num_queries, [&](auto queries, int query) {
    ForRuns<kScoreVecs>(0, tile.scored / kLanes, [&](auto vecs, int vec) {
      Kv::template ScoreVecs<queries, vecs>(kv, state, tile, query, vec);
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
  if (is_all_visible && task.soft_cap == 0.0f) {
    for (int i = 0; i < count; i += kLanes) largest = Max(Load(scores + i), largest);
    return ReduceMax(largest);
  }
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

// Turns the scores of a tile that begins at `begin` into weights: exponentials relative to each query's largest score
// so far. Settles the tile's corrections.
template <typename Kv>
void WeighTile(const AttentionTask& task, const UnitState& state, int begin, Tile* tile, AttentionPartial* partial) {
  alignas(64) float largest[kMaxQueries];
  std::copy_n(partial->max, kMaxQueries, largest);
  for (int q = 0; q < state.num_queries; ++q) {
    const float of_tile = MaskScores(task, state.scores[q], begin, tile->scored, state.positions[q]);
    largest[q] = largest[q] > of_tile ? largest[q] : of_tile;  // a NaN must not look like nothing visible
  }
  for (int q = 0; q < state.num_queries; q += kLanes) {
    const Vec before = Load(partial->max + q), now = Load(largest + q);
    Store(tile->corrections + q, now == Splat(kMinusInfinity) ? Splat(1.0f) : Exp(before - now));
    Store(partial->max + q, now);
  }
  for (int q = 0; q < state.num_queries; ++q) {
    if (largest[q] == kMinusInfinity) {  // nothing of this tile or before it is visible
      for (int i = 0; i < tile->scored; i += kLanes) Kv::StoreWeights(state, q, i, Vec{});
      continue;
    }
    Vec sum = {};
    for (int i = 0; i < tile->scored; i += kLanes) {
      const Vec weights = Kv::Weight(Load(state.scores[q] + i) - largest[q]);
      Kv::StoreWeights(state, q, i, weights);
      sum += weights;
    }
    partial->sum[q] = partial->sum[q] * tile->corrections[q] + ReduceAdd(sum);
  }
}

inline Run RunAt(const AttentionTask& task, const AttentionUnit& unit, int position) {
  const int32_t* blocks = task.block_tables + static_cast<size_t>(unit.sequence) * task.max_blocks;
  const int block = blocks[position / task.kv.block_size];
  return {task.kv.HeadIndex(block, unit.kv_head), task.kv.ScaleIndex(block, unit.kv_head),
          position % task.kv.block_size};
}

inline Tile TileAt(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int begin) {
  Tile tile;
  const int last_run = state.last_position / kPositionLanes * kPositionLanes;  // what lies after it is not looked at
  for (int run = 0; run < kRunsPerTile; ++run) {
    const int position = begin + run * kPositionLanes;
    tile.runs[run] = RunAt(task, unit, std::min(position, last_run));
    tile.next[run] = RunAt(task, unit, std::min(position + kTilePositions, last_run));
  }
  tile.values_end = std::min(state.last_position + 1 - begin, kTilePositions);
  tile.values_begin = task.window > 0 ? std::max(0, state.first_position - task.window + 1 - begin) : 0;
  tile.scored = static_cast<int>(CeilDiv(tile.values_end, kPositionLanes)) * kPositionLanes;
  return tile;
}

template <typename Kv>
void AttendTile(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state, int begin,
                AttentionPartial* partial) {
  Tile tile = TileAt(task, unit, state, begin);
  ScoreTile<Kv>(task.kv, state, tile);
  WeighTile<Kv>(task, state, begin, &tile, partial);
  const int head_dim = task.kv.head_dim;
  for (int dim = 0; dim < head_dim;) {
    const auto add = [&](auto vecs) {
      ForRuns<kValueQueries>(0, state.num_queries, [&](auto queries, int query) {
        float* sums = partial->values + static_cast<size_t>(query) * head_dim + dim;
        Kv::template AddValues<queries, vecs>(task.kv, state, tile, query, dim, sums);
      });
      dim += vecs * kLanes;
    };
    if (head_dim - dim >= kValueVecs * kLanes) {
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
  for (int q = 0; q < num_queries; q += kLanes) {
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
  auto* narrow = reinterpret_cast<uint16_t*>(scratch + kMaxQueries * (kTilePositions + task.kv.head_dim));
  state.narrow_weights = reinterpret_cast<uint16_t(*)[kTilePositions]>(narrow);
  state.narrow_queries = narrow + kMaxQueries * kTilePositions;
  return state;
}

template <typename Kv>
void AttendSplits(const AttentionTask& task, const AttentionUnit& unit, const UnitState& state,
                  AttentionPartial* partial, AttentionPartial* total) {
  const int visible_end = state.last_position + 1;
  const int visible_begin = task.window > 0 ? std::max(0, state.first_position - task.window + 1) : 0;
  AttentionPartial* into = total;  // the first split; a merge with nothing would give the same bits
  ResetPartial(state, task.kv.head_dim, total);
  Kv::TakeQueries(task, state);
  for (int split = unit.split_begin; split < unit.split_end; ++split) {
    const int begin = std::max(split * kSplitPositions, visible_begin / kTilePositions * kTilePositions);
    const int end = std::min((split + 1) * kSplitPositions, visible_end);
    if (begin >= end) continue;
    if (into == partial) ResetPartial(state, task.kv.head_dim, partial);
    for (int tile = begin; tile < end; tile += kTilePositions) AttendTile<Kv>(task, unit, state, tile, into);
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
    case KvFormat::kF32: return AttendSplits<WideKv<F32Cache>>(task, unit, state, &partial, total);
    case KvFormat::kF16: return AttendSplits<WideKv<F16Cache>>(task, unit, state, &partial, total);
    case KvFormat::kInt8: return AttendSplits<WideKv<Int8Cache>>(task, unit, state, &partial, total);
    case KvFormat::kBf16: return AttendSplits<PairKv>(task, unit, state, &partial, total);
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
