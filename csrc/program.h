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
#include "kv_view.h"
#include "packed_matrix.h"
#include "thread_pool.h"

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

struct Shape {
  int32_t vocab_size, hidden_size;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t num_layers;
};

// The arrays of core.forward_batch.ForwardBatch.
struct BatchView {
  std::span<const int32_t> input_ids, positions, slot_mapping;  // [T]
  std::span<const int32_t> query_start;                         // [B + 1]
  std::span<const int32_t> seq_lens;                            // [B]
  std::span<const int32_t> block_tables;                        // [B, M]

  int num_tokens() const { return static_cast<int>(input_ids.size()); }
  int num_sequences() const { return static_cast<int>(seq_lens.size()); }
  int max_blocks() const { return num_sequences() == 0 ? 0 : static_cast<int>(block_tables.size()) / num_sequences(); }
};

// Zeroed memory aligned for vector loads; pages are only taken when they are first written.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t num_bytes);
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return num_bytes_; }

 private:
  void* mapped_;
  size_t mapped_bytes_;
  uint8_t* data_;  // the first aligned byte of what is mapped
  size_t num_bytes_;
};

// Keys and values of all layers.
class KvMemory {
 public:
  KvMemory(const Shape& shape, KvFormat format, int num_blocks, int block_size);

  const Shape& shape() const { return shape_; }
  KvFormat format() const { return format_; }
  int num_blocks() const { return num_blocks_; }
  int block_size() const { return block_size_; }
  size_t num_bytes() const { return bytes_.size(); }
  KvView layer(int index) const;
  // Zeroes what a slot holds in every layer: a sequence that went wrong must leave no NaN behind.
  void ClearSlot(int slot);
  // Bytes of one block in all layers, scales included: what a copy of it takes elsewhere.
  size_t block_bytes() const;
  // Copies a block's content to block_bytes() bytes, and back into a block of a memory of the same kind.
  void CopyOut(int block, uint8_t* content) const;
  void CopyIn(int block, const uint8_t* content);

 private:
  // Calls part(bytes, num_bytes) for every piece of a block: keys, values and scales of each layer, in a fixed order.
  template <typename Part>
  void EachPart(int block, const Part& part) const;

  Shape shape_;
  KvFormat format_;
  int num_blocks_, block_size_;
  size_t elements_per_layer_, scales_per_layer_;
  AlignedBytes bytes_;
};

class Program;

// What a program asks of the workspace it runs in.
struct WorkspaceNeeds {
  size_t arena_row_bytes = 0;
  size_t angle_row_floats = 0;
  size_t scratch_bytes = 0;
  size_t attention_units_per_row = 0;
  size_t head_dim = 0;
  size_t num_operations = 0;  // of body and head

  bool operator==(const WorkspaceNeeds&) const = default;
};

// Everything a run writes besides the KV memory. One run at a time.
class Workspace {
 public:
  Workspace(const Program& program, int max_tokens, int max_sequences, int num_threads, int max_context);

  int max_tokens() const { return max_tokens_; }
  int max_sequences() const { return max_sequences_; }
  size_t num_bytes() const;

  // From now on runs add up how long each operation takes, at the cost of two clock reads for each.
  void StartTiming();
  // Seconds of each operation since then, those of the body before those of the head; empty if never started.
  std::span<const double> operation_seconds() const { return operation_seconds_; }

 private:
  friend class Program;
  int max_tokens_, max_sequences_;
  std::vector<double> operation_seconds_;
  WorkspaceNeeds needs_;                    // of the program it was made for
  int num_hidden_rows_ = 0;                 // rows of the last run that `head` may ask for
  AlignedBytes arena_;
  AlignedBytes angles_;                     // per rope: cosines then sines, [max_tokens, rotary_dim / 2] each
  std::vector<std::unique_ptr<AlignedBytes>> scratch_;  // one per thread
  std::vector<AttentionUnit> units_;        // capacity reserved
  std::vector<int32_t> first_part_;         // capacity reserved
  std::vector<AttentionPartial> partials_;  // fixed size
  AlignedBytes partial_values_;
};

class Program {
 public:
  // Takes descriptions and checks them; `matrices` point into memory that outlives the program. `tunings` has one
  // entry per matrix, or none: then products are cut up as the kernels propose. Throws std::invalid_argument naming
  // what does not fit.
  Program(Shape shape, std::vector<Operation> body, std::vector<Operation> head, std::vector<Buffer> buffers,
          std::vector<PackedMatrix> matrices, std::vector<std::vector<float>> vectors, std::vector<Rope> ropes,
          int hidden_buffer, int head_input_buffer, int logits_buffer, const Kernels& kernels = BestKernels(),
          std::vector<MatmulTunings> tunings = {});

  const Shape& shape() const { return shape_; }
  const char* kernels() const { return kernels_.name; }
  const WorkspaceNeeds& needs() const { return needs_; }

  // Computes the batch: writes its keys and values, leaves the hidden states in the workspace and says of each
  // sequence whether all of them are finite, [B]. Returns an empty string, or what is wrong with an argument
  // (then nothing has been written).
  std::string Run(const BatchView& batch, const KvMemory& kv, ThreadPool& pool, Workspace& workspace,
                  std::span<uint8_t> is_finite) const;

  // Logits [rows.size(), vocab_size] of rows of the last run. At most workspace.max_sequences() rows.
  std::string Head(std::span<const int32_t> rows, ThreadPool& pool, Workspace& workspace, float* logits) const;

  // The hidden states of the last run, [num_tokens, hidden_size]; null if the workspace was made for another program.
  const float* hidden(const Workspace& workspace) const;

 private:
  struct Context;  // what one run's operations share

  void CheckOperation(const Operation& op) const;
  // What keeps the program from running with these, or an empty string.
  std::string Misfit(const ThreadPool& pool, const Workspace& workspace) const;
  // Executes `operations`, the first of which is the program's operation `first` (the head's follow the body's).
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
  void CheckFinite(const Context& context, std::span<uint8_t> is_finite) const;

  Shape shape_;
  std::vector<Operation> body_, head_;
  std::vector<Buffer> buffers_;
  std::vector<PackedMatrix> matrices_;
  std::vector<MatmulTunings> tunings_;  // of each matrix
  std::vector<std::vector<float>> vectors_;
  std::vector<Rope> ropes_;
  int hidden_buffer_, head_input_buffer_, logits_buffer_;
  const Kernels& kernels_;
  WorkspaceNeeds needs_;
};

}  // namespace headrace
