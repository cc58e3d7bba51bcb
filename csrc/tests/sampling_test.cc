// Sampling against its definition, on every instruction set this machine has.
#include "../ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../thread_pool.h"
#include "check.h"
#include "naive_sampling.h"
#include "values.h"

namespace headrace::tests {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double Unit(Random& random) { return std::uniform_real_distribution<double>()(random); }

uint64_t Bits64(Random& random) { return uint64_t{random()} << 32 | random(); }

template <typename T>
T OneOf(Random& random, const std::vector<T>& values) {
  return values[Integer(random, 0, static_cast<int>(values.size()))];
}

// -- calling what is tested --------------------------------------------------------------------------------

// Rows with their parameters, in the columns that Sample takes.
struct Columns {
  std::vector<float> logits;
  std::vector<double> reals, biases;
  std::vector<int64_t> integers, list_starts = {0}, bias_starts = {0};
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> mask;

  void Add(const std::vector<float>& row, int num_columns, const Parameters& p, const std::vector<uint32_t>& row_mask) {
    logits.insert(logits.end(), row.begin(), row.end());
    logits.resize(logits.size() + num_columns - row.size(), 1e30f);  // padding that must not be chosen
    reals.insert(reals.end(), {p.rule.temperature, p.rule.top_p, p.rule.min_p, p.repetition, p.frequency, p.presence});
    integers.insert(integers.end(), {static_cast<int64_t>(p.rule.seed), static_cast<int64_t>(p.rule.position),
                                     p.rule.top_k, p.num_top});
    for (const auto* list : {&p.allowed, &p.forbidden, &p.biased, &p.prompt, &p.output}) {
      token_ids.insert(token_ids.end(), list->begin(), list->end());
      list_starts.push_back(static_cast<int64_t>(token_ids.size()));
    }
    biases.insert(biases.end(), p.biases.begin(), p.biases.end());
    bias_starts.push_back(static_cast<int64_t>(biases.size()));
    mask.insert(mask.end(), row_mask.begin(), row_mask.end());
  }

  SampleBatch batch() const { return {reals, integers, list_starts, token_ids, biases, bias_starts, mask}; }
};

struct Results {
  int num_top;
  std::vector<int32_t> token_ids, ranks, top_ids;
  std::vector<RowStatus> statuses;
  std::vector<float> logprobs, top_logprobs, masked_mass;

  Results(int num_rows, int most)
      : num_top(most), token_ids(num_rows), ranks(num_rows), top_ids(num_rows * most), statuses(num_rows),
        logprobs(num_rows), top_logprobs(num_rows * most), masked_mass(num_rows, 7.0f) {}
  LogprobColumns columns() { return {logprobs, ranks, top_ids, top_logprobs, num_top}; }
  SampledRows rows() { return {token_ids, statuses, masked_mass, columns()}; }
};

std::vector<float> RandomLogits(Random& random, int size) {
  const int kind = Integer(random, 0, 7);
  const double scale = OneOf<double>(random, {0.01, 1.0, 3.0, 10.0});
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<float> logits(size);
  for (float& x : logits) {
    x = static_cast<float>(normal(random));
    if (kind == 1) x = std::round(x * 10.0f) / 10.0f;          // many ties, some of 0 and -0
    if (kind == 2 && Unit(random) < 0.5) x = kMinusInfinity;
    if (kind == 3) x = 0.25f;
    if (kind == 4) x = x > 0.0f ? 0.0f : -0.0f;
  }
  if (kind == 5) logits[Integer(random, 0, size)] += 20.0f;
  if (kind == 6 && Unit(random) < 0.3) logits[Integer(random, 0, size)] = OneOf<float>(random, {kNaN, -kMinusInfinity});
  return logits;
}

std::vector<int32_t> RandomIds(Random& random, int size, int most) {
  std::vector<int32_t> ids(Integer(random, 0, most + 1));
  for (int32_t& id : ids) id = Integer(random, 0, size + 2) - 1;  // some name no token
  return ids;
}

Parameters RandomParameters(Random& random, int size) {
  Parameters p;
  const auto often = [&] { return Unit(random) < 0.4; };
  p.rule.temperature = OneOf<double>(random, {0.0, 1e-4, 0.3, 0.8, 1.0, 1.0, 3.0, 100.0});
  if (often()) p.rule.top_p = OneOf<double>(random, {1e-4, 0.3, 0.9, 0.999, 1.0 - 1e-9});
  if (often()) p.rule.min_p = OneOf<double>(random, {1e-12, 1e-3, 0.2, 1.0});
  if (often()) p.rule.top_k = OneOf<int64_t>(random, {-1, 1, 2, 7, 40, size / 2, size, int64_t{1} << 40});
  p.rule.seed = Bits64(random);
  p.rule.position = Bits64(random) >> OneOf<int>(random, {1, 40});
  if (often()) p.repetition = OneOf<double>(random, {0.01, 0.7, 1.3});
  if (often()) p.frequency = OneOf<double>(random, {-0.7, 0.3});
  if (often()) p.presence = OneOf<double>(random, {-0.5, 2.0});
  if (p.repetition != 1.0 || p.frequency != 0.0 || p.presence != 0.0) {
    p.prompt = RandomIds(random, size, 20);
    p.output = RandomIds(random, size, 20);
  }
  if (Unit(random) < 0.2) p.allowed = RandomIds(random, size, 10);
  if (Unit(random) < 0.2) p.forbidden = RandomIds(random, size, 10);
  if (Unit(random) < 0.2) p.biased = RandomIds(random, size, 5);
  std::sort(p.biased.begin(), p.biased.end());
  p.biased.erase(std::unique(p.biased.begin(), p.biased.end()), p.biased.end());
  for (size_t i = 0; i < p.biased.size(); ++i) p.biases.push_back(200.0 * Unit(random) - 100.0);
  if (often()) p.num_top = Integer(random, 0, 21);
  return p;
}

std::vector<uint32_t> RandomMask(Random& random, int size) {
  std::vector<uint32_t> mask((size + 31) / 32);
  const int kind = Integer(random, 0, 3);
  for (uint32_t& word : mask) word = kind == 0 ? 0u : kind == 1 ? ~0u : static_cast<uint32_t>(random());
  return mask;
}

// -- the tests ---------------------------------------------------------------------------------------------

void CheckLogprobs(const std::vector<float>& logits, int token, int num_top, const Results& results, int row) {
  double sum = 0.0;
  const double peak = *std::max_element(logits.begin(), logits.end());
  for (float x : logits) sum += std::exp(x - peak);
  const double normalizer = peak + std::log(sum), tolerance = 2e-6 * (1.0 + std::fabs(normalizer));
  const auto check = [&](float found, float logit) {
    const double expected = logit - normalizer;
    CHECK(found == expected || std::fabs(found - expected) < tolerance + 1e-7 * std::fabs(expected), found, expected);
  };
  check(results.logprobs[row], logits[token]);
  const auto above = std::count_if(logits.begin(), logits.end(), [&](float x) { return x > logits[token]; });
  CHECK_EQ(results.ranks[row], above + 1);
  const std::vector<int> ranking = NaiveRanking(logits);
  for (int i = 0; i < std::min<int>(num_top, static_cast<int>(logits.size())); ++i) {
    CHECK_EQ(results.top_ids[row * results.num_top + i], ranking[i], "place", i);
    check(results.top_logprobs[row * results.num_top + i], logits[ranking[i]]);
  }
}

void CheckTokens(const Kernels& kernels, int size, int num_rounds, ThreadPool& pool) {
  constexpr int kRows = 12, kMostTop = 20;
  Random random(3 + size);
  SamplingWorkspace workspace(size, 3, kernels);
  for (int round = 0; round < num_rounds; ++round) {
    const int num_columns = size + Integer(random, 0, 3);
    Columns columns;
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<uint32_t>> masks;
    std::vector<Parameters> parameters;
    for (int row = 0; row < kRows; ++row) {
      logits.push_back(RandomLogits(random, size));
      masks.push_back(round % 3 == 0 ? RandomMask(random, size) : std::vector<uint32_t>());
      parameters.push_back(RandomParameters(random, size));
      columns.Add(logits[row], num_columns, parameters[row], masks[row]);
    }
    Results results(kRows, kMostTop);
    CHECK_EQ(Sample({columns.logits.data(), kRows, num_columns}, columns.batch(), pool, workspace, results.rows()), "");
    for (int row = 0; row < kRows; ++row) {
      const NaiveResult expected = NaiveSample(logits[row], parameters[row], masks[row]);
      CHECK(results.statuses[row] == expected.status, kernels.name, "size", size, "round", round, "row", row);
      CHECK_EQ(results.token_ids[row], expected.token, kernels.name, "size", size, "round", round, "row", row);
      CHECK(std::fabs(results.masked_mass[row] - NaiveMaskedMass(logits[row], masks[row])) < 1e-4, kernels.name, "size",
            size, "round", round, "row", row, "mass", results.masked_mass[row]);
      if (expected.token >= 0 && parameters[row].num_top >= 0) {
        CheckLogprobs(logits[row], expected.token, parameters[row].num_top, results, row);
      }
    }
  }
}

TEST("sampling: random bits are those of the published vectors") {
  // kat_vectors of Random123: philox4x32-10 of zeros is 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  CHECK_EQ(Uniform(0, 0), static_cast<double>(0xe169c58d6627e8d5u >> 11) * 0x1p-53);
  CHECK(Uniform(~0ull, ~0ull) < 1.0);
}

TEST("sampling: weights are those of the library's exponential, for every count") {
  for (const Kernels* kernels : AvailableKernels()) {
    Random random(1);
    std::vector<float> x(kTokenBlock);
    std::vector<uint32_t> weights(kTokenBlock), exact(kTokenBlock);
    for (int round = 0; round < 20'000; ++round) {
      const WeighTask task{3.0, OneOf<double>(random, {1.0, 0.7, 5.0}), OneOf<double>(random, {kZeroDistance, -2.0, 0.0})};
      const double range = OneOf<double>(random, {0.1, 3.0, 30.0});
      const int count = 1 + Integer(random, 0, kTokenBlock);
      for (float& value : x) value = static_cast<float>(3.0 - range * Unit(random));
      x[Integer(random, 0, count)] = 3.0f;
      x[Integer(random, 0, kTokenBlock)] = kMinusInfinity;
      std::fill(weights.begin(), weights.end(), 77u);
      const double sum = kernels->sampling.weigh_block(task, x.data(), count, weights.data());
      CHECK_EQ(sum, WeighBlockExactly(task, x.data(), count, exact.data()), kernels->name, "round", round);
      CHECK(std::equal(weights.begin(), weights.begin() + count, exact.begin()), kernels->name, "round", round);
      CHECK(std::all_of(weights.begin() + count, weights.end(), [](uint32_t weight) { return weight == 77u; }),
            kernels->name, "count", count);
    }
  }
}

// Half a unit away from both integers is where the last bits of the exponential decide.
TEST("sampling: weights next to a tie are those of the library's exponential") {
  Random random(5);
  const WeighTask task{0.0, 1.0, kZeroDistance};
  const std::vector<const Kernels*> all = AvailableKernels();
  int num_near = 0;
  for (int round = 0; round < 8'000'000; ++round) {
    const float x[2] = {0.0f, static_cast<float>(-0.7 * Unit(random))};
    const double scaled = std::exp(static_cast<double>(x[1])) * 0x1p31;
    if (std::fabs(scaled - std::floor(scaled) - 0.5) > 0x1p-20) continue;
    ++num_near;
    for (const Kernels* kernels : all) {
      uint32_t weights[2];
      kernels->sampling.weigh_block(task, x, 2, weights);
      CHECK_EQ(weights[1], std::nearbyint(scaled), kernels->name, "logit", x[1]);
    }
  }
  CHECK(num_near > 4);
}

TEST("sampling: the maxima of blocks and NaN anywhere are found in rows of every size") {
  Random random(2);
  for (const Kernels* kernels : AvailableKernels()) {
    for (int size = 1; size <= 300; ++size) {
      std::vector<float> x = Normals(random, size), maxima((size + kTokenBlock - 1) / kTokenBlock);
      CHECK(kernels->sampling.block_maxima(x.data(), size, maxima.data()), kernels->name, "size", size);
      for (int begin = 0; begin < size; begin += kTokenBlock) {
        const auto end = x.begin() + std::min(begin + kTokenBlock, size);
        CHECK_EQ(maxima[begin / kTokenBlock], *std::max_element(x.begin() + begin, end), kernels->name, "size", size);
      }
      const int at = Integer(random, 0, size);
      for (const float nan : {kNaN, -kNaN}) {
        x[at] = nan;
        CHECK(!kernels->sampling.block_maxima(x.data(), size, maxima.data()), kernels->name, "size", size, "at", at);
      }
    }
  }
}

TEST("sampling: a copy under a mask has -inf exactly where the mask forbids") {
  Random random(3);
  for (const Kernels* kernels : AvailableKernels()) {
    for (int size = 1; size <= 300; ++size) {
      const std::vector<float> x = Normals(random, size);
      const std::vector<uint32_t> mask = RandomMask(random, size);
      std::vector<float> copy(size);
      kernels->sampling.copy_allowed(x.data(), mask.data(), size, copy.data());
      for (int i = 0; i < size; ++i) {
        CHECK_EQ(copy[i], IsMasked(mask, i) ? kMinusInfinity : x[i], kernels->name, "size", size, "at", i);
      }
    }
  }
}

TEST("sampling: tokens of small vocabularies are those of the definition") {
  ThreadPool pool(1);
  for (const Kernels* kernels : AvailableKernels()) {
    for (const int size : {1, 2, 31, 50, 127, 128, 129, 320}) CheckTokens(*kernels, size, 150, pool);
  }
}

TEST("sampling: tokens of large vocabularies are those of the definition") {
  ThreadPool pool(3);
  for (const Kernels* kernels : AvailableKernels()) {
    CheckTokens(*kernels, 20'000, 9, pool);
    CheckTokens(*kernels, 131'072, 1, pool);
  }
}

TEST("sampling: log-probabilities of given tokens come from the logits, and a broken row says so") {
  constexpr int kSize = 333, kRows = 9, kMostTop = 20;
  Random random(4);
  ThreadPool pool(2);
  for (const Kernels* kernels : AvailableKernels()) {
    SamplingWorkspace workspace(kSize, 2, *kernels);
    std::vector<float> flat;
    std::vector<std::vector<float>> logits;
    std::vector<int32_t> token_ids, num_top;
    for (int row = 0; row < kRows; ++row) {
      logits.push_back(RandomLogits(random, kSize));
      if (row == 4) logits[row][7] = kNaN;
      flat.insert(flat.end(), logits[row].begin(), logits[row].end());
      token_ids.push_back(Integer(random, 0, kSize));
      num_top.push_back(Integer(random, 0, kMostTop + 1));
    }
    Results results(kRows, kMostTop);
    const LogitRows rows{flat.data(), kRows, kSize};
    CHECK_EQ(ReportLogprobs(rows, token_ids, num_top, pool, workspace, results.columns()), "");
    for (int row = 0; row < kRows; ++row) {
      if (NaiveSample(logits[row], {}, {}).status == RowStatus::kChosen) {
        CheckLogprobs(logits[row], token_ids[row], num_top[row], results, row);
      } else {
        CHECK(std::isnan(results.logprobs[row]), kernels->name, "row", row);
        CHECK_EQ(results.ranks[row], 0, kernels->name, "row", row);
      }
    }
    token_ids[2] = kSize;
    CHECK(!ReportLogprobs(rows, token_ids, num_top, pool, workspace, results.columns()).empty());
  }
}

TEST("sampling: arguments that do not fit together are refused") {
  constexpr int kSize = 40;
  ThreadPool pool(1);
  SamplingWorkspace workspace(kSize, 1, BestKernels());
  const auto refuses = [&](const auto& spoil) {
    Columns columns;
    Parameters p;
    p.biased = {3};
    p.biases = {1.0};
    p.num_top = 2;
    for (int row = 0; row < 2; ++row) columns.Add(std::vector<float>(kSize, 0.5f), kSize, p, {});
    Results results(2, 2);
    LogitRows rows{columns.logits.data(), 2, kSize};
    spoil(columns, results, rows);
    return !Sample(rows, columns.batch(), pool, workspace, results.rows()).empty();
  };
  CHECK(!refuses([](Columns&, Results&, LogitRows&) {}));
  CHECK(refuses([](Columns&, Results&, LogitRows& rows) { rows.num_columns = kSize - 1; }));
  CHECK(refuses([](Columns&, Results&, LogitRows& rows) { rows.num_rows = 1; }));
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.reals[0] = kNaN; }));
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.reals[0] = -1.0; }), "temperature");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.reals[1] = 0.0; }), "top_p");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.reals[2] = 2.0; }), "min_p");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.reals[3] = 0.0; }), "repetition penalty");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.integers[3] = 3; }), "more alternatives than places");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.list_starts[3] = 9; }), "starts that fall");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.list_starts.pop_back(); }));
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.bias_starts[1] = 2; }), "biases of another row");
  CHECK(refuses([](Columns& c, Results&, LogitRows&) { c.mask.resize(1); }));
  CHECK(refuses([](Columns&, Results& r, LogitRows&) { r.token_ids.pop_back(); }));
  CHECK(refuses([](Columns&, Results& r, LogitRows&) { r.top_ids.pop_back(); }));
}

}  // namespace
}  // namespace headrace::tests
