// A two-layer model that uses every kind of operation, as a Program, and an engine to run it step by step.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>

#include "../program.h"
#include "weights.h"

namespace headrace::tests {

constexpr int kVocab = 67, kHidden = 40, kHeads = 6, kKvHeads = 2, kHeadDim = 16, kInner = 56, kLayers = 2;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kAttended = kHeads * kHeadDim;
constexpr float kEps = 1e-5f, kQueryScale = 0.3f, kResidualScale = 0.7f, kEmbeddingScale = 1.5f, kFinalCap = 4.0f;
constexpr int kWindow = 9;             // of layer 0
constexpr float kAttentionCap = 3.0f;  // of layer 1

// A layer's weights. Layer 0: SiLU, window, whole heads turn, queries and keys normed head by head.
// Layer 1: tanh GELU, soft cap, half of each head turns, norms over all heads, and norms after its blocks.
struct TinyLayer {
  OwnedMatrix qkv, output, gate_up, down;
  std::vector<float> qkv_bias, query_norm, key_norm, attention_norm, feed_forward_norm, post_norm;
};

struct TinyModel {
  OwnedMatrix embedding, head;
  std::vector<TinyLayer> layers;
  std::vector<float> final_norm;
  std::vector<Rope> ropes;

  TinyModel(WeightFormat format, unsigned seed) : TinyModel(format, Random(seed)) {}

 private:
  TinyModel(WeightFormat format, Random random)
      : embedding(RandomMatrix(WeightFormat::kF32, kVocab, kHidden, random)),
        head(RandomMatrix(format, kVocab, kHidden, random)),
        final_norm(Normals(random, kHidden)),
        ropes{{kHeadDim, 1.0f, {}}, {kHeadDim / 2, 1.1f, {}}} {
    for (Rope& rope : ropes) {
      for (int i = 0; i < rope.rotary_dim / 2; ++i)
        rope.frequencies.push_back(std::pow(100.0f, -2.0f * i / rope.rotary_dim));
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      const bool norms_whole = layer == 1;
      layers.push_back({RandomMatrix(format, kQkv, kHidden, random), RandomMatrix(format, kHidden, kAttended, random),
                        RandomMatrix(format, 2 * kInner, kHidden, random),
                        RandomMatrix(format, kHidden, kInner, random), Normals(random, kQkv),
                        Normals(random, norms_whole ? kHeads * kHeadDim : kHeadDim),
                        Normals(random, norms_whole ? kKvHeads * kHeadDim : kHeadDim), Normals(random, kHidden),
                        Normals(random, kHidden), Normals(random, kHidden)});
    }
  }
};

// ---- as a program -----------------------------------------------------------------------------------

// What Program's constructor takes, to be built as it is or spoilt first.
struct ProgramParts {
  Shape shape{kVocab, kHidden, kHeads, kKvHeads, kHeadDim, kLayers};
  std::vector<Operation> body, tail, head;
  std::vector<Buffer> buffers;
  std::vector<PackedMatrix> matrices;
  std::vector<std::vector<float>> vectors;
  std::vector<Rope> ropes;
  int hidden_buffer = 0, head_input_buffer = 0, logits_buffer = 0;

  std::unique_ptr<Program> Build(const Kernels& kernels = BestKernels()) const {
    return std::make_unique<Program>(shape, body, tail, head, buffers, matrices, vectors, ropes, hidden_buffer,
                                     head_input_buffer, logits_buffer, kernels);
  }
};

class PartsBuilder {
 public:
  explicit PartsBuilder(const TinyModel& model) : model_(model), is_quantized_(IsQuantized(model.head.shape.format)) {}

  ProgramParts Build() {
    const int hidden = Floats(kHidden), normed = Floats(kHidden), qkv = Floats(kQkv), attended = Floats(kAttended);
    const int gate_up = Floats(2 * kInner), gated = Floats(kInner), block = Floats(kHidden);
    const int normed_int8 = Int8(kHidden), attended_int8 = Int8(kAttended), gated_int8 = Int8(kInner);
    const int normed_in = is_quantized_ ? normed_int8 : normed, attended_in = is_quantized_ ? attended_int8 : attended;
    const int gated_in = is_quantized_ ? gated_int8 : gated;
    listed_->push_back(
        {.kind = OpKind::kEmbed, .output = hidden, .matrix = Matrix(model_.embedding), .scale = kEmbeddingScale});
    for (int index = 0; index < kLayers; ++index) {
      const TinyLayer& layer = model_.layers[index];
      AddNorm(hidden, normed_in, layer.attention_norm);
      AddMatmul(normed_in, qkv, layer.qkv, Vector(layer.qkv_bias), Epilogue::kStore, 1.0f);
      listed_->push_back({.kind = OpKind::kRotateStore,
                             .input = qkv,
                             .output = qkv,
                             .vector = Vector(layer.query_norm),
                             .second_vector = Vector(layer.key_norm),
                             .layer = index,
                             .rope = index,
                             .norm_whole = index == 1,
                             .scale = kQueryScale,
                             .eps = kEps});
      if (index == kLayers - 1) listed_ = &parts_.tail;
      listed_->push_back({.kind = OpKind::kAttention,
                             .input = qkv,
                             .output = attended,
                             .layer = index,
                             .window = index == 0 ? kWindow : 0,
                             .soft_cap = index == 0 ? 0.0f : kAttentionCap});
      if (is_quantized_) listed_->push_back({.kind = OpKind::kQuantize, .input = attended, .output = attended_int8});
      AddBlock(index, attended_in, layer.output, hidden, block);
      AddNorm(hidden, normed_in, layer.feed_forward_norm);
      AddMatmul(normed_in, gate_up, layer.gate_up, -1, Epilogue::kStore, 1.0f);
      listed_->push_back({.kind = OpKind::kGate,
                             .input = gate_up,
                             .output = gated_in,
                             .activation = index == 0 ? Activation::kSilu : Activation::kGeluTanh});
      AddBlock(index, gated_in, layer.down, hidden, block);
    }
    const int head_input = Floats(kHidden), logits = Floats(kVocab);
    parts_.head.push_back({.kind = OpKind::kNorm,
                           .input = head_input,
                           .output = normed_in,
                           .vector = Vector(model_.final_norm),
                           .eps = kEps});
    parts_.head.push_back(
        {.kind = OpKind::kMatmul, .input = normed_in, .output = logits, .matrix = Matrix(model_.head)});
    parts_.head.push_back({.kind = OpKind::kScale, .output = logits, .scale = 0.5f, .soft_cap = kFinalCap});
    parts_.ropes = model_.ropes;
    parts_.hidden_buffer = hidden, parts_.head_input_buffer = head_input, parts_.logits_buffer = logits;
    return parts_;
  }

 private:
  int Add(bool is_quantized, int width) {
    parts_.buffers.push_back({is_quantized, width, next_offset_});
    next_offset_ += CeilDiv(parts_.buffers.back().row_bytes(), 64) * 64;
    return static_cast<int>(parts_.buffers.size()) - 1;
  }
  int Floats(int width) { return Add(false, width); }
  int Int8(int width) { return Add(true, width); }
  int Matrix(const OwnedMatrix& matrix) {
    parts_.matrices.push_back(matrix.shape);
    return static_cast<int>(parts_.matrices.size()) - 1;
  }
  int Vector(const std::vector<float>& values) {
    parts_.vectors.push_back(values);
    return static_cast<int>(parts_.vectors.size()) - 1;
  }
  void AddNorm(int input, int output, const std::vector<float>& weight) {
    listed_->push_back(
        {.kind = OpKind::kNorm, .input = input, .output = output, .vector = Vector(weight), .eps = kEps});
  }
  void AddMatmul(int input, int output, const OwnedMatrix& matrix, int bias, Epilogue epilogue, float scale) {
    listed_->push_back({.kind = OpKind::kMatmul,
                           .input = input,
                           .output = output,
                           .matrix = Matrix(matrix),
                           .vector = bias,
                           .epilogue = epilogue,
                           .scale = scale});
  }
  // A block's last product into the residual stream: directly, or by way of a norm in layer 1.
  void AddBlock(int layer, int input, const OwnedMatrix& matrix, int hidden, int block) {
    if (layer == 0) return AddMatmul(input, hidden, matrix, -1, Epilogue::kAdd, kResidualScale);
    AddMatmul(input, block, matrix, -1, Epilogue::kStore, 1.0f);
    listed_->push_back({.kind = OpKind::kNormAdd,
                           .input = block,
                           .output = hidden,
                           .vector = Vector(model_.layers[layer].post_norm),
                           .scale = kResidualScale,
                           .eps = kEps});
  }

  const TinyModel& model_;
  const bool is_quantized_;
  ProgramParts parts_;
  std::vector<Operation>* listed_ = &parts_.body;
  size_t next_offset_ = 0;
};

// ---- running ----------------------------------------------------------------------------------------

// A program with its memory; sequences are named by any number and grow by Step.
class TinyEngine {
 public:
  static constexpr int kMaxTokens = 64, kMaxSequences = 8, kBlockSize = 16, kNumBlocks = 300;

  TinyEngine(const TinyModel& model, KvFormat format, int num_threads, int max_context = 2048,
             const Kernels& kernels = BestKernels())
      : program(PartsBuilder(model).Build().Build(kernels)),
        kv(program->shape(), format, kNumBlocks, kBlockSize),
        pool(num_threads),
        workspace(*program, kMaxTokens, kMaxSequences, num_threads, max_context) {
    for (int block = 0; block < kNumBlocks; ++block) free_blocks_.push_back((block * 7) % kNumBlocks);  // scattered
  }

  struct Result {
    std::vector<float> hidden;  // [wanted rows, kHidden] of all sequences in order
    std::vector<uint8_t> is_finite;
    std::vector<int32_t> slots;
  };

  // Appends each sequence's tokens in one run. Hidden states are wanted of its last `wanted` tokens, else of all.
  Result Step(const std::map<int, std::vector<int>>& chunks, const std::map<int, int>& wanted = {}) {
    std::vector<int32_t> ids, positions, slots, query_start{0}, seq_lens, tables, num_wanted;
    int num_rows = 0;
    size_t max_blocks = 0;
    for (const auto& [id, tokens] : chunks) {
      Sequence& sequence = sequences_[id];
      for (const int token : tokens) {
        const int position = sequence.length++;
        if (position % kBlockSize == 0) {
          sequence.blocks.push_back(free_blocks_.back());
          free_blocks_.pop_back();
        }
        ids.push_back(token);
        positions.push_back(position);
        slots.push_back(sequence.blocks.back() * kBlockSize + position % kBlockSize);
      }
      query_start.push_back(static_cast<int32_t>(ids.size()));
      seq_lens.push_back(sequence.length);
      num_wanted.push_back(wanted.contains(id) ? wanted.at(id) : static_cast<int>(tokens.size()));
      num_rows += num_wanted.back();
      max_blocks = std::max(max_blocks, sequence.blocks.size());
    }
    for (const auto& [id, tokens] : chunks) {
      std::vector<int32_t> row = sequences_[id].blocks;
      row.resize(max_blocks, row.back());
      tables.insert(tables.end(), row.begin(), row.end());
    }
    Result result{{}, std::vector<uint8_t>(chunks.size(), 2), slots};
    const std::string problem = program->Run({ids, positions, slots, query_start, seq_lens, tables, num_wanted, {}, {}},
                                             kv, pool, workspace, result.is_finite);
    if (!problem.empty()) throw std::runtime_error(problem);
    result.hidden.assign(program->hidden(workspace), program->hidden(workspace) + num_rows * kHidden);
    return result;
  }

  std::vector<float> Logits(const std::vector<int32_t>& rows) {
    std::vector<float> logits(rows.size() * kVocab, NAN);
    const std::string problem = program->Head(rows, pool, workspace, logits.data());
    if (!problem.empty()) throw std::runtime_error(problem);
    return logits;
  }

 private:
  struct Sequence {
    int length = 0;
    std::vector<int32_t> blocks;
  };
  std::map<int, Sequence> sequences_;
  std::vector<int32_t> free_blocks_;

 public:
  std::unique_ptr<Program> program;
  KvMemory kv;
  ThreadPool pool;
  Workspace workspace;
};

}  // namespace headrace::tests
