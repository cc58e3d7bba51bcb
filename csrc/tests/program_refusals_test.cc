// What a program, its memory and its workspace refuse: everything that would make a run go wrong.

#include <array>
#include <functional>
#include <limits>

#include "../program.h"
#include "check.h"
#include "tiny_model.h"

namespace headrace::tests {
namespace {

// The arrays of a good batch of two sequences, for tests that spoil one thing.
struct Arrays {
  std::vector<int32_t> ids{1, 2, 3, 4, 5}, positions{0, 1, 2, 0, 1}, slots{0, 1, 2, 16, 17};
  std::vector<int32_t> query_start{0, 3, 5}, seq_lens{3, 2}, tables{0, 1}, num_wanted{3, 2};
  std::vector<uint8_t> is_finite{2, 2};

  BatchView View() const { return {ids, positions, slots, query_start, seq_lens, tables, num_wanted, {}, {}}; }
};

TEST("program: every batch that does not fit is refused with a reason, and what follows is unharmed") {
  const TinyModel model(WeightFormat::kF32, 11);
  TinyEngine engine(model, KvFormat::kF32, 1, 600);
  const auto run = [&](Arrays& a) {
    return engine.program->Run(a.View(), engine.kv, engine.pool, engine.workspace, a.is_finite);
  };
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
  const int32_t num_slots = TinyEngine::kNumBlocks * TinyEngine::kBlockSize;
  const std::vector<std::function<void(Arrays&)>> spoils = {
      [](Arrays& a) { a = {{}, {}, {}, {0}, {}, {}, {}, {}}; },
      [](Arrays& a) { a.ids.pop_back(); },
      [](Arrays& a) { a.positions.push_back(0); },
      [](Arrays& a) { a.slots.pop_back(); },
      [](Arrays& a) { a.query_start.pop_back(); },
      [](Arrays& a) { a.seq_lens.pop_back(); },
      [](Arrays& a) { a.tables.push_back(0); },
      [](Arrays& a) { a.tables.clear(); },
      [](Arrays& a) { a.num_wanted.pop_back(); },
      [](Arrays& a) { a.num_wanted.clear(); },
      [](Arrays& a) { a.num_wanted[0] = -1; },
      [](Arrays& a) { a.num_wanted[1] = 3; },
      [](Arrays& a) { a.num_wanted[1] = kMin; },
      [](Arrays& a) { a.num_wanted[0] = kMax; },
      [](Arrays& a) { a.is_finite.pop_back(); },
      [](Arrays& a) { a.ids[4] = -1; },
      [](Arrays& a) { a.ids[0] = kVocab; },
      [](Arrays& a) { a.ids[2] = kMax; },
      [](Arrays& a) { a.positions[3] = -1; },
      [](Arrays& a) { a.positions[3] = kMin; },
      [](Arrays& a) { a.slots[1] = -1; },
      [&](Arrays& a) { a.slots[4] = num_slots; },
      [](Arrays& a) { a.slots[4] = kMax; },
      [](Arrays& a) { a.tables[0] = -1; },
      [](Arrays& a) { a.tables[1] = TinyEngine::kNumBlocks; },
      [](Arrays& a) { a.query_start[0] = 1; },
      [](Arrays& a) { a.query_start[2] = 4; },
      [](Arrays& a) { a.query_start[2] = 6; },
      [](Arrays& a) { a.query_start[1] = 0; },
      [](Arrays& a) { a.query_start[1] = 5; },
      [](Arrays& a) { a.query_start[1] = -1; },
      [](Arrays& a) { a.query_start[1] = kMax; },
      [](Arrays& a) { a.query_start[1] = kMin; },
      [](Arrays& a) { a.seq_lens[0] = 2; },
      [](Arrays& a) { a.seq_lens[1] = 17; },
      [](Arrays& a) { a.seq_lens[1] = 0; },
      [](Arrays& a) { a.seq_lens[1] = kMin; },
      [](Arrays& a) { a.seq_lens[1] = kMax; },
      [](Arrays& a) {
        a.tables.assign(2 * 200, 1), a.seq_lens[0] = 200 * 16;
      },  // longer than the workspace was made for
      [](Arrays& a) {
        const int count = TinyEngine::kMaxTokens + 1;
        a = {std::vector<int32_t>(count),
             std::vector<int32_t>(count),
             std::vector<int32_t>(count),
             {0, count},
             {count},
             std::vector<int32_t>(8),
             {1},
             {2}};
      },
      [](Arrays& a) {
        const int count = TinyEngine::kMaxSequences + 1;
        a = {std::vector<int32_t>(count),    std::vector<int32_t>(count), std::vector<int32_t>(count),    {0},
             std::vector<int32_t>(count, 1), std::vector<int32_t>(count), std::vector<int32_t>(count, 1),
             std::vector<uint8_t>(count, 2)};
        for (int i = 1; i <= count; ++i) a.query_start.push_back(i);
      },
  };
  Arrays good;
  CHECK_EQ(run(good), "");
  const std::vector<float> expected(engine.program->hidden(engine.workspace),
                                    engine.program->hidden(engine.workspace) + 5 * kHidden);
  for (size_t i = 0; i < spoils.size(); ++i) {
    Arrays spoilt;
    spoils[i](spoilt);
    CHECK(!run(spoilt).empty(), "case", i);
    for (const uint8_t flag : spoilt.is_finite) CHECK_EQ(int{flag}, 2, "case", i);
    CHECK_EQ(FirstDifference({engine.program->hidden(engine.workspace), 5 * kHidden}, expected), -1, "case", i);
  }
  CHECK_EQ(run(good), "");
  CHECK_EQ(FirstDifference({engine.program->hidden(engine.workspace), 5 * kHidden}, expected), -1);
}

TEST("program: logits are only of wanted rows of the last run") {
  const TinyModel model(WeightFormat::kF32, 12);
  TinyEngine engine(model, KvFormat::kF32, 1);
  std::vector<float> logits(9 * kVocab);
  const auto head = [&](const std::vector<int32_t>& rows) {
    return engine.program->Head(rows, engine.pool, engine.workspace, logits.data());
  };
  CHECK(!head({0}).empty());  // nothing has run
  engine.Step({{1, {1, 2, 3}}});
  CHECK(head({0, 1, 2}).empty());
  CHECK(head({}).empty());
  CHECK(!head({3}).empty());
  CHECK(!head({-1}).empty());
  CHECK(!head({std::numeric_limits<int32_t>::max()}).empty());
  engine.Step({{1, {1, 2, 3}}, {2, {4}}, {3, {5, 6}}}, {{1, 2}, {2, 0}, {3, 1}});
  CHECK(head({5, 1, 2}).empty());
  for (const int32_t row : {0, 3, 4}) CHECK_EQ(head({row}), "a row was not wanted of the last run");
  engine.Step({{1, {1, 2}}}, {{1, 0}});
  CHECK(!head({0}).empty() && !head({1}).empty());
  CHECK(!head(std::vector<int32_t>(TinyEngine::kMaxSequences + 1)).empty());
}

TEST("program: memory, threads and workspace of another program are refused") {
  const TinyModel model(WeightFormat::kF32, 13), int8_model(WeightFormat::kInt8, 13);
  const ProgramParts parts = PartsBuilder(model).Build();
  TinyEngine engine(model, KvFormat::kF32, 1), int8_engine(int8_model, KvFormat::kF32, 1);
  Arrays a;
  const auto run = [&](const Program& program, const KvMemory& kv, ThreadPool& pool, Workspace& workspace) {
    return program.Run(a.View(), kv, pool, workspace, a.is_finite);
  };
  CHECK_EQ(run(*engine.program, engine.kv, engine.pool, engine.workspace), "");
  CHECK_EQ(run(*engine.program, int8_engine.kv, int8_engine.pool, engine.workspace), "");  // of the same shape

  ThreadPool many(3);
  CHECK(!run(*engine.program, engine.kv, many, engine.workspace).empty());
  std::vector<float> logits(kVocab);
  const std::vector<int32_t> rows{0};
  CHECK(!engine.program->Head(rows, many, engine.workspace, logits.data()).empty());
  for (int field = 0; field < 3; ++field) {
    Shape shape = parts.shape;
    (field == 0 ? shape.num_kv_heads : field == 1 ? shape.head_dim : shape.num_layers) *= 2;
    const KvMemory other(shape, KvFormat::kF32, TinyEngine::kNumBlocks, 16);
    CHECK(!run(*engine.program, other, engine.pool, engine.workspace).empty(), "field", field);
  }
  for (int change = 0; change < 3; ++change) {
    ProgramParts other = parts;
    if (change == 0) other.buffers.push_back({false, 1 << 16, 0});
    if (change == 1) other.ropes.push_back({kHeadDim, 1.0f, std::vector<float>(kHeadDim / 2)});
    if (change == 2) other.buffers.push_back({true, 1 << 16, 0});
    const auto program = other.Build();
    CHECK(!run(*program, engine.kv, engine.pool, engine.workspace).empty(), "change", change);
    CHECK(!program->Head(rows, engine.pool, engine.workspace, logits.data()).empty(), "change", change);
  }
}

TEST("program: memory and workspaces of impossible sizes are refused before they are taken") {
  const TinyModel model(WeightFormat::kF32, 14);
  const auto program = PartsBuilder(model).Build().Build();
  constexpr int kMax = std::numeric_limits<int>::max();
  for (const auto& [num_blocks, block_size] :
       {std::pair{0, 16}, {-1, 16}, {4, 0}, {4, -16}, {4, 15}, {4, 24}, {kMax, kMax - 15}}) {
    CHECK_THROWS(KvMemory(program->shape(), KvFormat::kF32, num_blocks, block_size), std::invalid_argument);
  }
  for (const auto& sizes : {std::array{0, 1, 1, 1},
                            {-1, 1, 1, 1},
                            {8, 0, 1, 1},
                            {8, -1, 1, 1},
                            {8, 9, 1, 1},
                            {8, 8, 0, 1},
                            {8, 8, -1, 1},
                            {8, 8, 1, 0},
                            {8, 8, 1, -5},
                            {1 << 20, 1, kMax, kMax}}) {
    CHECK_THROWS(Workspace(*program, sizes[0], sizes[1], sizes[2], sizes[3]), std::invalid_argument);
  }
}

// Every way to point an operation at something that is not there or does not fit.
TEST("program: an operation that does not fit is refused when the program is built") {
  const TinyModel model(WeightFormat::kInt8, 15);
  const ProgramParts parts = PartsBuilder(model).Build();
  parts.Build();
  const auto check = [&](const char* what, auto&& spoil) {
    for (const auto list : {&ProgramParts::body, &ProgramParts::tail, &ProgramParts::head}) {
      for (size_t i = 0; i < (parts.*list).size(); ++i) {
        ProgramParts spoilt = parts;
        Operation& op = (spoilt.*list)[i];
        if (!spoil(op)) continue;
        bool threw = false;
        try {
          spoilt.Build();
        } catch (const std::invalid_argument&) {
          threw = true;
        }
        CHECK(threw, what, "operation", i, "of kind", static_cast<int>(op.kind), "in head", list == &ProgramParts::head);
      }
    }
  };
  const auto uses_matrix = [](OpKind kind) { return kind == OpKind::kEmbed || kind == OpKind::kMatmul; };
  const auto uses_layer = [](OpKind kind) { return kind == OpKind::kRotateStore || kind == OpKind::kAttention; };
  const auto has_input = [](OpKind kind) { return kind != OpKind::kEmbed && kind != OpKind::kScale; };
  for (const int wrong : {-2, 1000, std::numeric_limits<int>::min()}) {
    check("output", [&](Operation& op) { return op.output = wrong, true; });
    check("input", [&](Operation& op) { return op.input = wrong, has_input(op.kind); });
    check("matrix", [&](Operation& op) { return op.matrix = wrong, uses_matrix(op.kind); });
    check("layer", [&](Operation& op) { return op.layer = wrong, uses_layer(op.kind); });
    check("rope", [&](Operation& op) { return op.rope = wrong, op.kind == OpKind::kRotateStore; });
    check("vector", [&](Operation& op) {
      op.vector = wrong;
      return op.kind == OpKind::kNorm || op.kind == OpKind::kNormAdd || op.kind == OpKind::kMatmul ||
             op.kind == OpKind::kRotateStore;
    });
    check("second vector", [&](Operation& op) { return op.second_vector = wrong, op.kind == OpKind::kRotateStore; });
    check("kind", [&](Operation& op) { return op.kind = static_cast<OpKind>(wrong), true; });
  }
  check("no norm weight",
        [](Operation& op) { return op.vector = -1, op.kind == OpKind::kNorm || op.kind == OpKind::kNormAdd; });
  check("window", [](Operation& op) { return op.window = -1, op.kind == OpKind::kAttention; });
  check("logits as input", [&](Operation& op) { return op.input = parts.logits_buffer, has_input(op.kind); });
  check("logits as output", [&](Operation& op) {
    op.output = parts.logits_buffer;
    return op.kind != OpKind::kMatmul && op.kind != OpKind::kScale;
  });
  check("another matrix", [&](Operation& op) {
    const int before = op.matrix;
    op.matrix = (op.matrix + 1) % static_cast<int>(parts.matrices.size());
    const PackedMatrix &a = parts.matrices[std::max(before, 0)], &b = parts.matrices[op.matrix];
    return uses_matrix(op.kind) && (a.num_rows != b.num_rows || a.num_columns != b.num_columns || a.format != b.format);
  });
}

TEST("program: operations have no place where what they need is not there") {
  const TinyModel model(WeightFormat::kInt8, 16);
  const ProgramParts parts = PartsBuilder(model).Build();
  const auto check = [&](auto list, const Operation& op) {
    ProgramParts spoilt = parts;
    (spoilt.*list).push_back(op);
    CHECK_THROWS(spoilt.Build(), std::invalid_argument);
  };
  for (const Operation& op : parts.body) {
    const bool needs_every_row = op.kind == OpKind::kEmbed || op.kind == OpKind::kRotateStore;
    if (needs_every_row) check(&ProgramParts::tail, op);
    if (needs_every_row || op.kind == OpKind::kAttention) check(&ProgramParts::head, op);
  }
  for (const Operation& op : parts.head) {
    if (op.output != parts.logits_buffer) continue;
    check(&ProgramParts::body, op);
    check(&ProgramParts::tail, op);
  }
  ProgramParts spoilt = parts;  // what was quantised in the body cannot be moved up
  spoilt.body.insert(spoilt.body.end(), spoilt.tail.begin(), spoilt.tail.end() - 2);
  spoilt.tail.erase(spoilt.tail.begin(), spoilt.tail.end() - 2);
  CHECK_THROWS(spoilt.Build(), std::invalid_argument);
}

TEST("program: shapes, buffers, matrices and ropes that contradict themselves are refused") {
  const TinyModel model(WeightFormat::kInt8, 17);
  const ProgramParts parts = PartsBuilder(model).Build();
  const std::vector<std::function<void(ProgramParts&)>> spoils = {
      [](ProgramParts& p) { p.shape.vocab_size = 0; },
      [](ProgramParts& p) { p.shape.vocab_size += 1; },
      [](ProgramParts& p) { p.shape.hidden_size = -1; },
      [](ProgramParts& p) { p.shape.hidden_size += 1; },
      [](ProgramParts& p) { p.shape.num_heads = 5; },
      [](ProgramParts& p) { p.shape.num_kv_heads = 0; },
      [](ProgramParts& p) { p.shape.num_kv_heads = 3; },
      [](ProgramParts& p) { p.shape.head_dim = 8; },
      [](ProgramParts& p) { p.shape.head_dim = 24; },
      [](ProgramParts& p) { p.shape.num_layers = 1; },
      [](ProgramParts& p) { p.shape.num_layers = std::numeric_limits<int>::max(); },
      [](ProgramParts& p) { p.hidden_buffer = -1; },
      [](ProgramParts& p) { p.hidden_buffer = 1000; },
      [](ProgramParts& p) { p.head_input_buffer = p.logits_buffer; },
      [](ProgramParts& p) { p.logits_buffer = p.hidden_buffer; },
      [](ProgramParts& p) { p.buffers[p.hidden_buffer].is_quantized = true; },
      [](ProgramParts& p) { p.buffers[2].width = 0; },
      [](ProgramParts& p) { p.buffers[2].width = -4; },
      [](ProgramParts& p) { p.buffers[2].width += 1; },
      [](ProgramParts& p) { p.buffers[2].offset = 4; },
      [](ProgramParts& p) { p.buffers[2].offset = std::numeric_limits<size_t>::max() / 64 * 64; },
      [](ProgramParts& p) { p.buffers[2].offset = size_t{1} << 60; },
      [](ProgramParts& p) { p.matrices[1].data = nullptr; },
      [](ProgramParts& p) { p.matrices[1].data += 4; },
      [](ProgramParts& p) { p.matrices[1].num_rows += 1; },
      [](ProgramParts& p) { p.matrices[1].num_columns += 1; },
      [](ProgramParts& p) { p.matrices[1].format = WeightFormat::kF32; },
      [](ProgramParts& p) { p.vectors[0].pop_back(); },
      [](ProgramParts& p) { p.ropes[0].rotary_dim = 3; },
      [](ProgramParts& p) { p.ropes[0].rotary_dim = 0; },
      [](ProgramParts& p) { p.ropes[0].rotary_dim = 2 * kHeadDim; },
      [](ProgramParts& p) { p.ropes[0].frequencies.pop_back(); },
      [](ProgramParts& p) { p.ropes.pop_back(); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    ProgramParts spoilt = parts;
    spoils[i](spoilt);
    bool threw = false;
    try {
      spoilt.Build();
    } catch (const std::invalid_argument&) {
      threw = true;
    }
    CHECK(threw, "case", i);
  }
}

}  // namespace
}  // namespace headrace::tests
