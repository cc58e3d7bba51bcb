// The sampling half of the binding: types in, types out, errors as exceptions of Python. No logic.

#include "sampling_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "kernels.h"
#include "ops/sampling.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T, int Dims>
using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <typename T, int Dims>
using OutArray = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

template <typename AnyArray>
auto Span(const AnyArray& array) {
  return std::span(array.data(), array.size());
}

LogitRows RowsOf(const Array<float, 2>& logits) {
  if (logits.shape(0) > std::numeric_limits<int>::max() || logits.shape(1) > std::numeric_limits<int>::max()) {
    throw nb::value_error("there are too many logits");
  }
  return {logits.data(), static_cast<int>(logits.shape(0)), static_cast<int>(logits.shape(1))};
}

// Columns of log-probabilities as Python holds them.
struct BoundLogprobs {
  OutArray<float, 1> logprobs;
  OutArray<int32_t, 1> ranks;
  OutArray<int32_t, 2> top_ids;
  OutArray<float, 2> top_logprobs;

  LogprobColumns columns() const {
    return {Span(logprobs), Span(ranks), Span(top_ids), Span(top_logprobs),
            static_cast<int>(std::min<size_t>(top_ids.shape(1), std::numeric_limits<int>::max()))};
  }
};

// The parameters of rows as Python holds them.
struct BoundBatch {
  Array<double, 2> reals;
  Array<int64_t, 2> integers;
  Array<int64_t, 1> list_starts;
  Array<int32_t, 1> token_ids;
  Array<double, 1> biases;
  Array<int64_t, 1> bias_starts;
  std::optional<Array<int32_t, 2>> token_mask;

  SampleBatch batch(int vocab_size) const {
    SampleBatch batch{Span(reals), Span(integers), Span(list_starts), Span(token_ids), Span(biases), Span(bias_starts), {}};
    if (token_mask) {
      if (token_mask->shape(1) != (static_cast<size_t>(vocab_size) + 31) / 32) {
        throw nb::value_error("the token mask has another number of words than the vocabulary needs");
      }
      batch.token_mask = {reinterpret_cast<const uint32_t*>(token_mask->data()), token_mask->size()};
    }
    return batch;
  }
};

void Raise(const std::string& problem) {
  if (!problem.empty()) throw nb::value_error(problem.c_str());
}

}  // namespace

void BindSampling(nb::module_& m) {
  nb::class_<SamplingWorkspace>(m, "SamplingWorkspace")
      .def(
          "__init__",
          [](SamplingWorkspace* self, int vocab_size, int num_threads, const std::string& kernels) {
            if (vocab_size < 1 || vocab_size > kMaxVocabSize) throw nb::value_error("vocab_size is out of bounds");
            if (num_threads < 1 || num_threads > 1024) throw nb::value_error("num_threads must be between 1 and 1024");
            const Kernels* named = kernels.empty() ? &BestKernels() : KernelsNamed(kernels);
            if (named == nullptr) throw nb::value_error("this machine has no such kernels");
            new (self) SamplingWorkspace(vocab_size, num_threads, *named);
          },
          nb::arg("vocab_size"), nb::arg("num_threads"), nb::arg("kernels") = "")
      .def_prop_ro("vocab_size", &SamplingWorkspace::vocab_size);

  nb::class_<BoundLogprobs>(m, "LogprobColumns")
      .def(
          "__init__",
          [](BoundLogprobs* self, OutArray<float, 1> logprobs, OutArray<int32_t, 1> ranks, OutArray<int32_t, 2> top_ids,
             OutArray<float, 2> top_logprobs) {
            new (self) BoundLogprobs{std::move(logprobs), std::move(ranks), std::move(top_ids), std::move(top_logprobs)};
          },
          nb::arg("logprobs").noconvert(), nb::arg("ranks").noconvert(), nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert());

  nb::class_<BoundBatch>(m, "SampleBatch")
      .def(
          "__init__",
          [](BoundBatch* self, Array<double, 2> reals, Array<int64_t, 2> integers, Array<int64_t, 1> list_starts,
             Array<int32_t, 1> token_ids, Array<double, 1> biases, Array<int64_t, 1> bias_starts,
             std::optional<Array<int32_t, 2>> token_mask) {
            new (self) BoundBatch{std::move(reals),  std::move(integers),    std::move(list_starts), std::move(token_ids),
                                  std::move(biases), std::move(bias_starts), std::move(token_mask)};
          },
          nb::arg("reals").noconvert(), nb::arg("integers").noconvert(), nb::arg("list_starts").noconvert(), nb::arg("token_ids").noconvert(), nb::arg("biases").noconvert(),
          nb::arg("bias_starts").noconvert(), nb::arg("token_mask").noconvert().none());

  m.def(
      "sample",
      [](const Array<float, 2>& logits, const BoundBatch& batch, ThreadPool& pool, SamplingWorkspace& workspace,
         const OutArray<int32_t, 1>& token_ids, const OutArray<int32_t, 1>& statuses,
         const OutArray<float, 1>& masked_mass, const BoundLogprobs& logprobs) {
        const SampledRows out{Span(token_ids),
                              {reinterpret_cast<RowStatus*>(statuses.data()), statuses.size()},
                              Span(masked_mass),
                              logprobs.columns()};
        const LogitRows rows = RowsOf(logits);
        const SampleBatch columns = batch.batch(workspace.vocab_size());
        std::string problem;
        {
          nb::gil_scoped_release released;
          problem = Sample(rows, columns, pool, workspace, out);
        }
        Raise(problem);
      },
      nb::arg("logits").noconvert(), nb::arg("batch"), nb::arg("pool"), nb::arg("workspace"), nb::arg("token_ids").noconvert(),
      nb::arg("statuses").noconvert(), nb::arg("masked_mass").noconvert(), nb::arg("logprobs").noconvert());

  m.def(
      "report_logprobs",
      [](const Array<float, 2>& logits, const Array<int32_t, 1>& token_ids, const Array<int32_t, 1>& num_top,
         ThreadPool& pool, SamplingWorkspace& workspace, const BoundLogprobs& logprobs) {
        const LogitRows rows = RowsOf(logits);
        std::string problem;
        {
          nb::gil_scoped_release released;
          problem = ReportLogprobs(rows, Span(token_ids), Span(num_top), pool, workspace, logprobs.columns());
        }
        Raise(problem);
      },
      nb::arg("logits").noconvert(), nb::arg("token_ids").noconvert(), nb::arg("num_top").noconvert(), nb::arg("pool"), nb::arg("workspace"),
      nb::arg("logprobs").noconvert());
}

}  // namespace headrace
