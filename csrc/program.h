// A model as a list of operations over buffers, compiled once and run whole: one call per step.
//
// A Program is constant after it is built, and everything in it has been checked against everything else, so
// that running needs no checks beyond those of its arguments. What changes lives in the arguments: the batch,
// the KV memory and the Workspace. Run allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_memory.h"
#include "packed_matrix.h"
#include "shape.h"
#include "thread_pool.h"
#include "workspace.h"

namespace headrace {

enum class OpKind : int32_t {
  kEmbed = 0,       // output = scale * row of `matrix` of each token id
  kNorm = 1,        // output (float or quantised) = rms norm of input, times `vector`
  kNormAdd = 2,     // output += scale * rms norm of input
  kQuantize = 3,    // output (quantised) = input
  kMatmul = 4,      // output = or += input x `matrix`, see Epilogue; bias is `vector`
  kRotateStore = 5, // queries and keys of input rotated, keys and values into the cache of `layer`
  kAttention = 6,   // output = attention of the queries in input over the cache of `layer`
  kGate = 7,        // output (float or quantised) = activation(first half of input) * second half
  kScale = 8,       // output = soft_cap * tanh(scale * output / soft_cap), or without a cap scale * output
};

struct Operation {
  OpKind kind;
  int32_t input = -1;   // buffer
  int32_t output = -1;  // buffer
  int32_t matrix = -1;
  int32_t vector = -1;
  int32_t second_vector = -1;  // kRotateStore: norm of the keys; `vector` is that of the queries
  int32_t layer = -1;
  int32_t rope = -1;
  int32_t window = 0;
  Epilogue epilogue = Epilogue::kStore;
  Activation activation = Activation::kSilu;
  bool norm_whole = false;
  float scale = 1.0f;
  float eps = 0.0f;
  float soft_cap = 0.0f;
};

// A value per token. A quantised one has `width` int8 values, padded to groups, with their scales and sums.
struct Buffer {
  bool is_quantized;
  int32_t width;
  size_t offset;  // into the arena, in bytes per token row

  int num_groups() const { return static_cast<int>(CeilDiv(width, kGroupColumns)); }
  size_t row_bytes() const {
    return is_quantized ? num_groups() * (kGroupColumns + 2 * sizeof(float)) : width * sizeof(float);
  }
};

struct Rope {
  int32_t rotary_dim;
  float attention_factor;            // on cosines and sines
  std::vector<float> frequencies;    // [rotary_dim / 2], radians per position
};

// The arrays of core.forward_batch.ForwardBatch.
struct BatchView {
  std::span<const int32_t> input_ids, positions, slot_mapping;  // [T]
  std::span<const int32_t> query_start;                         // [B + 1]
  std::span<const int32_t> seq_lens;                            // [B]
  std::span<const int32_t> block_tables;                        // [B, M]
  std::span<const int32_t> num_wanted;                          // [B]
  std::span<const int32_t> joined_rows, joined_slots;           // [J]

  int num_tokens() const { return static_cast<int>(input_ids.size()); }
  int num_sequences() const { return static_cast<int>(seq_lens.size()); }
  int max_blocks() const { return num_sequences() == 0 ? 0 : static_cast<int>(block_tables.size()) / num_sequences(); }
};

class Program {
 public:
  // Takes descriptions and checks them; `matrices` point into memory that outlives the program. `body` is for every
  // token of a batch, `tail` for the rows whose hidden states are wanted, `head` for those that need logits. `tunings`
  // has one entry per matrix, or none: then products are cut up as the kernels propose. Throws std::invalid_argument
  // naming what does not fit.
  Program(Shape shape, std::vector<Operation> body, std::vector<Operation> tail, std::vector<Operation> head,
          std::vector<Buffer> buffers, std::vector<PackedMatrix> matrices, std::vector<std::vector<float>> vectors,
          std::vector<Rope> ropes, int hidden_buffer, int head_input_buffer, int logits_buffer,
          const Kernels& kernels = BestKernels(), std::vector<MatmulTunings> tunings = {});

  const Shape& shape() const { return shape_; }
  const char* kernels() const { return kernels_.name; }
  const WorkspaceNeeds& needs() const { return needs_; }

  // Computes the batch: writes its keys and values, leaves the wanted hidden states in the workspace and says of each
  // sequence whether all that was computed is finite, [B]. Returns an empty string, or what is wrong with an argument
  // (then nothing has been written).
  std::string Run(const BatchView& batch, const KvMemory& kv, ThreadPool& pool, Workspace& workspace,
                  std::span<uint8_t> is_finite) const;

  // Logits [rows.size(), vocab_size] of wanted rows of the last run. At most workspace.max_sequences() rows.
  std::string Head(std::span<const int32_t> rows, ThreadPool& pool, Workspace& workspace, float* logits) const;

  // The wanted hidden states of the last run, [rows, hidden_size]; null if the workspace was made for another program.
  const float* hidden(const Workspace& workspace) const;

 private:
  struct Context;  // what one run's operations share

  // Each throws std::invalid_argument naming what does not fit.
  void CheckShape() const;
  void CheckBuffers() const;
  void CheckWeights() const;
  void CheckOperations() const;
  std::vector<int> BuffersTakenOver() const;
  WorkspaceNeeds Needs() const;
  // What keeps the program from running with these, or an empty string.
  std::string Misfit(const ThreadPool& pool, const Workspace& workspace) const;
  std::string SizeProblem(const BatchView& batch, const KvMemory& kv, const ThreadPool& pool,
                          const Workspace& workspace) const;
  std::string BatchProblem(const BatchView& batch, const KvMemory& kv) const;
  std::string LengthProblem(const BatchView& batch, const ThreadPool& pool, const Workspace& workspace) const;
  // What the tail finds of the wanted rows, moved up so that they lie side by side.
  void MoveUp(const Context& context) const;
  // Executes `operations`, the first of which is the program's operation `first`, in the order body, tail, head.
  void ExecuteAll(const std::vector<Operation>& operations, size_t first, const Context& context) const;
  void Execute(const Operation& op, const Context& context) const;
  void Embed(const Operation& op, const Context& context) const;
  void Norm(const Operation& op, const Context& context) const;
  void Matmul(const Operation& op, const Context& context) const;
  void RotateStore(const Operation& op, const Context& context) const;
  void Attention(const Operation& op, const Context& context) const;
  void Gate(const Operation& op, const Context& context) const;
  void Scale(const Operation& op, const Context& context) const;
  void ComputeAngles(const Context& context) const;

  Shape shape_;
  std::vector<Operation> body_, tail_, head_;
  std::vector<Buffer> buffers_;
  std::vector<PackedMatrix> matrices_;
  std::vector<MatmulTunings> tunings_;  // of each matrix
  std::vector<std::vector<float>> vectors_;
  std::vector<Rope> ropes_;
  int hidden_buffer_, head_input_buffer_, logits_buffer_;
  std::vector<int> taken_over_;  // buffers with values of the body that the tail uses, the hidden states among them
  const Kernels& kernels_;
  WorkspaceNeeds needs_;
};

}  // namespace headrace
