// Running a program: the checks of a run's arguments, and what each kind of operation does.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "attention_plan.h"
#include "multiply.h"
#include "packing.h"
#include "program.h"

namespace headrace {
namespace {

// For operations that treat rows one by one: in pieces of four to eight, so that few rows still make work for several
// threads. Smaller pieces cost more than they save: what reads a row next would wait for another core's cache.
template <typename Body>
void ForRows(ThreadPool& pool, int num_rows, const Body& body) {
  constexpr int kLeastPerPiece = 4, kMostPerPiece = 8;
  const int share = static_cast<int>(CeilDiv(num_rows, pool.num_threads()));
  const int per_piece = std::clamp(share, kLeastPerPiece, kMostPerPiece);
  pool.Run(static_cast<int>(CeilDiv(num_rows, per_piece)), [&](int piece, int thread) {
    const int end = std::min(num_rows, (piece + 1) * per_piece);
    for (int row = piece * per_piece; row < end; ++row) body(row, thread);
  });
}

bool AllFinite(const float* begin, const float* end) {
  float poison = 0.0f;  // stays zero unless a value is infinite or not a number
  for (const float* x = begin; x != end; ++x) poison += *x * 0.0f;
  return poison == 0.0f;
}

}  // namespace

struct Program::Context {
  const BatchView* batch;
  const KvMemory* kv;
  ThreadPool& pool;
  Workspace& workspace;
  const std::vector<Buffer>& buffers;
  int num_rows;
  int logits_buffer;
  float* logits;

  float* Floats(int id) const {
    if (id == logits_buffer) return logits;
    return reinterpret_cast<float*>(workspace.arena_.data() + buffers[id].offset * workspace.max_tokens_);
  }
  float* FloatRow(int id, int row) const { return Floats(id) + static_cast<size_t>(row) * buffers[id].width; }
  bool AreFinite(int id, int row, int row_end) const { return AllFinite(FloatRow(id, row), FloatRow(id, row_end)); }

  int8_t* QuantizedValues(int id) const {
    return reinterpret_cast<int8_t*>(workspace.arena_.data() + buffers[id].offset * workspace.max_tokens_);
  }
  QuantizedRow QuantizedRowAt(int id, int row) const {
    const size_t groups = buffers[id].num_groups(), max_tokens = workspace.max_tokens_;
    int8_t* values = QuantizedValues(id);
    float* scale = reinterpret_cast<float*>(values + max_tokens * groups * kGroupColumns);
    return {values + row * groups * kGroupColumns, scale + row * groups, scale + (max_tokens + row) * groups};
  }
};

std::string Program::Misfit(const ThreadPool& pool, const Workspace& workspace) const {
  if (workspace.needs_ != needs_) return "the workspace was made for another program";
  if (static_cast<size_t>(pool.num_threads()) > workspace.scratch_.size()) return "the workspace was made for fewer threads";
  return {};
}

std::string Program::BatchProblem(const BatchView& batch, const KvMemory& kv) const {
  const auto all_in = [](std::span<const int32_t> values, int64_t limit) {
    return std::all_of(values.begin(), values.end(), [limit](int32_t v) { return v >= 0 && v < limit; });
  };
  if (batch.positions.size() != batch.input_ids.size() || batch.slot_mapping.size() != batch.input_ids.size() ||
      batch.query_start.size() != batch.seq_lens.size() + 1 || batch.num_wanted.size() != batch.seq_lens.size() ||
      batch.block_tables.size() % batch.num_sequences() != 0) {
    return "the batch's arrays do not agree in length";
  }
  if (!all_in(batch.input_ids, shape_.vocab_size)) return "a token id is out of bounds";
  if (!all_in(batch.slot_mapping, int64_t{kv.num_blocks()} * kv.block_size())) return "a slot is out of bounds";
  if (batch.joined_rows.size() != batch.joined_slots.size()) return "joined_rows and joined_slots do not agree in length";
  if (!all_in(batch.joined_rows, batch.num_tokens())) return "a joined row is out of bounds";
  if (!all_in(batch.joined_slots, int64_t{kv.num_blocks()} * kv.block_size())) return "a joined slot is out of bounds";
  if (!all_in(batch.block_tables, kv.num_blocks())) return "a block id is out of bounds";
  if (!all_in(batch.positions, int64_t{1} << 31)) return "a position is negative";
  if (batch.query_start.front() != 0 || batch.query_start.back() != batch.num_tokens()) return "query_start is wrong";
  for (int b = 0; b < batch.num_sequences(); ++b) {
    const int64_t count = int64_t{batch.query_start[b + 1]} - batch.query_start[b];
    const int64_t room = int64_t{batch.max_blocks()} * kv.block_size();
    if (count < 1 || batch.seq_lens[b] < count || batch.seq_lens[b] > room) return "a sequence's length is out of bounds";
    if (batch.num_wanted[b] < 0 || batch.num_wanted[b] > count) return "num_wanted is out of bounds";
  }
  return {};
}

std::string Program::SizeProblem(const BatchView& batch, const KvMemory& kv, const ThreadPool& pool,
                                 const Workspace& workspace) const {
  const std::string misfit = Misfit(pool, workspace);
  if (!misfit.empty()) return misfit;
  if (kv.shape().num_layers != shape_.num_layers || kv.shape().num_kv_heads != shape_.num_kv_heads ||
      kv.shape().head_dim != shape_.head_dim) {
    return "the KV memory was made for another program";
  }
  const int num_tokens = batch.num_tokens(), num_sequences = batch.num_sequences();
  if (num_tokens < 1 || num_tokens > workspace.max_tokens_) return "the number of tokens is out of bounds";
  if (num_sequences < 1 || num_sequences > workspace.max_sequences_) return "the number of sequences is out of bounds";
  return {};
}

std::string Program::LengthProblem(const BatchView& batch, const ThreadPool& pool, const Workspace& workspace) const {
  const size_t most_parts = static_cast<size_t>(kUnitsPerThread) * pool.num_threads();
  for (const int32_t seq_len : batch.seq_lens) {
    if (CeilDiv(seq_len, kSplitPositions) * most_parts > workspace.partials_.size()) {
      return "a sequence is longer than the workspace was made for";
    }
  }
  return {};
}

std::string Program::Run(const BatchView& batch, const KvMemory& kv, ThreadPool& pool, Workspace& workspace,
                         std::span<uint8_t> is_finite) const {
  std::string problem = SizeProblem(batch, kv, pool, workspace);
  if (problem.empty()) problem = BatchProblem(batch, kv);
  if (problem.empty()) problem = LengthProblem(batch, pool, workspace);
  if (problem.empty() && is_finite.size() != batch.seq_lens.size()) {
    problem = "is_finite and the batch do not agree in length";
  }
  if (!problem.empty()) return problem;
  workspace.wanted_.Find(batch);
  const Context whole{&batch, &kv, pool, workspace, buffers_, batch.num_tokens(), logits_buffer_, nullptr};
  ComputeAngles(whole);
  ExecuteAll(body_, 0, whole);
  for (int b = 0; b < batch.num_sequences(); ++b) {  // the rows that end here; of the others see below
    is_finite[b] = std::all_of(taken_over_.begin(), taken_over_.end(), [&](int buffer) {
      return whole.AreFinite(buffer, batch.query_start[b], batch.query_start[b + 1] - batch.num_wanted[b]);
    });
  }
  const WantedRows& wanted = workspace.wanted_;
  if (wanted.count() == 0) return {};
  MoveUp(whole);
  BatchView rest = batch;
  rest.query_start = wanted.query_start();
  ExecuteAll(tail_, body_.size(), {&rest, &kv, pool, workspace, buffers_, wanted.count(), logits_buffer_, nullptr});
  for (int b = 0; b < batch.num_sequences(); ++b) {
    is_finite[b] &= whole.AreFinite(hidden_buffer_, wanted.query_start()[b], wanted.query_start()[b + 1]);
  }
  return {};
}

void Program::MoveUp(const Context& context) const {
  const std::span<const int32_t> rows = context.workspace.wanted_.rows();
  for (const int buffer : taken_over_) {
    const size_t row_bytes = buffers_[buffer].row_bytes();
    for (int place = 0; place < static_cast<int>(rows.size()); ++place) {  // upwards, so that nothing is overwritten
      if (rows[place] == place) continue;
      std::memcpy(context.FloatRow(buffer, place), context.FloatRow(buffer, rows[place]), row_bytes);
    }
  }
}

std::string Program::Head(std::span<const int32_t> rows, ThreadPool& pool, Workspace& workspace, float* logits) const {
  const std::string misfit = Misfit(pool, workspace);
  if (!misfit.empty()) return misfit;
  const int num_rows = static_cast<int>(rows.size());
  if (num_rows > workspace.max_sequences_) return "too many rows at once";
  for (int32_t row : rows) {
    if (row < 0 || row >= workspace.wanted_.num_batch_rows()) return "a row is not of the last run";
    if (workspace.wanted_.PlaceOf(row) < 0) return "a row was not wanted of the last run";
  }
  const Context context{nullptr, nullptr, pool, workspace, buffers_, num_rows, logits_buffer_, logits};
  for (int i = 0; i < num_rows; ++i) {
    const int place = workspace.wanted_.PlaceOf(rows[i]);
    std::memcpy(context.FloatRow(head_input_buffer_, i), context.FloatRow(hidden_buffer_, place),
                shape_.hidden_size * sizeof(float));
  }
  ExecuteAll(head_, body_.size() + tail_.size(), context);
  return {};
}

const float* Program::hidden(const Workspace& workspace) const {
  if (workspace.needs_ != needs_) return nullptr;
  return reinterpret_cast<const float*>(workspace.arena_.data() + buffers_[hidden_buffer_].offset * workspace.max_tokens_);
}

void Program::ExecuteAll(const std::vector<Operation>& operations, size_t first, const Context& context) const {
  std::vector<double>& seconds = context.workspace.operation_seconds_;
  if (seconds.empty()) {
    for (const Operation& op : operations) Execute(op, context);
    return;
  }
  for (const Operation& op : operations) {
    const auto started = std::chrono::steady_clock::now();
    Execute(op, context);
    seconds[first++] += std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }
}

void Program::Execute(const Operation& op, const Context& context) const {
  switch (op.kind) {
    case OpKind::kEmbed: return Embed(op, context);
    case OpKind::kNorm:
    case OpKind::kNormAdd:
    case OpKind::kQuantize: return Norm(op, context);
    case OpKind::kMatmul: return Matmul(op, context);
    case OpKind::kRotateStore: return RotateStore(op, context);
    case OpKind::kAttention: return Attention(op, context);
    case OpKind::kGate: return Gate(op, context);
    case OpKind::kScale: return Scale(op, context);
  }
}

void Program::ComputeAngles(const Context& context) const {
  const int max_tokens = context.workspace.max_tokens_;
  float* const angles = reinterpret_cast<float*>(context.workspace.angles_.data());
  ForRows(context.pool, context.num_rows, [&](int row, int) {
    float* table = angles;
    for (const Rope& rope : ropes_) {
      const int half = rope.rotary_dim / 2;
      float* cosines = table + static_cast<size_t>(row) * half;
      float* sines = cosines + static_cast<size_t>(max_tokens) * half;
      for (int i = 0; i < half; ++i) {
        // the product is rounded to f32 first, as the models were trained
        const float angle = static_cast<float>(context.batch->positions[row]) * rope.frequencies[i];
        cosines[i] = std::cos(angle) * rope.attention_factor;
        sines[i] = std::sin(angle) * rope.attention_factor;
      }
      table += static_cast<size_t>(max_tokens) * rope.rotary_dim;
    }
  });
}

void Program::Embed(const Operation& op, const Context& context) const {
  const PackedMatrix& matrix = matrices_[op.matrix];
  ForRows(context.pool, context.num_rows, [&](int row, int) {
    float* out = context.FloatRow(op.output, row);
    UnpackRow(matrix, context.batch->input_ids[row], out);
    if (op.scale != 1.0f) {
      for (int i = 0; i < matrix.num_columns; ++i) out[i] *= op.scale;
    }
  });
}

void Program::Norm(const Operation& op, const Context& context) const {
  const int width = buffers_[op.input].width;
  const bool is_quantized = buffers_[op.output].is_quantized;
  const float* weight = op.vector >= 0 ? vectors_[op.vector].data() : nullptr;
  ForRows(context.pool, context.num_rows, [&](int row, int thread) {
    const float* x = context.FloatRow(op.input, row);
    if (op.kind == OpKind::kQuantize) {
      kernels_.quantize_row(x, width, context.QuantizedRowAt(op.output, row));
    } else if (op.kind == OpKind::kNormAdd) {
      float* normed = context.FloatRow(op.input, row);  // the input is not needed after this
      kernels_.norm_row(x, weight, op.eps, width, normed);
      float* out = context.FloatRow(op.output, row);
      for (int i = 0; i < width; ++i) out[i] += op.scale * normed[i];
    } else if (is_quantized) {
      float* normed = reinterpret_cast<float*>(context.workspace.scratch_[thread]->data());
      kernels_.norm_row(x, weight, op.eps, width, normed);
      kernels_.quantize_row(normed, width, context.QuantizedRowAt(op.output, row));
    } else {
      kernels_.norm_row(x, weight, op.eps, width, context.FloatRow(op.output, row));
    }
  });
}

void Program::Matmul(const Operation& op, const Context& context) const {
  const PackedMatrix& matrix = matrices_[op.matrix];
  const bool is_quantized = buffers_[op.input].is_quantized;
  MatmulTask task{};
  task.weight = &matrix;
  task.num_rows = context.num_rows;
  if (is_quantized) {
    const QuantizedRow first = context.QuantizedRowAt(op.input, 0);
    task.quantized = {first.values, first.scale, first.scaled_sum, matrix.num_groups()};
  } else {
    task.x = context.Floats(op.input);
    task.x_stride = buffers_[op.input].width;
  }
  task.bias = op.vector >= 0 ? vectors_[op.vector].data() : nullptr;
  task.epilogue = op.epilogue;
  task.scale = op.scale;
  task.out = context.Floats(op.output);
  task.out_stride = buffers_[op.output].width;

  Multiply(kernels_, task, tunings_[op.matrix][RowClass(context.num_rows)], context.pool);
}

void Program::RotateStore(const Operation& op, const Context& context) const {
  const RotaryTask task{
      .num_heads = shape_.num_heads,
      .num_kv_heads = shape_.num_kv_heads,
      .head_dim = shape_.head_dim,
      .rotary_dim = ropes_[op.rope].rotary_dim,
      .query_scale = op.scale,
      .norm_eps = op.eps,
      .norm_whole = op.norm_whole,
      .query_norm = op.vector >= 0 ? vectors_[op.vector].data() : nullptr,
      .key_norm = op.second_vector >= 0 ? vectors_[op.second_vector].data() : nullptr,
  };
  const size_t max_tokens = context.workspace.max_tokens_;
  const float* table = reinterpret_cast<const float*>(context.workspace.angles_.data());
  for (int rope = 0; rope < op.rope; ++rope) table += max_tokens * ropes_[rope].rotary_dim;
  const size_t half = task.rotary_dim / 2;
  const KvView kv = context.kv->layer(op.layer);
  ForRows(context.pool, context.num_rows, [&](int row, int) {
    const float* cosines = table + row * half;
    kernels_.rotate_and_store(task, kv, context.batch->slot_mapping[row], cosines, cosines + max_tokens * half,
                              context.FloatRow(op.input, row));
  });
  const std::span<const int32_t> rows = context.batch->joined_rows;
  if (rows.empty()) return;
  ForRows(context.pool, static_cast<int>(rows.size()), [&](int index, int) {
    kernels_.store_row(task, kv, context.batch->joined_slots[index], context.FloatRow(op.input, rows[index]));
  });
}

void Program::Attention(const Operation& op, const Context& context) const {
  const BatchView& batch = *context.batch;
  Workspace& workspace = context.workspace;
  const AttentionTask task{
      .queries = context.Floats(op.input),
      .query_stride = static_cast<size_t>(buffers_[op.input].width),
      .out = context.Floats(op.output),
      .query_start = batch.query_start.data(),
      .seq_lens = batch.seq_lens.data(),
      .block_tables = batch.block_tables.data(),
      .max_blocks = batch.max_blocks(),
      .num_heads = shape_.num_heads,
      .window = op.window,
      .soft_cap = op.soft_cap,
      .kv = context.kv->layer(op.layer),
  };
  const size_t least_whole = static_cast<size_t>(kUnitsPerThread) * context.pool.num_threads();
  const std::vector<AttentionUnit>& units = workspace.units_;
  const bool is_split =
      PlanAttention(task, batch.num_sequences(), least_whole, &workspace.units_, &workspace.first_part_);
  const auto scratch_of = [&](int thread) { return reinterpret_cast<float*>(workspace.scratch_[thread]->data()); };
  context.pool.Run(static_cast<int>(units.size()), [&](int index, int thread) {
    float* scratch = scratch_of(thread);
    if (is_split) return kernels_.attend_unit(task, units[index], scratch, &workspace.partials_[index]);
    AttentionPartial total;
    total.values = scratch + AttentionScratchFloats(shape_.head_dim);
    kernels_.attend_unit(task, units[index], scratch, &total);
    kernels_.finish_unit(task, units[index], &total, nullptr, 0);
  });
  if (!is_split) return;
  const std::vector<int32_t>& first_part = workspace.first_part_;
  for (size_t whole = 0; whole + 1 < first_part.size(); ++whole) {
    const int first = first_part[whole], num_more = first_part[whole + 1] - first - 1;
    kernels_.finish_unit(task, units[first], &workspace.partials_[first], &workspace.partials_[first + 1], num_more);
  }
}

void Program::Gate(const Operation& op, const Context& context) const {
  const int width = buffers_[op.output].width;
  ForRows(context.pool, context.num_rows, [&](int row, int) {
    float* gate = context.FloatRow(op.input, row);
    if (!buffers_[op.output].is_quantized) {
      kernels_.gate_row(gate, gate + width, op.activation, width, context.FloatRow(op.output, row));
      return;
    }
    kernels_.gate_row(gate, gate + width, op.activation, width, gate);
    kernels_.quantize_row(gate, width, context.QuantizedRowAt(op.output, row));
  });
}

void Program::Scale(const Operation& op, const Context& context) const {
  const int width = buffers_[op.output].width;
  ForRows(context.pool, context.num_rows, [&](int row, int) {
    float* out = context.FloatRow(op.output, row);
    for (int i = 0; i < width; ++i) {
      out[i] = op.soft_cap > 0.0f ? op.soft_cap * std::tanh(out[i] * op.scale / op.soft_cap) : out[i] * op.scale;
    }
  });
}

}  // namespace headrace
