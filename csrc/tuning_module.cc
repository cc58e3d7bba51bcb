#include "tuning_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "multiply.h"

namespace nb = nanobind;

namespace headrace {
namespace {

template <typename T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using MatrixArguments = std::tuple<int, int, int, nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;
using OutArray2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void Require(bool condition, const std::string& message) {
  if (!condition) throw nb::value_error(message.c_str());
}

const Kernels& KernelsFor(const std::string& name) {
  const Kernels* kernels = name.empty() ? &BestKernels() : KernelsNamed(name);
  Require(kernels != nullptr, "these kernels do not exist or this machine cannot run them");
  return *kernels;
}

MatmulTuning TuningFrom(const TuningNumbers& numbers) {
  return {std::get<0>(numbers), std::get<1>(numbers), std::get<2>(numbers), std::get<3>(numbers)};
}

TuningNumbers NumbersOf(const MatmulTuning& tuning) {
  return {tuning.tile_rows, tuning.tile_panels, tuning.block_rows, tuning.piece_bytes};
}

std::vector<PackedMatrix> Matrices(const std::vector<MatrixArguments>& arguments, size_t rows, size_t columns) {
  std::vector<PackedMatrix> matrices;
  for (const auto& [format, num_rows, num_columns, bytes] : arguments) {
    Require(format >= 0 && format <= static_cast<int>(WeightFormat::kInt4Wide), "no such weight format");
    Require(num_rows > 0 && num_columns > 0, "a matrix has no rows or no columns");
    Require(static_cast<size_t>(num_rows) == rows && static_cast<size_t>(num_columns) == columns,
            "each matrix must have as many columns as x, and as many rows as out has columns");
    matrices.push_back({static_cast<WeightFormat>(format), num_rows, num_columns, bytes.data()});
    Require(bytes.shape(0) >= matrices.back().num_bytes(), "a matrix has fewer bytes than its shape needs");
    Require(reinterpret_cast<uintptr_t>(bytes.data()) % 64 == 0, "a matrix is not aligned to 64 bytes");
    Require(matrices.back().format == matrices[0].format, "the matrices must have one format");
  }
  Require(!matrices.empty(), "there must be a matrix");
  return matrices;
}

// Rows of x as the kernels take them: as they are, or quantised.
class Input {
 public:
  Input(const Kernels& kernels, const PackedMatrix& weight, const Array2<float>& x)
      : x_(x.data()),
        num_rows_(static_cast<int>(x.shape(0))),
        num_columns_(weight.num_columns),
        num_groups_(IsQuantized(weight.format) ? weight.num_groups() : 0) {
    const size_t groups = static_cast<size_t>(num_rows_) * num_groups_;
    values_.resize(groups * kGroupColumns);
    scales_.resize(groups);
    scaled_sums_.resize(groups);
    for (int row = 0; row < num_rows_ && num_groups_ > 0; ++row) {
      const size_t group = static_cast<size_t>(row) * num_groups_;
      kernels.quantize_row(x_ + static_cast<size_t>(row) * num_columns_, num_columns_,
                           {values_.data() + group * kGroupColumns, scales_.data() + group, scaled_sums_.data() + group});
    }
  }

  MatmulTask Task(const PackedMatrix& weight, float* out) const {
    MatmulTask task{};
    task.weight = &weight;
    task.x = x_;
    task.x_stride = num_columns_;
    task.quantized = {values_.data(), scales_.data(), scaled_sums_.data(), num_groups_};
    task.num_rows = num_rows_;
    task.epilogue = Epilogue::kStore;
    task.scale = 1.0f;
    task.out = out;
    task.out_stride = weight.num_rows;
    return task;
  }

 private:
  const float* x_;
  int num_rows_, num_columns_, num_groups_;
  std::vector<int8_t> values_;
  std::vector<float> scales_, scaled_sums_;
};

// Multiplies x by each matrix in turn, `rounds` times over; says how many seconds each round took. `out` is what
// the last product left.
std::vector<double> TimeProducts(const std::vector<MatrixArguments>& arguments, const Array2<float>& x,
                                 const TuningNumbers& numbers, ThreadPool& pool, const OutArray2& out, int rounds,
                                 const std::string& name) {
  Require(x.shape(0) > 0 && x.shape(0) <= (1 << 20) && x.shape(0) == out.shape(0), "x and out must have as many rows");
  Require(rounds > 0, "rounds must be positive");
  const Kernels& kernels = KernelsFor(name);
  const MatmulTuning tuning = TuningFrom(numbers);
  Require(TuningProblem(tuning, kernels).empty(), TuningProblem(tuning, kernels));
  const std::vector<PackedMatrix> matrices = Matrices(arguments, out.shape(1), x.shape(1));
  nb::gil_scoped_release released;
  const Input input(kernels, matrices[0], x);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const auto started = std::chrono::steady_clock::now();
    for (const PackedMatrix& matrix : matrices) Multiply(kernels, input.Task(matrix, out.data()), tuning, pool);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  }
  return seconds;
}

}  // namespace

std::vector<MatmulTunings> TuningsFrom(const std::vector<TuningArguments>& listed) {
  std::vector<MatmulTunings> tunings;
  for (const TuningArguments& numbers : listed) {
    Require(numbers.size() == kNumRowClasses, "a matrix has a tuning for each row class");
    MatmulTunings of_matrix;
    std::transform(numbers.begin(), numbers.end(), of_matrix.begin(), TuningFrom);
    tunings.push_back(of_matrix);
  }
  return tunings;
}

void BindTuning(nb::module_& m) {
  m.def("row_class_ends", [] { return std::vector<int>(std::begin(kLargestRows), std::end(kLargestRows)); });
  m.def(
      "max_tile_rows",
      [](const std::string& kernels) {
        const int* rows = KernelsFor(kernels).max_tile_rows;
        return std::vector<int>(rows, rows + kMaxTilePanels);
      },
      nb::arg("kernels"));
  m.def(
      "default_tunings",
      [](const std::string& kernels) {
        TuningArguments numbers;
        for (const MatmulTuning& tuning : KernelsFor(kernels).matmul_tunings) numbers.push_back(NumbersOf(tuning));
        return numbers;
      },
      nb::arg("kernels"));
  m.def("time_products", &TimeProducts, nb::arg("matrices").noconvert(), nb::arg("x").noconvert(), nb::arg("tuning"),
        nb::arg("pool"), nb::arg("out").noconvert(), nb::arg("rounds") = 1, nb::arg("kernels") = "");
}

}  // namespace headrace
