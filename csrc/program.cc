#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

#include "multiply.h"
#include "packing.h"

namespace headrace {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr int kRowsPerPiece = 8;       // of operations that treat rows one by one
constexpr int kUnitsPerThread = 4;     // fewer attention units than this and contexts are split as well

constexpr int kMaxSize = 1 << 24;            // of anything a shape counts
constexpr size_t kMaxBytes = size_t{1} << 47;  // what an address can name

constexpr size_t RoundUp(size_t value) { return CeilDiv(value, kAlignment) * kAlignment; }

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Refuses what no memory could hold, so that no size wraps around to a small one.
size_t CheckedProduct(std::initializer_list<size_t> factors) {
  size_t product = 1;
  for (const size_t factor : factors) {
    Require(!__builtin_mul_overflow(product, factor, &product) && product <= kMaxBytes,
            "the sizes ask for more memory than can be addressed");
  }
  return product;
}

template <typename Body>
void ForRows(ThreadPool& pool, int num_rows, const Body& body) {
  pool.Run(static_cast<int>(CeilDiv(num_rows, kRowsPerPiece)), [&](int piece, int thread) {
    const int end = std::min(num_rows, (piece + 1) * kRowsPerPiece);
    for (int row = piece * kRowsPerPiece; row < end; ++row) body(row, thread);
  });
}

}  // namespace

// ---- memory -----------------------------------------------------------------------------------------

AlignedBytes::AlignedBytes(size_t num_bytes) : num_bytes_(num_bytes) {
  // Huge pages begin at multiples of their size, and the system itself aligns hardly any mapping to them.
  const size_t unit = num_bytes >= kHugePageBytes ? kHugePageBytes : kAlignment;
  mapped_bytes_ = CeilDiv(std::max<size_t>(num_bytes, 1), unit) * unit + (unit == kHugePageBytes ? unit : 0);
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);  // a hint; without huge pages it is only slower
  data_ = reinterpret_cast<uint8_t*>(CeilDiv(reinterpret_cast<uintptr_t>(mapped_), unit) * unit);
}

AlignedBytes::~AlignedBytes() { munmap(mapped_, mapped_bytes_); }

namespace {
size_t CheckedElements(const Shape& shape, int num_blocks, int block_size) {
  Require(num_blocks > 0, "num_blocks must be positive");
  Require(block_size > 0 && block_size % kPositionLanes == 0,
          "block_size is " + std::to_string(block_size) + " but must be a multiple of 16");
  // what a layer has, times what all layers' keys and values can come to, must stay a size
  const size_t elements = CheckedProduct({static_cast<size_t>(num_blocks), static_cast<size_t>(shape.num_kv_heads),
                                          static_cast<size_t>(shape.head_dim), static_cast<size_t>(block_size)});
  CheckedProduct({elements, static_cast<size_t>(shape.num_layers), 2 * sizeof(float)});
  return elements;
}
}  // namespace

KvMemory::KvMemory(const Shape& shape, KvFormat format, int num_blocks, int block_size)
    : shape_(shape),
      format_(format),
      num_blocks_(num_blocks),
      block_size_(block_size),
      elements_per_layer_(CheckedElements(shape, num_blocks, block_size)),
      scales_per_layer_(format == KvFormat::kInt8 ? static_cast<size_t>(num_blocks) * shape.num_kv_heads * block_size
                                                  : 0),
      bytes_(2 * shape.num_layers *
             (elements_per_layer_ * KvElementBytes(format) + scales_per_layer_ * sizeof(float))) {}

KvView KvMemory::layer(int index) const {
  const size_t element_bytes = elements_per_layer_ * KvElementBytes(format_);
  const size_t scale_bytes = scales_per_layer_ * sizeof(float);
  uint8_t* base = bytes_.data() + 2 * index * (element_bytes + scale_bytes);
  KvView view{format_, shape_.num_kv_heads, shape_.head_dim, block_size_, base, base + element_bytes, nullptr, nullptr};
  if (format_ == KvFormat::kInt8) {
    view.key_scales = reinterpret_cast<float*>(base + 2 * element_bytes);
    view.value_scales = view.key_scales + scales_per_layer_;
  }
  return view;
}

void KvMemory::ClearSlot(int slot) {
  const size_t size = KvElementBytes(format_);
  for (int index = 0; index < shape_.num_layers; ++index) {
    const KvView view = layer(index);
    const int block = slot / block_size_, offset = slot % block_size_;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      uint8_t* keys = view.keys + view.HeadIndex(block, head) * size;
      uint8_t* values = view.values + view.HeadIndex(block, head) * size;
      for (int d = 0; d < shape_.head_dim; ++d) {
        std::memset(keys + view.KeyIndex(d, offset) * size, 0, size);
        std::memset(values + view.ValueIndex(offset, d) * size, 0, size);
      }
      if (format_ == KvFormat::kInt8) {
        view.key_scales[view.ScaleIndex(block, head) + offset] = 0.0f;
        view.value_scales[view.ScaleIndex(block, head) + offset] = 0.0f;
      }
    }
  }
}

template <typename Part>
void KvMemory::EachPart(int block, const Part& part) const {
  const size_t num_elements = elements_per_layer_ / num_blocks_ * KvElementBytes(format_);
  const size_t num_scales = scales_per_layer_ / num_blocks_;
  for (int index = 0; index < shape_.num_layers; ++index) {
    const KvView view = layer(index);
    part(view.keys + block * num_elements, num_elements);
    part(view.values + block * num_elements, num_elements);
    if (format_ == KvFormat::kInt8) {
      part(reinterpret_cast<uint8_t*>(view.key_scales + block * num_scales), num_scales * sizeof(float));
      part(reinterpret_cast<uint8_t*>(view.value_scales + block * num_scales), num_scales * sizeof(float));
    }
  }
}

size_t KvMemory::block_bytes() const { return bytes_.size() / num_blocks_; }

void KvMemory::CopyOut(int block, uint8_t* content) const {
  EachPart(block, [&content](const uint8_t* bytes, size_t num_bytes) {
    std::memcpy(content, bytes, num_bytes);
    content += num_bytes;
  });
}

void KvMemory::CopyIn(int block, const uint8_t* content) {
  EachPart(block, [&content](uint8_t* bytes, size_t num_bytes) {
    std::memcpy(bytes, content, num_bytes);
    content += num_bytes;
  });
}

namespace {
int CheckedTokens(int max_tokens, int max_sequences, int num_threads, int max_context) {
  Require(max_tokens > 0 && max_sequences > 0 && max_sequences <= max_tokens && num_threads > 0 && max_context > 0,
          "max_tokens, max_sequences (at most max_tokens), num_threads and max_context must be positive");
  return max_tokens;
}

// Units of a step that is split up: few, of every split of the longest context.
size_t MaxParts(int num_threads, int max_context) {
  return static_cast<size_t>(kUnitsPerThread) * num_threads * (CeilDiv(max_context, kSplitPositions) + 1);
}
}  // namespace

Workspace::Workspace(const Program& program, int max_tokens, int max_sequences, int num_threads, int max_context)
    : max_tokens_(CheckedTokens(max_tokens, max_sequences, num_threads, max_context)),
      max_sequences_(max_sequences),
      needs_(program.needs()),
      arena_(CheckedProduct({needs_.arena_row_bytes, static_cast<size_t>(max_tokens)})),
      angles_(CheckedProduct({needs_.angle_row_floats, static_cast<size_t>(max_tokens), sizeof(float)})),
      partial_values_(
          CheckedProduct({MaxParts(num_threads, max_context), kMaxQueries, needs_.head_dim, sizeof(float)})) {
  for (int thread = 0; thread < num_threads; ++thread) {
    scratch_.push_back(std::make_unique<AlignedBytes>(needs_.scratch_bytes));
  }
  const size_t num_parts = MaxParts(num_threads, max_context);
  units_.reserve(std::max(needs_.attention_units_per_row * max_tokens, num_parts));
  first_part_.reserve(std::max(needs_.attention_units_per_row * max_tokens, num_parts) + 1);
  partials_.resize(num_parts);
  float* values = reinterpret_cast<float*>(partial_values_.data());
  for (AttentionPartial& partial : partials_) {
    partial.values = values;
    values += kMaxQueries * needs_.head_dim;
  }
}

size_t Workspace::num_bytes() const {
  size_t total = arena_.size() + angles_.size() + partial_values_.size();
  for (const auto& scratch : scratch_) total += scratch->size();
  return total;
}

void Workspace::StartTiming() { operation_seconds_.assign(needs_.num_operations, 0.0); }

// ---- building ---------------------------------------------------------------------------------------

Program::Program(Shape shape, std::vector<Operation> body, std::vector<Operation> head, std::vector<Buffer> buffers,
                 std::vector<PackedMatrix> matrices, std::vector<std::vector<float>> vectors, std::vector<Rope> ropes,
                 int hidden_buffer, int head_input_buffer, int logits_buffer, const Kernels& kernels,
                 std::vector<MatmulTunings> tunings)
    : shape_(shape),
      body_(std::move(body)),
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
  Require(shape.vocab_size > 0 && shape.hidden_size > 0 && shape.num_layers > 0 && shape.num_heads > 0 &&
              shape.num_kv_heads > 0 && shape.head_dim > 0,
          "every size of the shape must be positive");
  Require(std::max({shape.vocab_size, shape.hidden_size, shape.num_layers, shape.num_heads, shape.num_kv_heads,
                    shape.head_dim}) <= kMaxSize,
          "a size of the shape is above " + std::to_string(kMaxSize));
  Require(shape.num_heads % shape.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads");
  Require(shape.head_dim % kPositionLanes == 0,
          "head_dim is " + std::to_string(shape.head_dim) + " but must be a multiple of 16");
  const int num_buffers = static_cast<int>(buffers_.size());
  for (int id : {hidden_buffer, head_input_buffer, logits_buffer}) {
    Require(id >= 0 && id < num_buffers && !buffers_[id].is_quantized, "a named buffer is missing or quantised");
  }
  Require(buffers_[hidden_buffer].width == shape.hidden_size && buffers_[head_input_buffer].width == shape.hidden_size &&
              buffers_[logits_buffer].width == shape.vocab_size,
          "the hidden, head input and logits buffers must have the shape's widths");
  for (int id = 0; id < num_buffers; ++id) {
    const Buffer& buffer = buffers_[id];
    Require(buffer.width > 0 && buffer.offset % kAlignment == 0 && buffer.offset < kMaxBytes,
            "a buffer's width or offset is wrong");
    if (id == logits_buffer) continue;  // written where the caller says
    needs_.arena_row_bytes = std::max(needs_.arena_row_bytes, buffer.offset + RoundUp(buffer.row_bytes()));
  }
  for (const Rope& rope : ropes_) {
    Require(rope.rotary_dim > 0 && rope.rotary_dim % 2 == 0 && rope.rotary_dim <= shape.head_dim &&
                rope.frequencies.size() * 2 == static_cast<size_t>(rope.rotary_dim),
            "a rope's dimension and frequencies do not agree");
    needs_.angle_row_floats += rope.rotary_dim;
  }
  for (const Operation& op : body_) {
    CheckOperation(op);
    Require(op.output != logits_buffer, "the body cannot write logits");
  }
  for (const Operation& op : head_) {
    CheckOperation(op);
    Require(op.kind != OpKind::kEmbed && op.kind != OpKind::kRotateStore && op.kind != OpKind::kAttention,
            "the head cannot use the batch");
  }
  needs_.head_dim = shape.head_dim;
  needs_.num_operations = body_.size() + head_.size();
  needs_.attention_units_per_row =
      shape.num_kv_heads * CeilDiv(shape.num_heads / shape.num_kv_heads, kMaxQueries);
  size_t& scratch_bytes = needs_.scratch_bytes;
  scratch_bytes = AttentionScratchFloats(shape.head_dim) * sizeof(float) +
                  kMaxQueries * shape.head_dim * sizeof(float);  // and a total for units that are not split
  for (const Buffer& buffer : buffers_) {  // and a row on its way to being quantised
    if (buffer.is_quantized) scratch_bytes = std::max(scratch_bytes, RoundUp(buffer.width * sizeof(float)));
  }
  for (const PackedMatrix& matrix : matrices_) {
    Require(matrix.num_rows > 0 && matrix.num_columns > 0 && matrix.data != nullptr &&
                reinterpret_cast<uintptr_t>(matrix.data) % kAlignment == 0,
            "a matrix is empty or not aligned to 64 bytes");
  }
  if (tunings_.empty()) tunings_.assign(matrices_.size(), kernels_.matmul_tunings);
  Require(tunings_.size() == matrices_.size(), "there must be a tuning for each matrix, or none");
  for (const MatmulTunings& of_matrix : tunings_) {
    for (const MatmulTuning& tuning : of_matrix) {
      const std::string problem = TuningProblem(tuning, kernels_);
      Require(problem.empty(), problem);
    }
  }
}

void Program::CheckOperation(const Operation& op) const {
  const auto in_range = [](int id, size_t size) { return id >= 0 && static_cast<size_t>(id) < size; };
  const auto name = [&] { return "operation of kind " + std::to_string(static_cast<int>(op.kind)); };
  const auto width = [&](int id) { return static_cast<int64_t>(buffers_[id].width); };
  const auto vector_size = [&](int id) { return static_cast<int64_t>(vectors_[id].size()); };
  const auto optional_vector = [&](int id, int64_t size) {
    Require(id == -1 || (in_range(id, vectors_.size()) && vector_size(id) == size), name() + ": wrong vector");
  };
  Require(in_range(op.output, buffers_.size()), name() + ": no such output buffer");
  const bool has_input = op.kind != OpKind::kEmbed && op.kind != OpKind::kScale;
  Require(!has_input || in_range(op.input, buffers_.size()), name() + ": no such input buffer");
  Require(op.output != logits_buffer_ || op.kind == OpKind::kMatmul || op.kind == OpKind::kScale,
          name() + ": cannot write logits");
  Require(!has_input || op.input != logits_buffer_, name() + ": cannot read logits");
  const int64_t qkv = static_cast<int64_t>(shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim;
  switch (op.kind) {
    case OpKind::kEmbed:
      Require(in_range(op.matrix, matrices_.size()), name() + ": no such matrix");
      Require(matrices_[op.matrix].num_rows == shape_.vocab_size &&
                  matrices_[op.matrix].num_columns == width(op.output) && !buffers_[op.output].is_quantized,
              name() + ": the matrix does not fit");
      break;
    case OpKind::kNorm:
      Require(!buffers_[op.input].is_quantized && width(op.input) == width(op.output), name() + ": widths differ");
      Require(in_range(op.vector, vectors_.size()) && vector_size(op.vector) == width(op.input),
              name() + ": wrong vector");
      break;
    case OpKind::kNormAdd:
      Require(!buffers_[op.input].is_quantized && !buffers_[op.output].is_quantized &&
                  width(op.input) == width(op.output),
              name() + ": widths differ");
      Require(in_range(op.vector, vectors_.size()) && vector_size(op.vector) == width(op.input),
              name() + ": wrong vector");
      break;
    case OpKind::kQuantize:
      Require(!buffers_[op.input].is_quantized && buffers_[op.output].is_quantized &&
                  width(op.input) == width(op.output),
              name() + ": wrong buffers");
      break;
    case OpKind::kMatmul: {
      Require(in_range(op.matrix, matrices_.size()), name() + ": no such matrix");
      const PackedMatrix& matrix = matrices_[op.matrix];
      Require(width(op.input) == matrix.num_columns && width(op.output) == matrix.num_rows &&
                  !buffers_[op.output].is_quantized,
              name() + ": the matrix does not fit its buffers");
      Require(buffers_[op.input].is_quantized == IsQuantized(matrix.format),
              name() + ": quantised weights take quantised input, others do not");
      optional_vector(op.vector, matrix.num_rows);
      break;
    }
    case OpKind::kRotateStore: {
      Require(width(op.input) == qkv && op.output == op.input && !buffers_[op.input].is_quantized,
              name() + ": works in place on a buffer of queries, keys and values");
      Require(in_range(op.layer, shape_.num_layers) && in_range(op.rope, ropes_.size()), name() + ": no such layer or rope");
      const int64_t query_size = op.norm_whole ? int64_t{shape_.num_heads} * shape_.head_dim : shape_.head_dim;
      const int64_t key_size = op.norm_whole ? int64_t{shape_.num_kv_heads} * shape_.head_dim : shape_.head_dim;
      optional_vector(op.vector, query_size);
      optional_vector(op.second_vector, key_size);
      break;
    }
    case OpKind::kAttention:
      Require(width(op.input) == qkv && width(op.output) == int64_t{shape_.num_heads} * shape_.head_dim &&
                  !buffers_[op.input].is_quantized && !buffers_[op.output].is_quantized,
              name() + ": wrong buffers");
      Require(in_range(op.layer, shape_.num_layers) && op.window >= 0, name() + ": no such layer, or a wrong window");
      break;
    case OpKind::kGate:
      Require(!buffers_[op.input].is_quantized && width(op.input) == 2 * width(op.output), name() + ": widths differ");
      break;
    case OpKind::kScale:
      Require(!buffers_[op.output].is_quantized, name() + ": wrong buffer");
      break;
    default:
      Require(false, name() + ": unknown");
  }
}

// ---- running ----------------------------------------------------------------------------------------

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

std::string Program::Run(const BatchView& batch, const KvMemory& kv, ThreadPool& pool, Workspace& workspace,
                         std::span<uint8_t> is_finite) const {
  const int num_tokens = batch.num_tokens(), num_sequences = batch.num_sequences();
  const auto all_in = [](std::span<const int32_t> values, int64_t limit) {
    return std::all_of(values.begin(), values.end(), [limit](int32_t v) { return v >= 0 && v < limit; });
  };
  const std::string misfit = Misfit(pool, workspace);
  if (!misfit.empty()) return misfit;
  if (kv.shape().num_layers != shape_.num_layers || kv.shape().num_kv_heads != shape_.num_kv_heads ||
      kv.shape().head_dim != shape_.head_dim) {
    return "the KV memory was made for another program";
  }
  if (num_tokens < 1 || num_tokens > workspace.max_tokens_) return "the number of tokens is out of bounds";
  if (num_sequences < 1 || num_sequences > workspace.max_sequences_) return "the number of sequences is out of bounds";
  if (batch.positions.size() != batch.input_ids.size() || batch.slot_mapping.size() != batch.input_ids.size() ||
      batch.query_start.size() != batch.seq_lens.size() + 1 || batch.block_tables.size() % num_sequences != 0 ||
      is_finite.size() != batch.seq_lens.size()) {
    return "the batch's arrays do not agree in length";
  }
  if (!all_in(batch.input_ids, shape_.vocab_size)) return "a token id is out of bounds";
  if (!all_in(batch.slot_mapping, int64_t{kv.num_blocks()} * kv.block_size())) return "a slot is out of bounds";
  if (!all_in(batch.block_tables, kv.num_blocks())) return "a block id is out of bounds";
  if (!all_in(batch.positions, int64_t{1} << 31)) return "a position is negative";
  if (batch.query_start.front() != 0 || batch.query_start.back() != num_tokens) return "query_start is wrong";
  for (int b = 0; b < num_sequences; ++b) {
    const int64_t count = int64_t{batch.query_start[b + 1]} - batch.query_start[b];
    const int64_t room = int64_t{batch.max_blocks()} * kv.block_size();
    if (count < 1 || batch.seq_lens[b] < count || batch.seq_lens[b] > room) return "a sequence's length is out of bounds";
    if (CeilDiv(batch.seq_lens[b], kSplitPositions) * kUnitsPerThread * pool.num_threads() > workspace.partials_.size()) {
      return "a sequence is longer than the workspace was made for";
    }
  }
  const Context context{&batch, &kv, pool, workspace, buffers_, num_tokens, logits_buffer_, nullptr};
  ComputeAngles(context);
  ExecuteAll(body_, 0, context);
  workspace.num_hidden_rows_ = num_tokens;
  CheckFinite(context, is_finite);
  return {};
}

void Program::CheckFinite(const Context& context, std::span<uint8_t> is_finite) const {
  const BatchView& batch = *context.batch;
  for (int b = 0; b < batch.num_sequences(); ++b) {
    const float* begin = context.FloatRow(hidden_buffer_, batch.query_start[b]);
    const float* end = context.FloatRow(hidden_buffer_, batch.query_start[b + 1]);
    float poison = 0.0f;  // stays zero unless a value is infinite or not a number
    for (const float* x = begin; x != end; ++x) poison += *x * 0.0f;
    is_finite[b] = poison == 0.0f;
  }
}

std::string Program::Head(std::span<const int32_t> rows, ThreadPool& pool, Workspace& workspace, float* logits) const {
  const std::string misfit = Misfit(pool, workspace);
  if (!misfit.empty()) return misfit;
  const int num_rows = static_cast<int>(rows.size());
  if (num_rows > workspace.max_sequences_) return "too many rows at once";
  for (int32_t row : rows) {
    if (row < 0 || row >= workspace.num_hidden_rows_) return "a row is not of the last run";
  }
  const Context context{nullptr, nullptr, pool, workspace, buffers_, num_rows, logits_buffer_, logits};
  for (int i = 0; i < num_rows; ++i) {
    std::memcpy(context.FloatRow(head_input_buffer_, i), context.FloatRow(hidden_buffer_, rows[i]),
                shape_.hidden_size * sizeof(float));
  }
  ExecuteAll(head_, body_.size(), context);
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
  const int group = task.queries_per_kv_head();
  const int heads_per_unit = std::min(group, kMaxQueries);
  const int rows_per_unit = kMaxQueries / heads_per_unit;
  size_t num_whole = 0;
  for (int b = 0; b < batch.num_sequences(); ++b) {
    num_whole += CeilDiv(batch.query_start[b + 1] - batch.query_start[b], rows_per_unit) * shape_.num_kv_heads *
                 CeilDiv(group, heads_per_unit);
  }
  const bool is_split = num_whole <= static_cast<size_t>(kUnitsPerThread) * context.pool.num_threads();

  std::vector<AttentionUnit>& units = workspace.units_;
  std::vector<int32_t>& first_part = workspace.first_part_;  // of each whole unit
  units.clear();
  first_part.clear();
  for (int b = 0; b < batch.num_sequences(); ++b) {
    for (int row = batch.query_start[b]; row < batch.query_start[b + 1]; row += rows_per_unit) {
      const int row_end = std::min(row + rows_per_unit, batch.query_start[b + 1]);
      const int context_end = batch.seq_lens[b] - (batch.query_start[b + 1] - row_end);
      const int num_splits = static_cast<int>(CeilDiv(context_end, kSplitPositions));
      for (int kv_head = 0; kv_head < shape_.num_kv_heads; ++kv_head) {
        for (int head = 0; head < group; head += heads_per_unit) {
          const int head_end = std::min(head + heads_per_unit, group);
          first_part.push_back(static_cast<int32_t>(units.size()));
          const int step = is_split ? 1 : num_splits;
          for (int split = 0; split < num_splits; split += step) {
            units.push_back({b, kv_head, head, head_end, row, row_end, split, split + step});
          }
        }
      }
    }
  }
  const auto scratch_of = [&](int thread) { return reinterpret_cast<float*>(workspace.scratch_[thread]->data()); };
  if (!is_split) {
    context.pool.Run(static_cast<int>(units.size()), [&](int index, int thread) {
      float* scratch = scratch_of(thread);
      AttentionPartial total;
      total.values = scratch + AttentionScratchFloats(shape_.head_dim);
      kernels_.attend_unit(task, units[index], scratch, &total);
      kernels_.finish_unit(task, units[index], &total, nullptr, 0);
    });
    return;
  }
  context.pool.Run(static_cast<int>(units.size()), [&](int index, int thread) {
    kernels_.attend_unit(task, units[index], scratch_of(thread), &workspace.partials_[index]);
  });
  const int num_units = static_cast<int>(first_part.size());
  first_part.push_back(static_cast<int32_t>(units.size()));
  for (int unit = 0; unit < num_units; ++unit) {
    const int first = first_part[unit];
    kernels_.finish_unit(task, units[first], &workspace.partials_[first], &workspace.partials_[first + 1],
                         first_part[unit + 1] - first - 1);
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
