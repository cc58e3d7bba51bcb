#include "program.h"

#include <algorithm>

#include "multiply.h"
#include "operation_check.h"

namespace headrace {
namespace {
constexpr int kMaxSize = 1 << 24;  // of anything a shape counts

constexpr size_t RoundUp(size_t value) { return CeilDiv(value, kAlignment) * kAlignment; }
}  // namespace

Program::Program(Shape shape, std::vector<Operation> body, std::vector<Operation> tail, std::vector<Operation> head,
                 std::vector<Buffer> buffers, std::vector<PackedMatrix> matrices,
                 std::vector<std::vector<float>> vectors, std::vector<Rope> ropes, int hidden_buffer,
                 int head_input_buffer, int logits_buffer, const Kernels& kernels, std::vector<MatmulTunings> tunings)
    : shape_(shape),
      body_(std::move(body)),
      tail_(std::move(tail)),
      head_(std::move(head)),
      buffers_(std::move(buffers)),
      matrices_(std::move(matrices)),
      tunings_(std::move(tunings)),
      vectors_(std::move(vectors)),
      ropes_(std::move(ropes)),
      hidden_buffer_(hidden_buffer),
      head_input_buffer_(head_input_buffer),
      logits_buffer_(logits_buffer),
      kernels_(kernels) {
  CheckShape();
  CheckBuffers();
  CheckOperations();
  taken_over_ = BuffersTakenOver();
  if (tunings_.empty()) tunings_.assign(matrices_.size(), kernels_.matmul_tunings);
  CheckWeights();
  needs_ = Needs();
}

void Program::CheckShape() const {
  const auto sizes = {shape_.vocab_size, shape_.hidden_size,  shape_.num_layers,
                      shape_.num_heads,  shape_.num_kv_heads, shape_.head_dim};
  RequireArgument(std::min(sizes) > 0, "every size of the shape must be positive");
  RequireArgument(std::max(sizes) <= kMaxSize, "a size of the shape is above " + std::to_string(kMaxSize));
  RequireArgument(shape_.num_heads % shape_.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
  RequireArgument(shape_.head_dim % kPositionLanes == 0,
                  "head_dim is " + std::to_string(shape_.head_dim) + " but must be a multiple of 16");
  for (const Rope& rope : ropes_) {
    RequireArgument(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= shape_.head_dim &&
                        rope.frequencies.size() * 2 == static_cast<size_t>(rope.rotary_dim),
                    "a rope's dimension and frequencies do not agree");
  }
}

void Program::CheckBuffers() const {
  const int num_buffers = static_cast<int>(buffers_.size());
  for (int id : {hidden_buffer_, head_input_buffer_, logits_buffer_}) {
    RequireArgument(id >= 0 && id < num_buffers && !buffers_[id].is_quantized,
                    "a named buffer is missing or quantised");
  }
  RequireArgument(buffers_[hidden_buffer_].width == shape_.hidden_size &&
                      buffers_[head_input_buffer_].width == shape_.hidden_size &&
                      buffers_[logits_buffer_].width == shape_.vocab_size,
                  "the hidden, head input and logits buffers must have the shape's widths");
  for (const Buffer& buffer : buffers_) {
    RequireArgument(buffer.width > 0 && buffer.offset % kAlignment == 0 && buffer.offset < kMaxBytes,
                    "a buffer's width or offset is wrong");
  }
}

void Program::CheckOperations() const {
  const OperationScope scope{shape_, buffers_, matrices_, vectors_, ropes_, logits_buffer_};
  for (const Operation& op : body_) {
    CheckOperation(scope, op);
    RequireArgument(op.output != logits_buffer_, "the body cannot write logits");
  }
  for (const Operation& op : tail_) {
    CheckOperation(scope, op);
    RequireArgument(op.output != logits_buffer_, "the tail cannot write logits");
    RequireArgument(op.kind != OpKind::kEmbed && op.kind != OpKind::kRotateStore,
                    "the tail has not every row of the batch, and writes no keys and values");
  }
  for (const Operation& op : head_) {
    CheckOperation(scope, op);
    RequireArgument(op.kind != OpKind::kEmbed && op.kind != OpKind::kRotateStore && op.kind != OpKind::kAttention,
                    "the head cannot use the batch");
  }
}

void Program::CheckWeights() const {
  for (const PackedMatrix& matrix : matrices_) {
    RequireArgument(matrix.num_rows > 0 && matrix.num_columns > 0 && matrix.data != nullptr &&
                        reinterpret_cast<uintptr_t>(matrix.data) % kAlignment == 0,
                    "a matrix is empty or not aligned to 64 bytes");
  }
  RequireArgument(tunings_.size() == matrices_.size(), "there must be a tuning for each matrix, or none");
  for (const MatmulTunings& of_matrix : tunings_) {
    for (const MatmulTuning& tuning : of_matrix) {
      const std::string problem = TuningProblem(tuning, kernels_);
      RequireArgument(problem.empty(), problem);
    }
  }
}

std::vector<int> Program::BuffersTakenOver() const {
  std::vector<int> taken{hidden_buffer_};
  std::vector<bool> is_known(buffers_.size());  // taken over, or written by the tail itself
  is_known[hidden_buffer_] = true;
  const auto use = [&](int buffer) {
    if (buffer < 0 || is_known[buffer]) return;
    RequireArgument(!buffers_[buffer].is_quantized, "the tail cannot use quantised values of the body");
    is_known[buffer] = true;
    taken.push_back(buffer);
  };
  for (const Operation& op : tail_) {
    use(op.input);
    const bool adds = op.kind == OpKind::kNormAdd || op.kind == OpKind::kScale ||
                      (op.kind == OpKind::kMatmul && op.epilogue == Epilogue::kAdd);
    if (adds) use(op.output);
    is_known[op.output] = true;
  }
  return taken;
}

WorkspaceNeeds Program::Needs() const {
  WorkspaceNeeds needs;
  needs.head_dim = shape_.head_dim;
  needs.num_operations = body_.size() + tail_.size() + head_.size();
  needs.attention_units_per_row =
      shape_.num_kv_heads * CeilDiv(shape_.num_heads / shape_.num_kv_heads, kMaxQueries);
  for (const Rope& rope : ropes_) needs.angle_row_floats += rope.rotary_dim;
  needs.scratch_bytes = AttentionScratchFloats(shape_.head_dim) * sizeof(float) +
                        kMaxQueries * shape_.head_dim * sizeof(float);  // and a total for units that are not split
  for (size_t id = 0; id < buffers_.size(); ++id) {
    const Buffer& buffer = buffers_[id];
    // a row on its way to being quantised
    if (buffer.is_quantized) needs.scratch_bytes = std::max(needs.scratch_bytes, RoundUp(buffer.width * sizeof(float)));
    if (static_cast<int>(id) == logits_buffer_) continue;  // written where the caller says
    needs.arena_row_bytes = std::max(needs.arena_row_bytes, buffer.offset + RoundUp(buffer.row_bytes()));
  }
  return needs;
}

}  // namespace headrace
