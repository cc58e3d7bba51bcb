#include "../ops/matmul.h"

#include <cstring>

#include "../half.h"
#include "../multiply.h"
#include "check.h"
#include "weights.h"

namespace headrace::tests {
namespace {

constexpr float kCanary = -12345.0f;

// A product with its output, whose rows have room to the right that must stay untouched.
struct Product {
  MatmulTask task{};
  Aligned<float> out;

  Product(const PackedMatrix& weight, const Activations& x, int num_rows, int margin = 3)
      : out(static_cast<size_t>(num_rows) * (weight.num_rows + margin)) {
    task.weight = &weight;
    task.num_rows = num_rows;
    if (IsQuantized(weight.format)) {
      task.quantized = x.quantized();
    } else {
      task.x = x.floats.data();
      task.x_stride = x.num_columns;
    }
    task.scale = 1.0f;
    task.out = out.data();
    task.out_stride = weight.num_rows + margin;
    std::fill_n(out.data(), out.size(), kCanary);
  }

  void Run(const Kernels& kernels, const MatmulTuning& tuning, int row_begin, int row_end) {
    kernels.matmul_panels(task, tuning, 0, task.weight->num_panels(), row_begin, row_end);
  }
  void Run(const Kernels& kernels) { Run(kernels, kernels.matmul_tunings[RowClass(task.num_rows)], 0, task.num_rows); }

  std::span<const float> all() const { return {out.data(), out.size()}; }
  std::span<const float> row(int index) const {
    return {out.data() + static_cast<size_t>(index) * task.out_stride, static_cast<size_t>(task.weight->num_rows)};
  }
  std::span<const float> margin(int index) const {
    return {row(index).end(), static_cast<size_t>(task.out_stride - task.weight->num_rows)};
  }
};

struct Dot {
  double value;
  double tolerance;  // of single-precision sums group by group, in any order
};

// The naive product of one row of activations with one row of weights.
Dot NaiveDot(const OwnedMatrix& weight, const Activations& x, int row, const std::vector<float>& w) {
  const bool is_quantized = IsQuantized(weight.shape.format);
  double sum = 0.0, magnitude = 0.0;
  double largest = 4.0 / std::sqrt(weight.shape.num_columns);  // of what a weight is put together from
  for (int k = 0; k < weight.shape.num_columns; ++k) {
    const double value = is_quantized ? x.Dequantized(row, k) : x.floats[static_cast<size_t>(row) * x.num_columns + k];
    sum += value * w[k];
    magnitude += std::fabs(value);
    largest = std::max<double>(largest, std::fabs(w[k]));
  }
  // A minimum and a shift by 128 are products of their own, up to three times as large as what they make.
  const double num_sums = is_quantized ? 2.0 * weight.shape.num_groups() : weight.shape.num_columns;
  return {sum, (is_quantized ? 3.0 : 1.0) * (num_sums + 4) * 6e-8 * magnitude * largest + 1e-30};
}

constexpr int kOddColumns[] = {1, 31, 32, 33, 70, 160, 257};
constexpr int kOddRows[] = {1, 15, 16, 17, 50};

template <typename Body>
void ForEveryKernelAndFormat(const Body& body) {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const WeightFormat format : kAllFormats) body(*kernels, format);
  }
}

TEST("matmul: equals the naive product for every format, size and number of rows") {
  ForEveryKernelAndFormat([](const Kernels& kernels, WeightFormat format) {
    Random random(1);
    for (const int num_columns : kOddColumns) {
      for (const int num_outputs : kOddRows) {
        const OwnedMatrix weight = RandomMatrix(format, num_outputs, num_columns, random);
        const Activations x = RandomActivations(40, num_columns, random);
        std::vector<Dot> expected;
        for (int n = 0; n < num_outputs; ++n) {
          const std::vector<float> w = weight.Row(n);
          for (int row = 0; row < 40; ++row) expected.push_back(NaiveDot(weight, x, row, w));
        }
        for (int num_rows = 1; num_rows <= 40; num_rows += num_rows < 20 ? 1 : 5) {
          Product product(weight.shape, x, num_rows);
          product.Run(kernels);
          for (int row = 0; row < num_rows; ++row) {
            for (int n = 0; n < num_outputs; ++n) {
              const Dot& dot = expected[static_cast<size_t>(n) * 40 + row];
              CHECK_NEAR(product.row(row)[n], dot.value, dot.tolerance, kernels.name, static_cast<int>(format),
                         "columns", num_columns, "outputs", num_outputs, "rows", num_rows, "row", row, "output", n);
            }
            for (const float beside : product.margin(row)) CHECK_EQ(beside, kCanary);
          }
        }
      }
    }
  });
}

TEST("matmul: epilogues add a bias, and scale what they add to the output") {
  ForEveryKernelAndFormat([](const Kernels& kernels, WeightFormat format) {
    Random random(2);
    const int num_outputs = 37;
    const OwnedMatrix weight = RandomMatrix(format, num_outputs, 45, random);
    const std::vector<float> bias = Normals(random, num_outputs), before = Normals(random, num_outputs);
    for (const int num_rows : {1, 5, 20}) {
      const Activations x = RandomActivations(num_rows, 45, random);
      Product plain(weight.shape, x, num_rows), biased(weight.shape, x, num_rows), added(weight.shape, x, num_rows);
      plain.Run(kernels);
      biased.task.bias = added.task.bias = bias.data();
      biased.Run(kernels);
      added.task.epilogue = Epilogue::kAdd;
      added.task.scale = 0.25f;
      for (int row = 0; row < num_rows; ++row) std::copy(before.begin(), before.end(), added.out.data() + row * 40);
      added.Run(kernels);
      for (int row = 0; row < num_rows; ++row) {
        for (int n = 0; n < num_outputs; ++n) {
          const float product = plain.row(row)[n];
          CHECK_NEAR(biased.row(row)[n], product + bias[n], 1e-6 * (1 + std::fabs(product)), kernels.name, num_rows);
          CHECK_NEAR(added.row(row)[n], before[n] + 0.25 * (product + bias[n]), 1e-6 * (3 + std::fabs(product)),
                     kernels.name, num_rows);
        }
        for (const float beside : added.margin(row)) CHECK_EQ(beside, kCanary);
      }
    }
  });
}

constexpr MatmulTuning kPlain = {1, 1, 1, 1};

// Every way the kernels can cut a product into tiles.
std::vector<MatmulTuning> AllTunings(const Kernels& kernels) {
  std::vector<MatmulTuning> tunings;
  for (int panels = 1; panels <= kMaxTilePanels; ++panels) {
    for (int rows = 1; rows <= kernels.max_tile_rows[panels - 1]; ++rows) tunings.push_back({rows, panels, 128, 1});
  }
  return tunings;
}

TEST("matmul: a row's bits do not depend on the rows computed with it, nor on how they are cut into tiles") {
  ForEveryKernelAndFormat([](const Kernels& kernels, WeightFormat format) {
    Random random(3);
    const OwnedMatrix weight = RandomMatrix(format, 50, 101, random);  // four panels, the last not whole
    const Activations x = RandomActivations(70, 101, random);
    Product alone(weight.shape, x, 70);
    for (int row = 0; row < 70; ++row) alone.Run(kernels, kPlain, row, row + 1);
    const auto check = [&](const Product& product, const auto&... where) {
      for (int row = 0; row < product.task.num_rows; ++row) {
        CHECK_EQ(FirstDifference(product.row(row), alone.row(row)), -1, kernels.name, static_cast<int>(format), "row",
                 row, where...);
      }
    };
    for (int num_rows = 1; num_rows <= 70; ++num_rows) {
      Product together(weight.shape, x, num_rows);
      together.Run(kernels);
      check(together, "of", num_rows);
    }
    for (const MatmulTuning& tuning : AllTunings(kernels)) {
      for (const int num_rows : {1, 2, 3, 5, 7, 8, 13, 23, 70}) {
        Product together(weight.shape, x, num_rows);
        together.Run(kernels, tuning, 0, num_rows);
        check(together, "of", num_rows, "tile", tuning.tile_rows, "x", tuning.tile_panels);

        const int row_cut = Integer(random, 0, num_rows), panel_cut = Integer(random, 0, 4);
        Product parted(weight.shape, x, num_rows);
        for (const auto& [begin, end] : {std::pair{panel_cut, 4}, {0, panel_cut}}) {
          kernels.matmul_panels(parted.task, tuning, begin, end, row_cut, num_rows);
          kernels.matmul_panels(parted.task, tuning, begin, end, 0, row_cut);
        }
        check(parted, "of", num_rows, "cut at", row_cut, panel_cut, "tile", tuning.tile_rows, "x", tuning.tile_panels);
        for (int row = 0; row < num_rows; ++row) {
          for (const float beside : parted.margin(row)) CHECK_EQ(beside, kCanary);
        }
      }
    }
  });
}

TEST("matmul: over all threads each output is computed once, to the same bits for every tuning") {
  ForEveryKernelAndFormat([](const Kernels& kernels, WeightFormat format) {
    Random random(6);
    const OwnedMatrix weight = RandomMatrix(format, 130, 40, random);  // nine panels
    const Activations x = RandomActivations(37, 40, random);
    Product alone(weight.shape, x, 37);
    alone.task.epilogue = Epilogue::kAdd;  // what is computed twice is added twice
    alone.Run(kernels, kPlain, 0, 37);
    for (int num_threads = 1; num_threads <= 3; ++num_threads) {
      ThreadPool pool(num_threads);
      for (MatmulTuning tuning : AllTunings(kernels)) {
        tuning.block_rows = OneOf(random, {1, 2, 7, 36, 37, 128});
        tuning.piece_bytes = OneOf(random, {0, 1, 5000, 20000, 1 << 20});
        CHECK_EQ(TuningProblem(tuning, kernels), "");
        Product product(weight.shape, x, 37);
        product.task.epilogue = Epilogue::kAdd;
        Multiply(kernels, product.task, tuning, pool);
        CHECK_EQ(FirstDifference(product.all(), alone.all()), -1, kernels.name, static_cast<int>(format), "threads",
                 num_threads, "tile", tuning.tile_rows, "x", tuning.tile_panels, "block", tuning.block_rows, "piece",
                 tuning.piece_bytes);
      }
    }
  });
}

TEST("matmul: tunings that the kernels cannot follow are refused with the number and its bounds") {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const MatmulTuning& tuning : kernels->matmul_tunings) CHECK_EQ(TuningProblem(tuning, *kernels), "");
    const int most = kernels->max_tile_rows[0];
    for (const MatmulTuning& wrong : std::vector<MatmulTuning>{{0, 1, 1, 0},
                                                               {most + 1, 1, 1, 0},
                                                               {1, 0, 1, 0},
                                                               {1, 3, 1, 0},
                                                               {1, 1, 0, 0},
                                                               {1, 1, 1 << 30, 0},
                                                               {1, 1, 1, -1},
                                                               {1, 1, 1, 1 << 30},
                                                               {-5, 1, 1, 0},
                                                               {1, -1, 1, 0}}) {
      CHECK(!TuningProblem(wrong, *kernels).empty(), kernels->name, wrong.tile_rows, wrong.tile_panels,
            wrong.block_rows, wrong.piece_bytes);
    }
  }
}

// With scales of one everything is a sum of small integers, which floats hold exactly: no rounding excuses anything.
TEST("matmul: integer weights at the ends of their range add up without overflow, exactly") {
  constexpr int kColumns = 96, kOutputs = 48, kGroups = kColumns / kGroupColumns;
  const uint16_t one = F16FromFloat(1.0f);
  for (const Kernels* kernels : AvailableKernels()) {
    for (const StoredFormat stored : {StoredFormat::kQ4_1, StoredFormat::kQ8_0}) {
      const bool is_int8 = stored == StoredFormat::kQ8_0;
      const size_t block_bytes = is_int8 ? 34 : 20;
      // outputs 0 to 3: all lowest, all highest, alternating, alternating the other way; the rest random
      Random random(4);
      std::vector<uint8_t> blocks(kOutputs * kGroups * block_bytes);
      for (size_t block = 0; block < blocks.size() / block_bytes; ++block) {
        uint8_t* bytes = blocks.data() + block * block_bytes;
        std::memcpy(bytes, &one, 2);
        for (size_t i = is_int8 ? 2 : 4; i < block_bytes; ++i) {
          const int pattern = static_cast<int>(block) / kGroups;
          const uint8_t low = is_int8 ? 0x80 : 0x00, high = is_int8 ? 0x7f : 0xff;
          const uint8_t by_pattern[] = {low, high, i % 2 ? low : high, i % 2 ? high : low};
          bytes[i] = pattern < 4 ? by_pattern[pattern] : static_cast<uint8_t>(Integer(random, 0, 256));
        }
      }
      OwnedMatrix weight(is_int8 ? WeightFormat::kInt8 : WeightFormat::kInt4, kOutputs, kColumns);
      PackStored(blocks.data(), stored, weight.shape, 0, kOutputs, weight.bytes.data());

      Activations x = RandomActivations(20, kColumns, random);
      for (int row = 0; row < 20; ++row) {
        for (int group = 0; group < kGroups; ++group) {
          const QuantizedRow to = x.quantized_row(row);
          int sum = 0;
          for (int i = group * kGroupColumns; i < (group + 1) * kGroupColumns; ++i) {
            if (row < 4)
              to.values[i] = static_cast<int8_t>(row == 0 ? -127 : row == 1 ? 127 : i % 2 ? 127 * (2 * row - 5) : 0);
            sum += to.values[i];
          }
          to.scale[group] = 1.0f;
          to.scaled_sum[group] = static_cast<float>(sum);
        }
      }
      for (const MatmulTuning& tuning : AllTunings(*kernels)) {
        Product product(weight.shape, x, 20);
        product.Run(*kernels, tuning, 0, 20);
        for (int n = 0; n < kOutputs; ++n) {
          const std::vector<float> w = weight.Row(n);
          for (int row = 0; row < 20; ++row) {
            long sum = 0;
            for (int k = 0; k < kColumns; ++k) sum += std::lround(w[k]) * std::lround(x.Dequantized(row, k));
            CHECK_EQ(product.row(row)[n], static_cast<float>(sum), kernels->name, is_int8, "row", row, "output", n);
          }
        }
      }
    }
  }
}

TEST("matmul: a row that is not finite stays so and reaches no other row") {
  ForEveryKernelAndFormat([](const Kernels& kernels, WeightFormat format) {
    Random random(5);
    const OwnedMatrix weight = RandomMatrix(format, 33, 64, random);
    for (const int num_rows : {3, 24}) {
      Activations x = RandomActivations(num_rows, 64, random);
      Product clean(weight.shape, x, num_rows);
      clean.Run(kernels);
      x.floats[64 + 7] = NAN;
      x.scale[1 * x.num_groups] = NAN;
      Product broken(weight.shape, x, num_rows);
      broken.Run(kernels);
      for (int row = 0; row < num_rows; ++row) {
        if (row == 1) {
          for (const float value : broken.row(row)) CHECK(std::isnan(value), kernels.name, static_cast<int>(format));
        } else {
          CHECK_EQ(FirstDifference(broken.row(row), clean.row(row)), -1, kernels.name, static_cast<int>(format), "row",
                   row);
        }
      }
    }
  });
}

}  // namespace
}  // namespace headrace::tests
