// The binding: types in, types out, errors as exceptions of Python. No logic.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "packing.h"
#include "program.h"
#include "sampling_module.h"
#include "tuning_module.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using OutArray1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using OutArray2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// An argument that is taken as it is: nanobind would otherwise compute on a converted copy, and what is written to a
// copy is lost.
auto ArrayArg(const char* name) { return nb::arg(name).noconvert(); }

template <typename T>
std::span<const T> Span(const Array1<T>& array) {
  return {array.data(), array.shape(0)};
}

void Require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

void Raise(const std::string& problem) {
  if (!problem.empty()) throw nb::value_error(problem.c_str());
}

PackedMatrix ShapeOf(int format, int num_rows, int num_columns) {
  Require(format >= 0 && format <= static_cast<int>(WeightFormat::kInt4Wide), "no such weight format");
  Require(num_rows > 0 && num_columns > 0, "a matrix has no rows or no columns");
  Require(int64_t{num_rows} * num_columns <= int64_t{1} << 40, "a matrix is larger than any memory");
  return {static_cast<WeightFormat>(format), num_rows, num_columns, nullptr};
}

// Checks that block block_ids[i] may be copied to or from row rows[i] of `contents`, whose shape is given.
void CheckCopies(const KvMemory& kv, const Array1<int32_t>& block_ids, std::array<size_t, 2> shape,
                 const Array1<int32_t>& rows) {
  Require(block_ids.shape(0) == rows.shape(0), "there must be one row for each block");
  Require(shape[1] == kv.block_bytes(), "contents must have rows of block_bytes");
  for (size_t i = 0; i < rows.shape(0); ++i) {
    Require(block_ids.data()[i] >= 0 && block_ids.data()[i] < kv.num_blocks(), "a block id is out of bounds");
    Require(rows.data()[i] >= 0 && static_cast<size_t>(rows.data()[i]) < shape[0], "a row is out of bounds");
  }
}

// Checks that rows [row_begin, row_begin + count) may be packed into `packed`.
void CheckPacking(const PackedMatrix& shape, int row_begin, int count, const OutArray1<uint8_t>& packed) {
  Require(packed.shape(0) >= shape.num_bytes(), "the packed buffer is too small");
  Require(row_begin >= 0 && count >= 0 && int64_t{row_begin} + count <= shape.num_rows, "rows are out of bounds");
}

using MatrixArguments = std::tuple<int, int, int, Array1<uint8_t>>;  // format, rows, columns, packed bytes
using RopeArguments = std::tuple<int, double, Array1<float>>;        // rotary dimension, factor, frequencies

struct BoundProgram {
  Program program;
  std::vector<MatrixArguments> owners;  // of the memory the matrices lie in
};

std::vector<Buffer> Buffers(const std::vector<std::vector<int64_t>>& arguments) {
  std::vector<Buffer> buffers;
  for (const auto& buffer : arguments) {
    Require(buffer.size() == 3 && buffer[1] > 0 && buffer[1] < (1 << 30) && buffer[2] >= 0, "a buffer is malformed");
    buffers.push_back({buffer[0] != 0, static_cast<int32_t>(buffer[1]), static_cast<size_t>(buffer[2])});
  }
  return buffers;
}

std::vector<PackedMatrix> Matrices(const std::vector<MatrixArguments>& arguments) {
  std::vector<PackedMatrix> matrices;
  for (const auto& [format, num_rows, num_columns, bytes] : arguments) {
    matrices.push_back(ShapeOf(format, num_rows, num_columns));
    Require(bytes.shape(0) >= matrices.back().num_bytes(), "a matrix has fewer bytes than its shape needs");
    matrices.back().data = bytes.data();
  }
  return matrices;
}

std::vector<float> Copied(const Array1<float>& array) { return {array.data(), array.data() + array.shape(0)}; }

BoundProgram* MakeProgram(const std::vector<int>& shape, std::vector<Operation> body, std::vector<Operation> tail,
                          std::vector<Operation> head, const std::vector<std::vector<int64_t>>& buffers,
                          std::vector<MatrixArguments> matrices, const std::vector<Array1<float>>& vectors,
                          const std::vector<RopeArguments>& ropes, const std::vector<int>& named_buffers,
                          const std::string& kernels, const std::vector<TuningArguments>& tunings) {
  const Kernels* chosen = kernels.empty() ? &BestKernels() : KernelsNamed(kernels);
  Require(chosen != nullptr, "these kernels do not exist or this machine cannot run them");
  Require(shape.size() == 6 && named_buffers.size() == 3, "shape has 6 numbers and there are 3 named buffers");
  std::vector<std::vector<float>> copied;
  for (const auto& vector : vectors) copied.push_back(Copied(vector));
  std::vector<Rope> rope_list;
  for (const auto& [rotary_dim, factor, frequencies] : ropes) {
    rope_list.push_back({rotary_dim, static_cast<float>(factor), Copied(frequencies)});
  }
  const Shape dims{shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]};
  return new BoundProgram{Program(dims, std::move(body), std::move(tail), std::move(head), Buffers(buffers),
                                  Matrices(matrices), std::move(copied), std::move(rope_list), named_buffers[0],
                                  named_buffers[1], named_buffers[2], *chosen, TuningsFrom(tunings)),
                          std::move(matrices)};
}

}  // namespace
}  // namespace headrace

NB_MODULE(_native, m) {
  using namespace headrace;

  // A process that ends with its engine still alive is no leak; the system frees both.
  nb::set_leak_warnings(false);

  BindSampling(m);
  BindTuning(m);

  m.def("layout_version", [] { return kLayoutVersion; });
  m.def("best_kernels", [] { return BestKernels().name; });
  m.def("half_kv_format", [] { return static_cast<int>(BestKernels().half_kv); });

  nb::class_<Operation>(m, "Operation")
      .def(
          "__init__",
          [](Operation* self, int kind, int epilogue, int activation) {
            new (self) Operation{static_cast<OpKind>(kind)};
            Require(epilogue == 0 || epilogue == 1, "no such epilogue");
            Require(activation == 0 || activation == 1, "no such activation");
            self->epilogue = static_cast<Epilogue>(epilogue);
            self->activation = static_cast<Activation>(activation);
          },
          nb::arg("kind"), nb::arg("epilogue"), nb::arg("activation"))
      .def_rw("input", &Operation::input)
      .def_rw("output", &Operation::output)
      .def_rw("matrix", &Operation::matrix)
      .def_rw("vector", &Operation::vector)
      .def_rw("second_vector", &Operation::second_vector)
      .def_rw("layer", &Operation::layer)
      .def_rw("rope", &Operation::rope)
      .def_rw("window", &Operation::window)
      .def_rw("norm_whole", &Operation::norm_whole)
      .def_rw("scale", &Operation::scale)
      .def_rw("eps", &Operation::eps)
      .def_rw("soft_cap", &Operation::soft_cap);

  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(
          "__init__",
          [](ThreadPool* self, int num_threads) {
            Require(num_threads >= 1 && num_threads <= 1024, "num_threads must be between 1 and 1024");
            new (self) ThreadPool(num_threads);
          },
          nb::arg("num_threads"))
      .def_prop_ro("num_threads", &ThreadPool::num_threads)
      .def(
          "pin_workers", [](ThreadPool& self, const std::vector<int>& cpus) { Raise(self.PinWorkers(cpus)); },
          nb::arg("cpus"));

  nb::class_<KvMemory>(m, "KvMemory")
      .def(
          "__init__",
          [](KvMemory* self, const BoundProgram& bound, int format, int num_blocks, int block_size) {
            Require(format >= 0 && format <= static_cast<int>(KvFormat::kBf16), "no such KV format");
            new (self) KvMemory(bound.program.shape(), static_cast<KvFormat>(format), num_blocks, block_size);
          },
          nb::arg("program"), nb::arg("format"), nb::arg("num_blocks"), nb::arg("block_size"))
      .def_prop_ro("num_blocks", &KvMemory::num_blocks)
      .def_prop_ro("num_bytes", &KvMemory::num_bytes)
      .def(
          "clear_slots",
          [](KvMemory& self, const Array1<int32_t>& slots) {
            for (int32_t slot : Span(slots)) {
              Require(slot >= 0 && slot < int64_t{self.num_blocks()} * self.block_size(), "a slot is out of bounds");
            }
            for (int32_t slot : Span(slots)) self.ClearSlot(slot);
          },
          ArrayArg("slots"))
      .def_prop_ro("block_bytes", &KvMemory::block_bytes)
      .def(
          "copy_out",
          [](const KvMemory& self, const Array1<int32_t>& block_ids, const OutArray2<uint8_t>& contents,
             const Array1<int32_t>& rows) {
            CheckCopies(self, block_ids, {contents.shape(0), contents.shape(1)}, rows);
            nb::gil_scoped_release released;
            for (size_t i = 0; i < block_ids.shape(0); ++i) {
              self.CopyOut(block_ids.data()[i], contents.data() + rows.data()[i] * self.block_bytes());
            }
          },
          ArrayArg("block_ids"), ArrayArg("contents"), ArrayArg("rows"))
      .def(
          "copy_in",
          [](KvMemory& self, const Array1<int32_t>& block_ids, const Array2<uint8_t>& contents,
             const Array1<int32_t>& rows) {
            CheckCopies(self, block_ids, {contents.shape(0), contents.shape(1)}, rows);
            nb::gil_scoped_release released;
            for (size_t i = 0; i < block_ids.shape(0); ++i) {
              self.CopyIn(block_ids.data()[i], contents.data() + rows.data()[i] * self.block_bytes());
            }
          },
          ArrayArg("block_ids"), ArrayArg("contents"), ArrayArg("rows"))
      .def(
          "copy_blocks",
          [](KvMemory& self, const Array1<int32_t>& sources, const Array1<int32_t>& targets) {
            Require(sources.shape(0) == targets.shape(0), "there must be as many targets as sources");
            for (const auto& ids : {Span(sources), Span(targets)}) {
              for (int32_t id : ids) Require(id >= 0 && id < self.num_blocks(), "a block is out of bounds");
            }
            nb::gil_scoped_release released;
            for (size_t i = 0; i < sources.shape(0); ++i) self.CopyBlock(sources.data()[i], targets.data()[i]);
          },
          ArrayArg("sources"), ArrayArg("targets"));

  nb::class_<Workspace>(m, "Workspace")
      .def(
          "__init__",
          [](Workspace* self, const BoundProgram& bound, int max_tokens, int max_sequences, int num_threads,
             int max_context) { new (self) Workspace(bound.program, max_tokens, max_sequences, num_threads, max_context); },
          nb::arg("program"), nb::arg("max_tokens"), nb::arg("max_sequences"), nb::arg("num_threads"),
          nb::arg("max_context"))
      .def_prop_ro("num_bytes", &Workspace::num_bytes)
      .def("start_timing", &Workspace::StartTiming)
      .def("operation_seconds", [](const Workspace& self) {
        const auto seconds = self.operation_seconds();
        return std::vector<double>(seconds.begin(), seconds.end());
      });

  nb::class_<BoundProgram>(m, "Program")
      .def(nb::new_(&MakeProgram), nb::arg("shape"), nb::arg("body"), nb::arg("tail"), nb::arg("head"),
           nb::arg("buffers"), ArrayArg("matrices"), ArrayArg("vectors"), ArrayArg("ropes"), nb::arg("named_buffers"),
           nb::arg("kernels") = "", nb::arg("tunings") = std::vector<TuningArguments>{})
      .def_prop_ro("kernels", [](const BoundProgram& self) { return self.program.kernels(); })
      .def(
          "run",
          [](const BoundProgram& self, const Array1<int32_t>& input_ids, const Array1<int32_t>& positions,
             const Array1<int32_t>& slot_mapping, const Array1<int32_t>& query_start, const Array1<int32_t>& seq_lens,
             const Array2<int32_t>& block_tables, const Array1<int32_t>& num_wanted,
             const Array1<int32_t>& joined_rows, const Array1<int32_t>& joined_slots, const KvMemory& kv,
             ThreadPool& pool, Workspace& workspace, const OutArray1<uint8_t>& is_finite) {
            const BatchView batch{Span(input_ids), Span(positions), Span(slot_mapping), Span(query_start), Span(seq_lens),
                                  {block_tables.data(), block_tables.size()}, Span(num_wanted), Span(joined_rows),
                                  Span(joined_slots)};
            Require(block_tables.shape(0) == seq_lens.shape(0), "block_tables has a row per sequence");
            std::string problem;
            {
              nb::gil_scoped_release released;
              problem = self.program.Run(batch, kv, pool, workspace, {is_finite.data(), is_finite.shape(0)});
            }
            Raise(problem);
          },
          ArrayArg("input_ids"), ArrayArg("positions"), ArrayArg("slot_mapping"), ArrayArg("query_start"),
          ArrayArg("seq_lens"), ArrayArg("block_tables"), ArrayArg("num_wanted"), ArrayArg("joined_rows"),
          ArrayArg("joined_slots"), nb::arg("kv"), nb::arg("pool"), nb::arg("workspace"), ArrayArg("is_finite"))
      .def(
          "head",
          [](const BoundProgram& self, const Array1<int32_t>& rows, ThreadPool& pool, Workspace& workspace,
             const OutArray2<float>& logits) {
            Require(logits.shape(0) == rows.shape(0) &&
                        logits.shape(1) == static_cast<size_t>(self.program.shape().vocab_size),
                    "logits must be [rows, vocab_size]");
            std::string problem;
            {
              nb::gil_scoped_release released;
              problem = self.program.Head(Span(rows), pool, workspace, logits.data());
            }
            Raise(problem);
          },
          ArrayArg("rows"), nb::arg("pool"), nb::arg("workspace"), ArrayArg("logits"))
      .def(
          "hidden",
          [](const BoundProgram& self, const Workspace& workspace, const OutArray2<float>& out) {
            Require(out.shape(1) == static_cast<size_t>(self.program.shape().hidden_size) &&
                        out.shape(0) <= static_cast<size_t>(workspace.max_tokens()),
                    "out must be [tokens, hidden_size]");
            const float* hidden = self.program.hidden(workspace);
            Require(hidden != nullptr, "the workspace was made for another program");
            std::copy_n(hidden, out.size(), out.data());
          },
          nb::arg("workspace"), ArrayArg("out"));

  m.def(
      "packed_bytes",
      [](int format, int num_rows, int num_columns) { return ShapeOf(format, num_rows, num_columns).num_bytes(); },
      nb::arg("format"), nb::arg("num_rows"), nb::arg("num_columns"));

  m.def(
      "pack_floats",
      [](const Array2<float>& values, int format, int num_rows, int row_begin, const OutArray1<uint8_t>& packed) {
        const PackedMatrix shape = ShapeOf(format, num_rows, static_cast<int>(values.shape(1)));
        const int count = static_cast<int>(values.shape(0));
        Require(shape.format != WeightFormat::kInt4Wide, "floats are not packed into this format");
        CheckPacking(shape, row_begin, count, packed);
        nb::gil_scoped_release released;
        PackFloats(values.data(), shape, row_begin, row_begin + count, packed.data());
      },
      ArrayArg("values"), nb::arg("format"), nb::arg("num_rows"), nb::arg("row_begin"), ArrayArg("packed"));

  m.def(
      "pack_stored",
      [](const Array1<uint8_t>& blocks, int stored, int num_rows, int num_columns, int row_begin, int count,
         const OutArray1<uint8_t>& packed) {
        Require(stored >= 0 && stored <= static_cast<int>(StoredFormat::kQ4_K), "no such stored format");
        const auto kind = static_cast<StoredFormat>(stored);
        const StoredBlock block = BlockOf(kind);
        const PackedMatrix shape = ShapeOf(static_cast<int>(block.packed), num_rows, num_columns);
        CheckPacking(shape, row_begin, count, packed);
        Require(num_columns % block.num_columns == 0, "the columns are not whole stored blocks");
        Require(blocks.shape(0) >= block.num_bytes * (num_columns / block.num_columns) * count,
                "there are too few stored blocks");
        nb::gil_scoped_release released;
        PackStored(blocks.data(), kind, shape, row_begin, row_begin + count, packed.data());
      },
      ArrayArg("blocks"), nb::arg("stored"), nb::arg("num_rows"), nb::arg("num_columns"), nb::arg("row_begin"),
      nb::arg("count"), ArrayArg("packed"));

  m.def(
      "unpack_row",
      [](const Array1<uint8_t>& packed, int format, int num_rows, int row, const OutArray1<float>& out) {
        PackedMatrix matrix = ShapeOf(format, num_rows, static_cast<int>(out.shape(0)));
        Require(packed.shape(0) >= matrix.num_bytes() && row >= 0 && row < num_rows, "the row is out of bounds");
        matrix.data = packed.data();
        UnpackRow(matrix, row, out.data());
      },
      ArrayArg("packed"), nb::arg("format"), nb::arg("num_rows"), nb::arg("row"), ArrayArg("out"));
}
