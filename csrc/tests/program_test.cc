#include "../program.h"

#include <cstring>

#include "allocations.h"
#include "check.h"
#include "naive_model.h"
#include "tiny_model.h"

namespace headrace::tests {
namespace {

std::vector<int> Tokens(int count, unsigned seed) {
  Random random(seed);
  std::vector<int> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(Integer(random, 0, kVocab));
  return tokens;
}

std::vector<int> Part(const std::vector<int>& tokens, int begin, int end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

double Largest(const Row& row) {
  double largest = 0.0;
  for (const double value : row) largest = std::max(largest, std::fabs(value));
  return largest;
}

// How far results may be from double precision over the same weights, relative to the largest of a row.
double Tolerance(WeightFormat weights, KvFormat kv) {
  const double of_activations =
      IsQuantized(weights) ? 5e-2 : 2e-5;  // they are rounded to 1/127 of their group's largest
  const double of_cache = kv == KvFormat::kF32 ? 0.0 : kv == KvFormat::kF16 ? 5e-3 : 5e-2;  // bf16 has 8 bits, as int8
  return of_activations + of_cache;
}

// One model's naive results, and a check of an engine's against them.
struct Expectation {
  TinyModel model;
  std::vector<int> first = Tokens(30, 1), second = Tokens(19, 2);
  std::vector<Row> hidden_first, hidden_second;

  explicit Expectation(WeightFormat weights)
      : model(weights, 3), hidden_first(NaiveHidden(model, first)), hidden_second(NaiveHidden(model, second)) {}

  void Check(KvFormat format, const Kernels& kernels) const {
    TinyEngine engine(model, format, 2, 2048, kernels);
    const WeightFormat weights = model.head.shape.format;
    const auto check = [&](const float* row, const Row& expected, int at) {
      for (size_t i = 0; i < expected.size(); ++i) {
        CHECK_NEAR(row[i], expected[i], Tolerance(weights, format) * Largest(expected), kernels.name, "weights",
                   static_cast<int>(weights), "cache", static_cast<int>(format), "token", at, "dim", i);
      }
    };
    const TinyEngine::Result a = engine.Step({{1, first}});
    for (int at = 0; at < 30; ++at) check(a.hidden.data() + at * kHidden, hidden_first[at], at);
    engine.Step({{2, Part(second, 0, 7)}});
    const TinyEngine::Result b = engine.Step({{2, Part(second, 7, 18)}, {3, first}});
    for (int at = 7; at < 18; ++at) check(b.hidden.data() + (at - 7) * kHidden, hidden_second[at], at);
    for (int at = 0; at < 30; ++at) check(b.hidden.data() + (11 + at) * kHidden, hidden_first[at], at);
    const std::vector<float> logits = engine.Logits({10, 40, 0, 10});
    check(logits.data(), NaiveLogits(model, hidden_second[17]), 17);
    check(logits.data() + kVocab, NaiveLogits(model, hidden_first[29]), 29);
    check(logits.data() + 2 * kVocab, NaiveLogits(model, hidden_second[7]), 7);
    CHECK_EQ(FirstDifference({logits.data() + 3 * kVocab, kVocab}, {logits.data(), kVocab}), -1);
  }
};

TEST("program: hidden states and logits are the naive model's, in every format") {
  for (const WeightFormat weights : kAllFormats) {
    const Expectation expectation(weights);
    for (const Kernels* kernels : AvailableKernels()) {
      for (const KvFormat format : kAllKvFormats)
        expectation.Check(format, *kernels);
    }
  }
}

// Hidden states of `tokens` in chunks of the sizes given in turn, with other sequences in every other run.
std::vector<float> HiddenInChunks(TinyEngine& engine, const std::vector<int>& tokens, const std::vector<int>& sizes,
                                  bool has_company) {
  std::vector<float> hidden;
  int number = 0;
  for (int begin = 0; begin < static_cast<int>(tokens.size()); ++number) {
    const int end = std::min<int>(begin + sizes[number % sizes.size()], static_cast<int>(tokens.size()));
    std::map<int, std::vector<int>> chunks{{50, Part(tokens, begin, end)}};
    if (has_company && number % 2) {
      chunks[1 + number % 40] = Tokens(1 + number % 13, number);
      chunks[60 + number % 40] = Tokens(1, number);
    }
    int first_row = 0;
    for (const auto& [id, part] : chunks) {
      if (id < 50) first_row += static_cast<int>(part.size());
    }
    const TinyEngine::Result result = engine.Step(chunks);
    hidden.insert(hidden.end(), result.hidden.begin() + first_row * kHidden,
                  result.hidden.begin() + (first_row + end - begin) * kHidden);
    begin = end;
  }
  return hidden;
}

TEST("program: a token's bits depend on nothing but its sequence: not on chunks, company, threads") {
  const std::vector<int> tokens = Tokens(1100, 4);  // past two boundaries of splits
  for (const WeightFormat weights :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kInt4}) {
    const TinyModel model(weights, 5);
    const KvFormat format = weights == WeightFormat::kInt4 ? KvFormat::kInt8 : KvFormat::kF16;
    TinyEngine engine(model, format, 1);
    const std::vector<float> expected = HiddenInChunks(engine, tokens, {64}, false);
    const std::vector<std::vector<int>> ways = {{1}, {3, 17, 1, 40}, {33}};
    for (int way = 0; way < 3; ++way) {
      for (int num_threads = 1; num_threads <= 3; num_threads += 2) {
        if (way == 0 && num_threads == 1) continue;  // slow, and the least that could go wrong
        TinyEngine other(model, format, num_threads);
        const std::vector<float> hidden = HiddenInChunks(other, tokens, ways[way], way == 1);
        const int difference = FirstDifference(hidden, expected);
        CHECK_EQ(difference, -1, static_cast<int>(weights), "way", way, "threads", num_threads, "token",
                 difference / kHidden);
      }
    }
  }
}

TEST("program: what nobody wants is left out, and the bits of what is wanted stay") {
  const std::map<int, std::vector<int>> first{
      {1, Tokens(20, 21)}, {2, Tokens(7, 22)}, {3, Tokens(1, 23)}, {4, Tokens(9, 24)}};
  const std::map<int, std::vector<int>> second{{1, Tokens(1, 25)}, {2, Tokens(5, 26)}, {3, Tokens(2, 27)}};
  for (const WeightFormat weights : kAllFormats) {
    for (const Kernels* kernels : AvailableKernels()) {
      const TinyModel model(weights, 28);
      TinyEngine whole(model, KvFormat::kF16, 2, 2048, *kernels), part(model, KvFormat::kF16, 2, 2048, *kernels);
      const std::vector<float> all = whole.Step(first).hidden;
      const TinyEngine::Result wanted = part.Step(first, {{1, 3}, {2, 0}, {3, 1}, {4, 9}});
      CHECK(wanted.is_finite == (std::vector<uint8_t>{1, 1, 1, 1}));
      std::vector<float> expected(all.begin() + 17 * kHidden, all.begin() + 20 * kHidden);
      expected.insert(expected.end(), all.begin() + 27 * kHidden, all.end());
      CHECK_EQ(FirstDifference(wanted.hidden, expected), -1, kernels->name, static_cast<int>(weights));
      CHECK_EQ(FirstDifference(part.Logits({36, 18}), whole.Logits({36, 18})), -1, kernels->name);
      CHECK(part.Step({{1, {4, 5}}}, {{1, 0}}).hidden.empty());
      whole.Step({{1, {4, 5}}});
      CHECK_EQ(FirstDifference(part.Step(second).hidden, whole.Step(second).hidden), -1, kernels->name);
    }
  }
}

TEST("program: what goes wrong in rows that nobody wants is told all the same") {
  TinyModel model(WeightFormat::kF32, 29);
  const float nan = NAN;
  std::memcpy(model.embedding.bytes.data() + 5 * sizeof(float), &nan, sizeof(nan));  // token 5
  TinyEngine engine(model, KvFormat::kF32, 1);
  const std::map<int, std::vector<int>> chunks{{1, {1, 5, 2}}, {2, {1, 2, 3}}, {3, {1, 2, 5}}};
  for (const auto& wanted : std::vector<std::map<int, int>>{{{1, 0}, {2, 0}, {3, 0}}, {{1, 1}, {2, 2}, {3, 1}}, {}}) {
    CHECK(engine.Step(chunks, wanted).is_finite == (std::vector<uint8_t>{0, 1, 0}), "wanted", wanted.size());
  }
  TinyModel late(WeightFormat::kF32, 30);  // finite up to the last layer's values
  late.layers[kLayers - 1].qkv_bias.back() = INFINITY;
  CHECK(TinyEngine(late, KvFormat::kF32, 1).Step({{1, {1, 2}}}, {{1, 0}}).is_finite == (std::vector<uint8_t>{0}));
}

TEST("program: a sequence that goes wrong says so, disturbs no other, and leaves nothing behind when cleared") {
  for (const WeightFormat weights : {WeightFormat::kF32, WeightFormat::kInt4}) {
    for (const KvFormat format : kAllKvFormats) {
      TinyModel model(weights, 6);
      constexpr int kBadToken = 5;
      const float nan = NAN;
      std::memcpy(model.embedding.bytes.data() + kBadToken * sizeof(float), &nan, sizeof(nan));  // its first column
      std::vector<int> good = Tokens(20, 7), other = Tokens(12, 8);
      for (int& token : good) token = token == kBadToken ? 6 : token;
      for (int& token : other) token = token == kBadToken ? 6 : token;
      std::vector<int> bad = other;
      bad[7] = kBadToken;

      TinyEngine clean(model, format, 2), mixed(model, format, 2);
      const TinyEngine::Result expected = clean.Step({{1, good}, {2, other}});
      const TinyEngine::Result result = mixed.Step({{1, good}, {2, bad}});
      CHECK(expected.is_finite == (std::vector<uint8_t>{1, 1}));
      CHECK(result.is_finite == (std::vector<uint8_t>{1, 0}), static_cast<int>(weights), static_cast<int>(format));
      CHECK_EQ(FirstDifference({result.hidden.data(), 20 * kHidden}, {expected.hidden.data(), 20 * kHidden}), -1);

      for (size_t i = 20; i < result.slots.size(); ++i) mixed.kv.ClearSlot(result.slots[i]);
      const TinyEngine::Result after = mixed.Step({{1, {9}}, {3, other}}), wanted = clean.Step({{1, {9}}, {3, other}});
      CHECK(after.is_finite == (std::vector<uint8_t>{1, 1}));
      CHECK_EQ(FirstDifference(after.hidden, wanted.hidden), -1, static_cast<int>(weights), static_cast<int>(format));
    }
  }
}

TEST("program: clearing a slot empties it in every layer and touches no other") {
  const TinyModel model(WeightFormat::kF32, 9);
  for (const KvFormat format : kAllKvFormats) {
    const auto program = PartsBuilder(model).Build().Build();
    KvMemory kv(program->shape(), format, 3, 16);
    const size_t elements = 3 * kKvHeads * kHeadDim * 16, scales = format == KvFormat::kInt8 ? elements / kHeadDim : 0;
    CHECK_EQ(kv.num_bytes(), 2 * kLayers * (elements * KvElementBytes(format) + scales * 4));
    for (int layer = 0; layer < kLayers; ++layer) {
      std::memset(kv.layer(layer).keys, 0x5a, elements * KvElementBytes(format));
      std::memset(kv.layer(layer).values, 0x5a, elements * KvElementBytes(format));
      if (scales > 0) std::memset(kv.layer(layer).key_scales, 0x5a, scales * 4);
      if (scales > 0) std::memset(kv.layer(layer).value_scales, 0x5a, scales * 4);
    }
    kv.ClearSlot(16 + 3);
    const size_t size = KvElementBytes(format);
    size_t num_zero = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const KvView view = kv.layer(layer);
      for (int head = 0; head < kKvHeads; ++head) {
        for (int d = 0; d < kHeadDim; ++d) {
          const size_t key = view.HeadIndex(1, head) + view.KeyIndex(d, 3);
          const size_t value = view.HeadIndex(1, head) + view.ValueIndex(3, d);
          for (size_t byte = 0; byte < size; ++byte) {
            CHECK_EQ(int{view.keys[key * size + byte]}, 0);
            CHECK_EQ(int{view.values[value * size + byte]}, 0);
          }
        }
      }
      num_zero += std::count(view.keys, view.keys + elements * size, 0) +
                  std::count(view.values, view.values + elements * size, 0);
      if (scales > 0) num_zero += std::count(view.key_scales, view.key_scales + scales, 0.0f);
      if (scales > 0) num_zero += std::count(view.value_scales, view.value_scales + scales, 0.0f);
    }
    CHECK_EQ(num_zero, 2 * kLayers * kKvHeads * (kHeadDim * size + (scales > 0 ? 1 : 0)));
  }
}

TEST("KV memory: a block's copy holds its keys, values and scales of every layer, and nothing else") {
  const TinyModel model(WeightFormat::kF32, 11);
  const auto program = PartsBuilder(model).Build().Build();
  constexpr int kBlocks = 4, kBlockSize = 16;
  for (const KvFormat format : kAllKvFormats) {
    KvMemory kv(program->shape(), format, kBlocks, kBlockSize);
    const size_t elements = size_t{kKvHeads} * kHeadDim * kBlockSize * KvElementBytes(format);
    const size_t scales = format == KvFormat::kInt8 ? size_t{kKvHeads} * kBlockSize * sizeof(float) : 0;
    CHECK_EQ(kv.block_bytes(), 2 * kLayers * (elements + scales));
    // the pieces of a block, in the order of its copy
    const auto pieces = [&](int block) {
      std::vector<std::span<uint8_t>> found;
      for (int layer = 0; layer < kLayers; ++layer) {
        const KvView view = kv.layer(layer);
        found.push_back({view.keys + block * elements, elements});
        found.push_back({view.values + block * elements, elements});
        if (scales == 0) continue;
        found.push_back({reinterpret_cast<uint8_t*>(view.key_scales) + block * scales, scales});
        found.push_back({reinterpret_cast<uint8_t*>(view.value_scales) + block * scales, scales});
      }
      return found;
    };
    for (int block = 0; block < kBlocks; ++block) {
      int next = block + 1;
      for (const auto& piece : pieces(block)) {
        for (uint8_t& byte : piece) byte = static_cast<uint8_t>(next = (next * 5 + 7) % 251);
      }
    }
    std::vector<uint8_t> before(kv.block_bytes()), content(kv.block_bytes()), after(kv.block_bytes());
    kv.CopyOut(0, before.data());
    kv.CopyOut(1, content.data());
    kv.CopyIn(2, content.data());
    size_t at = 0;
    for (const auto& piece : pieces(2)) {
      CHECK(std::memcmp(piece.data(), content.data() + at, piece.size()) == 0);
      at += piece.size();
    }
    CHECK_EQ(at, content.size());
    kv.CopyBlock(1, 3);
    kv.CopyOut(3, after.data());
    CHECK(after == content);
    kv.CopyOut(0, after.data());
    CHECK(before == after && before != content);
  }
}

TEST("program: a run allocates nothing") {
  const TinyModel model(WeightFormat::kInt4, 10);
  const auto program = PartsBuilder(model).Build().Build();
  KvMemory kv(program->shape(), KvFormat::kF16, 64, 16);
  ThreadPool pool(2);
  Workspace workspace(*program, 64, 8, 2, 1024);
  std::vector<int32_t> ids(64, 3), positions(64), slots(64), tables(64), rows{0}, one{1}, all{64};
  for (int i = 0; i < 64; ++i) positions[i] = i, slots[i] = i, tables[i] = i;
  const std::vector<int32_t> prompt_start{0, 64}, prompt_len{64}, decode_start{0, 1}, decode_len{1024};
  std::vector<uint8_t> is_finite(1);
  std::vector<float> logits(kVocab);
  const std::span<const int32_t> one_id(ids.data(), 1), one_position(&positions[63], 1), one_slot(&slots[63], 1);
  const size_t before = NumAllocations();
  const bool is_prompt_fine =
      program->Run({ids, positions, slots, prompt_start, prompt_len, tables, all, {}, {}}, kv, pool, workspace, is_finite)
          .empty();
  const bool is_decode_fine = program
                                  ->Run({one_id, one_position, one_slot, decode_start, decode_len, tables, one, {}, {}},
                                        kv, pool, workspace, is_finite)
                                  .empty();
  const bool is_head_fine = program->Head(rows, pool, workspace, logits.data()).empty();
  CHECK_EQ(NumAllocations(), before);
  CHECK(is_prompt_fine && is_decode_fine && is_head_fine);
}

}  // namespace
}  // namespace headrace::tests
