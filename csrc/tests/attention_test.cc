#include "../ops/attention.h"

#include <cstring>
#include <numeric>

#include "check.h"
#include "kv.h"

namespace headrace::tests {
namespace {

struct Model {
  int num_heads, num_kv_heads, head_dim;
  KvFormat format = KvFormat::kF32;
  int block_size = 16;
  int window = 0;
  float soft_cap = 0.0f;
};

// New tokens of one sequence, at the end of its context.
struct Chunk {
  int context;
  int num_new;
};

// A batch over random KV memory. Slots that no sequence's context covers hold NaN, also in the last blocks.
struct Batch {
  Model model;
  std::vector<Chunk> chunks;
  int max_blocks = 0;
  std::vector<int32_t> query_start{0}, seq_lens, block_tables;
  OwnedKv kv;
  std::vector<float> queries;
  size_t query_stride;

  Batch(const Model& model, std::vector<Chunk> chunks, unsigned seed)
      : model(model),
        chunks(std::move(chunks)),
        kv(model.format, NumBlocks() + 2, model.num_kv_heads, model.head_dim, model.block_size),
        query_stride(static_cast<size_t>(model.num_heads) * model.head_dim + 5) {
    Random random(seed);
    kv.FillRandom(random);
    std::vector<int> free_blocks(NumBlocks() + 2);
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    std::shuffle(free_blocks.begin(), free_blocks.end(), random);
    for (const Chunk& chunk : this->chunks) {
      max_blocks = std::max(max_blocks, static_cast<int>(CeilDiv(chunk.context, model.block_size)));
    }
    for (const Chunk& chunk : this->chunks) {
      query_start.push_back(query_start.back() + chunk.num_new);
      seq_lens.push_back(chunk.context);
      const int num_blocks = static_cast<int>(CeilDiv(chunk.context, model.block_size));
      for (int i = 0; i < max_blocks; ++i) {
        // a table is filled up with its last block
        block_tables.push_back(i < num_blocks ? TakeBlock(free_blocks) : block_tables.back());
      }
      for (int at = chunk.context; at < num_blocks * model.block_size; ++at) Poison(Slot(num_sequences() - 1, at));
    }
    for (const int block : free_blocks) {
      for (int offset = 0; offset < model.block_size; ++offset) Poison(block * model.block_size + offset);
    }
    // scores spread over several units, so that the largest weights are far from the smallest
    queries = Normals(random, query_stride * num_tokens(), 3.0f / std::sqrt(static_cast<float>(model.head_dim)));
  }

  int num_tokens() const { return query_start.back(); }
  int num_sequences() const { return static_cast<int>(seq_lens.size()); }
  int Slot(int sequence, int position) const {
    return block_tables[sequence * max_blocks + position / model.block_size] * model.block_size +
           position % model.block_size;
  }

  AttentionTask Task(float* out) const {
    return {queries.data(), query_stride,    out,          query_start.data(), seq_lens.data(), block_tables.data(),
            max_blocks,     model.num_heads, model.window, model.soft_cap,     kv.view};
  }

  int NumBlocks() const {
    int total = 0;
    for (const Chunk& chunk : chunks) total += static_cast<int>(CeilDiv(chunk.context, model.block_size));
    return total;
  }

 private:
  void Poison(int slot) {
    kv.PoisonKeys(slot);
    kv.PoisonValues(slot);
  }
  static int TakeBlock(std::vector<int>& free_blocks) {
    const int block = free_blocks.back();
    free_blocks.pop_back();
    return block;
  }
};

// How work is cut up: what the caller of the kernels may choose freely.
struct Division {
  int rows_per_unit;
  int heads_per_unit;
  bool is_split;  // one unit per split, merged afterwards
};

Division WidestDivision(const Model& model) {
  const int heads = std::min(kMaxQueries, model.num_heads / model.num_kv_heads);
  return {kMaxQueries / heads, heads, false};
}

void AttendPart(const Kernels& kernels, const AttentionTask& task, AttentionUnit unit, bool is_split) {
  const int num_splits = unit.split_end;
  const int num_parts = is_split ? num_splits : 1;
  const size_t part_floats = static_cast<size_t>(kMaxQueries) * task.kv.head_dim;
  Aligned<float> scratch(AttentionScratchFloats(task.kv.head_dim)), values(part_floats * num_parts);
  std::fill_n(scratch.data(), scratch.size(), NAN);  // what an earlier use left must not matter
  std::fill_n(values.data(), values.size(), NAN);
  std::vector<AttentionPartial> partials(num_parts);
  for (int part = num_parts - 1; part >= 0; --part) {
    partials[part].values = values.data() + part * part_floats;
    if (is_split) unit.split_begin = part, unit.split_end = part + 1;
    kernels.attend_unit(task, unit, scratch.data(), &partials[part]);
  }
  kernels.finish_unit(task, unit, partials.data(), partials.data() + 1, num_parts - 1);
}

// Outputs [T, num_heads, head_dim].
std::vector<float> Attend(const Kernels& kernels, const Batch& batch, const Division& division) {
  const Model& model = batch.model;
  std::vector<float> out(static_cast<size_t>(batch.num_tokens()) * model.num_heads * model.head_dim, NAN);
  const AttentionTask task = batch.Task(out.data());
  for (int b = 0; b < batch.num_sequences(); ++b) {
    for (int row = batch.query_start[b]; row < batch.query_start[b + 1]; row += division.rows_per_unit) {
      const int row_end = std::min(row + division.rows_per_unit, batch.query_start[b + 1]);
      const int context = batch.seq_lens[b] - (batch.query_start[b + 1] - row_end);
      const int num_splits = static_cast<int>(CeilDiv(context, kSplitPositions));
      for (int kv_head = 0; kv_head < model.num_kv_heads; ++kv_head) {
        for (int head = 0; head < task.queries_per_kv_head(); head += division.heads_per_unit) {
          const int head_end = std::min(head + division.heads_per_unit, task.queries_per_kv_head());
          AttendPart(kernels, task, {b, kv_head, head, head_end, row, row_end, 0, num_splits}, division.is_split);
        }
      }
    }
  }
  return out;
}

// Softmax attention of one query in double over what the cache holds (and a query rounded as beside it), with the largest magnitude of the values it mixed.
struct Expected {
  std::vector<double> out;
  double largest = 0.0;
};

Expected NaiveAttend(const Batch& batch, int sequence, int row, int head) {
  const Model& model = batch.model;
  const int position = batch.seq_lens[sequence] - (batch.query_start[sequence + 1] - row);
  const int kv_head = head / (model.num_heads / model.num_kv_heads);
  const float* first = batch.queries.data() + row * batch.query_stride + static_cast<size_t>(head) * model.head_dim;
  std::vector<float> query(first, first + model.head_dim);
  if (model.format == KvFormat::kBf16) {
    for (float& value : query) value = FloatFromBf16(Bf16FromFloat(value));
  }
  const int begin = model.window > 0 ? std::max(0, position - model.window + 1) : 0;
  std::vector<double> scores;
  for (int at = begin; at <= position; ++at) {
    const int slot = batch.Slot(sequence, at);
    double score = 0.0;
    for (int d = 0; d < model.head_dim; ++d) {
      score +=
          static_cast<double>(query[d]) * batch.kv.Key(slot / model.block_size, kv_head, d, slot % model.block_size);
    }
    scores.push_back(model.soft_cap > 0 ? model.soft_cap * std::tanh(score / model.soft_cap) : score);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - max);
  Expected expected{std::vector<double>(model.head_dim)};
  for (int at = begin; at <= position; ++at) {
    const int slot = batch.Slot(sequence, at);
    for (int d = 0; d < model.head_dim; ++d) {
      const double value = batch.kv.Value(slot / model.block_size, kv_head, d, slot % model.block_size);
      expected.out[d] += scores[at - begin] / sum * value;
      expected.largest = std::max(expected.largest, std::fabs(value));
    }
  }
  return expected;
}

void CheckAgainstNaive(const Kernels& kernels, const Batch& batch, const std::vector<float>& out,
                       const std::string& name) {
  const Model& model = batch.model;
  // beside a bf16 cache each weight is rounded to it
  const double tolerance = 1e-5 + (model.format == KvFormat::kBf16 ? 1.0 / 512 : 0.0);
  for (int b = 0; b < batch.num_sequences(); ++b) {
    for (int row = batch.query_start[b]; row < batch.query_start[b + 1]; ++row) {
      for (int head = 0; head < model.num_heads; ++head) {
        const Expected expected = NaiveAttend(batch, b, row, head);
        for (int d = 0; d < model.head_dim; ++d) {
          const float value = out[(static_cast<size_t>(row) * model.num_heads + head) * model.head_dim + d];
          CHECK_NEAR(value, expected.out[d], tolerance * expected.largest, kernels.name, name, "context", batch.seq_lens[b],
                     "row", row, "head", head, "dim", d);
        }
      }
    }
  }
}

const std::vector<std::pair<std::string, Model>>& Models() {
  static const std::vector<std::pair<std::string, Model>> models = {
      {"one head", {1, 1, 16}},
      {"grouped, f16", {9, 3, 64, KvFormat::kF16}},
      {"grouped, int8, blocks of 32", {8, 2, 32, KvFormat::kInt8, 32}},
      {"20 queries a key head", {20, 1, 48, KvFormat::kF32, 64}},
      {"50 queries a key head, f16", {50, 1, 16, KvFormat::kF16}},
      {"wide heads, int8, blocks of 64", {2, 1, 256, KvFormat::kInt8, 64}},
      {"odd heads, f16, blocks of 48", {3, 3, 80, KvFormat::kF16, 48}},
      {"window of 1", {4, 2, 32, KvFormat::kF32, 16, 1}},
      {"window of 9, f16", {4, 2, 32, KvFormat::kF16, 16, 9}},
      {"window of 64 and soft cap", {2, 2, 16, KvFormat::kF32, 32, 64, 5.0f}},
      {"window of 513, int8", {4, 1, 16, KvFormat::kInt8, 16, 513}},
      {"soft cap, f16", {6, 2, 112, KvFormat::kF16, 16, 0, 2.0f}},
      {"grouped, bf16", {9, 3, 64, KvFormat::kBf16}},
      {"50 queries a key head, bf16, blocks of 64", {50, 1, 16, KvFormat::kBf16, 64}},
      {"odd heads, bf16, blocks of 48", {3, 3, 80, KvFormat::kBf16, 48}},
      {"windows that begin anywhere, bf16", {4, 2, 32, KvFormat::kBf16, 16, 9}},
      {"window of 64 and soft cap, bf16", {2, 2, 16, KvFormat::kBf16, 32, 64, 5.0f}},
  };
  return models;
}

const std::vector<Chunk> kMixed = {{1, 1},    {40, 40}, {17, 1},  {64, 1},  {65, 3},
                                   {150, 23}, {512, 1}, {513, 2}, {1025, 1}};

TEST("attention: equals the naive softmax for mixes of chunks and single tokens") {
  for (const Kernels* kernels : AvailableKernels()) {
    unsigned seed = 0;
    for (const auto& [name, model] : Models()) {
      const Batch batch(model, kMixed, ++seed);
      CheckAgainstNaive(*kernels, batch, Attend(*kernels, batch, WidestDivision(model)), name);
    }
  }
}

TEST("attention: equals the naive softmax on both sides of every boundary of tiles and splits") {
  const Model model{2, 1, 16, KvFormat::kF16};
  for (const Kernels* kernels : AvailableKernels()) {
    std::vector<Chunk> chunks;
    for (const int context : {15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 575, 576, 577, 1023, 1024, 1025}) {
      chunks.push_back({context, 1});
      chunks.push_back({context, std::min(context, 5)});
    }
    const Batch batch(model, chunks, 7);
    CheckAgainstNaive(*kernels, batch, Attend(*kernels, batch, {8, 2, true}), "boundaries");
  }
}

TEST("attention: the bits of a result do not depend on how work is divided") {
  for (const Kernels* kernels : AvailableKernels()) {
    unsigned seed = 20;
    for (const auto& [name, model] : Models()) {
      const Batch batch(model, kMixed, ++seed);
      const std::vector<float> expected = Attend(*kernels, batch, WidestDivision(model));
      const int group = model.num_heads / model.num_kv_heads;
      for (const int rows : {1, 5, 16}) {
        for (const int heads : {1, 3, 16}) {
          if (rows * std::min(heads, group) > kMaxQueries) continue;
          for (const bool is_split : {false, true}) {
            const std::vector<float> out = Attend(*kernels, batch, {rows, std::min(heads, group), is_split});
            CHECK_EQ(FirstDifference(out, expected), -1, kernels->name, name, "rows", rows, "heads", heads, "split",
                     is_split);
          }
        }
      }
    }
  }
}

TEST("attention: a token's bits are the same in a chunk, alone as the last, and in any company") {
  for (const Kernels* kernels : AvailableKernels()) {
    unsigned seed = 40;
    for (const auto& [name, model] : Models()) {
      const Batch batch(model, kMixed, ++seed);
      const std::vector<float> together = Attend(*kernels, batch, WidestDivision(model));
      const size_t row_floats = static_cast<size_t>(model.num_heads) * model.head_dim;
      for (int b = 0; b < batch.num_sequences(); ++b) {
        for (int row = batch.query_start[b]; row < batch.query_start[b + 1]; ++row) {
          const int32_t start[] = {0, 1};
          const int32_t context = batch.seq_lens[b] - (batch.query_start[b + 1] - row) + 1;
          std::vector<float> alone(row_floats, NAN);
          AttentionTask task = batch.Task(alone.data());
          task.queries += row * batch.query_stride;
          task.query_start = start;
          task.seq_lens = &context;
          task.block_tables += b * batch.max_blocks;
          const int group = task.queries_per_kv_head();
          for (int kv_head = 0; kv_head < model.num_kv_heads; ++kv_head) {
            for (int head = 0; head < group; head += kMaxQueries) {
              const int num_splits = static_cast<int>(CeilDiv(context, kSplitPositions));
              AttendPart(*kernels, task, {0, kv_head, head, std::min(group, head + kMaxQueries), 0, 1, 0, num_splits},
                         row % 2);
            }
          }
          CHECK_EQ(FirstDifference(alone, {together.data() + row * row_floats, row_floats}), -1, kernels->name, name,
                   "sequence", b, "row", row);
        }
      }
    }
  }
}

// Poisons one slot's keys or values, and checks that only row `sequence` (of that sequence, which has one) notices.
void CheckPoisonSpreads(const Kernels& kernels, Batch batch, int sequence, int position, bool is_key,
                        const std::vector<float>& expected) {
  const size_t row_floats = static_cast<size_t>(batch.model.num_heads) * batch.model.head_dim;
  const int slot = batch.Slot(sequence, position);
  is_key ? batch.kv.PoisonKeys(slot) : batch.kv.PoisonValues(slot);
  for (const bool is_split : {false, true}) {
    const std::vector<float> out = Attend(kernels, batch, {5, 3, is_split});
    for (int row = 0; row < batch.num_tokens(); ++row) {
      const std::span<const float> result{out.data() + row * row_floats, row_floats};
      if (row != sequence) {
        CHECK_EQ(FirstDifference(result, {expected.data() + row * row_floats, row_floats}), -1, kernels.name, "row",
                 row);
        continue;
      }
      for (const float value : result) {
        CHECK(std::isnan(value), kernels.name, static_cast<int>(batch.model.format), "NaN at", position, "key", is_key,
              "split", is_split);
      }
    }
  }
}

TEST("attention: a NaN that a query sees makes its result NaN, wherever it lies, and no other sequence's") {
  const std::vector<Chunk> chunks = {{90, 1}, {600, 1}, {90, 7}};
  for (const Kernels* kernels : AvailableKernels()) {
    for (const KvFormat format : kAllKvFormats) {
      const Model model{3, 1, 16, format};
      const std::vector<float> expected = Attend(*kernels, Batch(model, chunks, 60), WidestDivision(model));
      for (const int position : {0, 7, 16, 31, 47, 48, 63, 64, 89, 511, 512, 599}) {
        for (const int sequence : {0, 1}) {
          if (position >= chunks[sequence].context) continue;
          for (const bool is_key : {false, true}) {
            CheckPoisonSpreads(*kernels, Batch(model, chunks, 60), sequence, position, is_key, expected);
          }
        }
      }
    }
  }
}

TEST("attention: a query that is NaN gives NaN, and the queries beside it do not notice") {
  for (const Kernels* kernels : AvailableKernels()) {
    const Model model{4, 2, 32};
    Batch batch(model, {{600, 6}, {20, 1}}, 70);
    const std::vector<float> expected = Attend(*kernels, batch, WidestDivision(model));
    const size_t row_floats = static_cast<size_t>(model.num_heads) * model.head_dim;
    std::fill_n(batch.queries.begin() + 2 * batch.query_stride, row_floats, NAN);
    const std::vector<float> out = Attend(*kernels, batch, WidestDivision(model));
    for (int row = 0; row < batch.num_tokens(); ++row) {
      const std::span<const float> result{out.data() + row * row_floats, row_floats};
      if (row == 2) {
        for (const float value : result) CHECK(std::isnan(value), kernels->name);
      } else {
        CHECK_EQ(FirstDifference(result, {expected.data() + row * row_floats, row_floats}), -1, kernels->name, "row",
                 row);
      }
    }
  }
}

TEST("attention: scores far apart give the value of the largest, without overflow") {
  for (const Kernels* kernels : AvailableKernels()) {
    const Model model{1, 1, 16};
    Batch batch(model, {{700, 1}}, 80);
    for (float& value : batch.queries) value *= 1e4f;
    CheckAgainstNaive(*kernels, batch, Attend(*kernels, batch, {1, 1, true}), "far apart");
  }
}

}  // namespace
}  // namespace headrace::tests
