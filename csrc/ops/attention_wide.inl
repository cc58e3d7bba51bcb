// Keys and values of f32, f16 and int8 caches: widened to f32 as they are read. Included by attention.inl.

#include "attention_state.inl"

namespace headrace::HEADRACE_ISA {

// How one KV format is widened to f32 lanes.
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

template <typename Cache>
struct WideKv {
  using Element = typename Cache::Element;

  static void TakeQueries(const AttentionTask&, const UnitState&) {}

  static Vec Weight(Vec x) { return Exp(x); }
  static void StoreWeights(const UnitState& state, int query, int at, Vec weights) {
    Store(state.scores[query] + at, weights);
  }

  // Scores of `kQueries` queries against `kVecs` vectors of a tile's positions. Several of each at once: every product
  // waits for the one before it in its own row of sums, so there must be rows enough to fill the wait.
  template <int kQueries, int kVecs>
  static void ScoreVecs(const KvView& kv, const UnitState& state, const Tile& tile, int query, int vec) {
    const auto* keys = reinterpret_cast<const Element*>(kv.keys);
    const Element *columns[kVecs], *next_columns[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      const int run = (vec + i) * kLanes / kPositionLanes, lane = (vec + i) * kLanes % kPositionLanes;
      columns[i] = keys + tile.runs[run].elements + tile.runs[run].offset + lane;
      next_columns[i] = keys + tile.next[run].elements + tile.next[run].offset + lane;
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
      const int at = (vec + i) * kLanes;
      Vec scale = Splat(1.0f);
      if (kv.format == KvFormat::kInt8) {
        const Run& run = tile.runs[at / kPositionLanes];
        scale = Load(kv.key_scales + run.scales + run.offset + at % kPositionLanes);
      }
      for (int q = 0; q < kQueries; ++q) Store(state.scores[query + q] + at, acc[q][i] * scale);
    }
  }

  // Adds weights x values to `kQueries` x `kVecs` sums, from `dim` of `query` on.
  template <int kQueries, int kVecs>
  static void AddValues(const KvView& kv, const UnitState& state, const Tile& tile, int query, int dim, float* sums) {
    const auto* values = reinterpret_cast<const Element*>(kv.values) + dim;
    Vec acc[kQueries][kVecs];
    LoadSums(tile, query, sums, kv.head_dim, acc);
    for (int at = tile.values_begin; at < tile.values_end;) {
      const Run &run = tile.runs[at / kPositionLanes], &next = tile.next[at / kPositionLanes];
      const int lane = at % kPositionLanes, end = std::min(tile.values_end, at - lane + kPositionLanes);
      const Element* row = values + run.elements + static_cast<size_t>(run.offset + lane) * kv.head_dim;
      const Element* next_row = values + next.elements + static_cast<size_t>(next.offset + lane) * kv.head_dim;
      const float* scales =
          kv.format == KvFormat::kInt8 ? kv.value_scales + run.scales + run.offset + lane : nullptr;
      for (int j = 0; at < end; ++at, ++j, row += kv.head_dim, next_row += kv.head_dim) {
        Vec value[kVecs];
        for (int i = 0; i < kVecs; ++i) {
          value[i] = Cache::LoadVec(row + i * kLanes);
          FetchAhead(next_row + i * kLanes);
        }
        for (int q = 0; q < kQueries; ++q) {
          float weight = state.scores[query + q][at];
          if (scales != nullptr) weight *= scales[j];
          for (int i = 0; i < kVecs; ++i) acc[q][i] = MulAdd(Splat(weight), value[i], acc[q][i]);
        }
      }
    }
    StoreSums(acc, sums, kv.head_dim);
  }
};

}  // namespace headrace::HEADRACE_ISA
