#include "operation_check.h"

#include <string>

namespace headrace {
namespace {

class Check {
 public:
  Check(const OperationScope& scope, const Operation& op) : scope_(scope), op_(op) {}

  void All() const {
    CheckBuffers();
    switch (op_.kind) {
      case OpKind::kEmbed: return Embed();
      case OpKind::kNorm: return Norm();
      case OpKind::kNormAdd: return NormAdd();
      case OpKind::kQuantize: return Quantize();
      case OpKind::kMatmul: return Matmul();
      case OpKind::kRotateStore: return RotateStore();
      case OpKind::kAttention: return Attention();
      case OpKind::kGate: return Gate();
      case OpKind::kScale: return Needs(!Output().is_quantized, "wrong buffer");
    }
    Needs(false, "unknown");
  }

 private:
  void Needs(bool condition, const char* problem) const {
    if (condition) return;
    RequireArgument(false, "operation of kind " + std::to_string(static_cast<int>(op_.kind)) + ": " + problem);
  }
  static bool InRange(int id, size_t size) { return id >= 0 && static_cast<size_t>(id) < size; }

  const Buffer& Input() const { return scope_.buffers[op_.input]; }
  const Buffer& Output() const { return scope_.buffers[op_.output]; }
  int64_t QkvWidth() const {
    const Shape& shape = scope_.shape;
    return static_cast<int64_t>(shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  }
  bool IsFloat(const Buffer& buffer) const { return !buffer.is_quantized; }
  bool HasVector(int id, int64_t size) const {
    return InRange(id, scope_.vectors.size()) && static_cast<int64_t>(scope_.vectors[id].size()) == size;
  }
  bool HasVectorOrNone(int id, int64_t size) const { return id == -1 || HasVector(id, size); }

  void CheckBuffers() const {
    Needs(InRange(op_.output, scope_.buffers.size()), "no such output buffer");
    const bool has_input = op_.kind != OpKind::kEmbed && op_.kind != OpKind::kScale;
    Needs(!has_input || InRange(op_.input, scope_.buffers.size()), "no such input buffer");
    Needs(op_.output != scope_.logits_buffer || op_.kind == OpKind::kMatmul || op_.kind == OpKind::kScale,
          "cannot write logits");
    Needs(!has_input || op_.input != scope_.logits_buffer, "cannot read logits");
  }

  void Embed() const {
    Needs(InRange(op_.matrix, scope_.matrices.size()), "no such matrix");
    const PackedMatrix& matrix = scope_.matrices[op_.matrix];
    Needs(matrix.num_rows == scope_.shape.vocab_size && matrix.num_columns == Output().width && IsFloat(Output()),
          "the matrix does not fit");
  }

  void Norm() const {
    Needs(IsFloat(Input()) && Input().width == Output().width, "widths differ");
    Needs(HasVector(op_.vector, Input().width), "wrong vector");
  }

  void NormAdd() const {
    Needs(IsFloat(Input()) && IsFloat(Output()) && Input().width == Output().width, "widths differ");
    Needs(HasVector(op_.vector, Input().width), "wrong vector");
  }

  void Quantize() const {
    Needs(IsFloat(Input()) && Output().is_quantized && Input().width == Output().width, "wrong buffers");
  }

  void Matmul() const {
    Needs(InRange(op_.matrix, scope_.matrices.size()), "no such matrix");
    const PackedMatrix& matrix = scope_.matrices[op_.matrix];
    Needs(Input().width == matrix.num_columns && Output().width == matrix.num_rows && IsFloat(Output()),
          "the matrix does not fit its buffers");
    Needs(Input().is_quantized == IsQuantized(matrix.format), "quantised weights take quantised input, others do not");
    Needs(HasVectorOrNone(op_.vector, matrix.num_rows), "wrong vector");
  }

  void RotateStore() const {
    const Shape& shape = scope_.shape;
    Needs(Input().width == QkvWidth() && op_.output == op_.input && IsFloat(Input()),
          "works in place on a buffer of queries, keys and values");
    Needs(InRange(op_.layer, shape.num_layers) && InRange(op_.rope, scope_.ropes.size()), "no such layer or rope");
    Needs(HasVectorOrNone(op_.vector, int64_t{op_.norm_whole ? shape.num_heads : 1} * shape.head_dim), "wrong vector");
    Needs(HasVectorOrNone(op_.second_vector, int64_t{op_.norm_whole ? shape.num_kv_heads : 1} * shape.head_dim),
          "wrong vector");
  }

  void Attention() const {
    const Shape& shape = scope_.shape;
    Needs(Input().width == QkvWidth() && Output().width == int64_t{shape.num_heads} * shape.head_dim &&
              IsFloat(Input()) && IsFloat(Output()),
          "wrong buffers");
    Needs(InRange(op_.layer, shape.num_layers) && op_.window >= 0, "no such layer, or a wrong window");
  }

  void Gate() const { Needs(IsFloat(Input()) && Input().width == int64_t{2} * Output().width, "widths differ"); }

  const OperationScope& scope_;
  const Operation& op_;
};

}  // namespace

void CheckOperation(const OperationScope& scope, const Operation& op) { Check(scope, op).All(); }

}  // namespace headrace
