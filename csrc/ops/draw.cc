#include "draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace headrace {
namespace {

constexpr double kWeightOne = 0x1p31;
constexpr int kFirstLook = 64;  // tokens looked at first when it is unknown how many will be kept
constexpr int kUnsettled = -1;

// One row being drawn from.
struct Draw {
  const PeakedRow& row;
  const DrawRule& rule;
  const SamplingKernels& kernels;
  SamplingScratch& scratch;
  WeighTask task;

  bool has_top_k() const { return rule.top_k > 0 && rule.top_k < row.size; }
  bool has_top_p() const { return rule.top_p < 1.0; }
  double TargetIn(double total) const {
    return std::min(std::floor(Uniform(rule.seed, rule.position) * total), total - 1.0);
  }
};

// The first index at which the running sum of weights exceeds target, which lies below their sum.
int IndexAt(const uint32_t* weights, double target) {
  double running = weights[0];
  int index = 0;
  while (running <= target) running += weights[++index];
  return index;
}

// Weighs the row block by block: weights_of(block) says where a block's weights go. Returns the sum.
template <typename WeightsOf>
double WeighRow(const Draw& draw, const WeightsOf& weights_of) {
  double total = 0.0;
  for (int block = 0; block < draw.row.num_blocks(); ++block) {
    const int count = draw.row.block_size(block);
    uint32_t* weights = weights_of(block);
    double& sum = draw.scratch.block_weights[block];
    if ((draw.row.maxima[block] - draw.task.peak) / draw.task.temperature < draw.task.min_distance) {
      std::fill_n(weights, count, 0u);
      sum = 0.0;
    } else {
      sum = draw.kernels.weigh_block(draw.task, draw.row.logits + block * kTokenBlock, count, weights);
    }
    total += sum;
  }
  return total;
}

struct BlockTarget {
  int block;
  double target;  // within the block
};

BlockTarget BlockAt(const double* block_weights, double target) {
  int block = 0;
  while (target >= block_weights[block]) target -= block_weights[block++];
  return {block, target};
}

// Draws where no ranking is needed. Weights are not kept: those of the block that the token lies in are made again.
int DrawFree(const Draw& draw) {
  uint32_t weights[kTokenBlock];
  const double total = WeighRow(draw, [&](int) { return weights; });
  const auto [block, target] = BlockAt(draw.scratch.block_weights.get(), draw.TargetIn(total));
  const int begin = block * kTokenBlock;
  draw.kernels.weigh_block(draw.task, draw.row.logits + begin, draw.row.block_size(block), weights);
  return begin + IndexAt(weights, target);
}

// The first tokens of the ranking with their weights.
struct RankedTokens {
  std::span<uint64_t> keys;
  std::span<const uint32_t> weights;

  double weight() const { return static_cast<double>(std::accumulate(weights.begin(), weights.end(), uint64_t{0})); }
};

RankedTokens WeighFirst(const Draw& draw, int count) {
  SamplingScratch& scratch = draw.scratch;
  const std::span<uint64_t> keys = FirstRanked(draw.row, count, scratch);
  std::transform(keys.begin(), keys.end(), scratch.few_logits, LogitOfKey);
  for (int begin = 0; begin < count; begin += kTokenBlock) {
    draw.kernels.weigh_block(draw.task, scratch.few_logits + begin, std::min(kTokenBlock, count - begin),
                             scratch.few_weights + begin);
  }
  return {keys, {scratch.few_weights, keys.size()}};
}

// Draws from those of the tokens before which there is less weight than `limit`; the keys are overwritten. Gives
// kUnsettled if they have less than `limit` together, so that more tokens might be kept.
int DrawRanked(const Draw& draw, const RankedTokens& tokens, double limit) {
  double total = 0.0;
  size_t num_kept = 0;
  while (num_kept < tokens.keys.size() && total < limit) total += tokens.weights[num_kept++];
  if (total < limit) return kUnsettled;
  const std::span<uint64_t> kept = tokens.keys.first(num_kept);
  // Now the token in the upper half, which sorts into vocabulary order, and the weight in the lower.
  for (size_t i = 0; i < num_kept; ++i) kept[i] = kept[i] << 32 | tokens.weights[i];
  std::sort(kept.begin(), kept.end());
  double running = 0.0;
  const double target = draw.TargetIn(total);
  const auto drawn = std::find_if(kept.begin(), kept.end(), [&](uint64_t token_and_weight) {
    running += static_cast<double>(token_and_weight & 0xffffffffu);
    return running > target;
  });
  return static_cast<int>(*drawn >> 32);
}

// The last key kept, and the weight of all kept tokens.
struct Border {
  uint64_t key;
  double mass;
};

// What of a row's weights lies at which distance from the peak. Tokens without weight are left out: they come last
// in the ranking and are never drawn, so whether a filter keeps them does not matter.
class Histogram {
 public:
  explicit Histogram(const Draw& draw);

  // The border that keeps the first `num_kept` tokens, fewer than there are with weight. Needs a draw with top_k,
  // without which nothing is counted.
  Border AfterCount(uint64_t num_kept);
  // The border that keeps tokens before which lies less weight than `limit`.
  Border AfterWeight(double limit);
  uint64_t num_weighty() const { return num_weighty_; }

 private:
  template <typename Visit>
  void ForBins(const Visit& visit) const;
  std::span<uint64_t> KeysOf(int bin) const;
  double WeightOf(std::span<const uint64_t> keys) const;

  const Draw& draw_;
  BinTask task_;
  uint64_t num_weighty_ = 0;
};

Histogram::Histogram(const Draw& draw) : draw_(draw) {
  const double extent = std::max(-draw.task.min_distance * draw.task.temperature, 1e-30);
  task_ = {draw.row.peak, static_cast<float>(kNumBins / extent), kNumBins - 1};
  Bin* bins = draw.scratch.bins;
  const uint32_t* weights = draw.scratch.weights.get();
  std::fill_n(bins, kNumBins, Bin{});
  if (draw.has_top_k()) {
    ForBins([&](int token, int bin) {
      bins[bin].weight += weights[token];
      bins[bin].count += weights[token] != 0;
    });
  } else {  // half the work
    ForBins([&](int token, int bin) { bins[bin].weight += weights[token]; });
  }
  for (int bin = 0; bin < kNumBins; ++bin) num_weighty_ += bins[bin].count;
}

// Calls visit(token, bin) for the tokens of all blocks that have weight.
template <typename Visit>
void Histogram::ForBins(const Visit& visit) const {
  int32_t bins[kTokenBlock];
  for (int block = 0; block < draw_.row.num_blocks(); ++block) {
    if (draw_.scratch.block_weights[block] == 0.0) continue;
    const int begin = block * kTokenBlock, count = draw_.row.block_size(block);
    draw_.kernels.bin_block(draw_.row.logits + begin, count, task_, bins);
    for (int i = 0; i < count; ++i) visit(begin + i, bins[i]);
  }
}

std::span<uint64_t> Histogram::KeysOf(int bin) const {
  uint64_t* keys = draw_.scratch.keys.get();
  size_t count = 0;
  ForBins([&](int token, int its_bin) {
    if (its_bin == bin && draw_.scratch.weights[token] != 0) keys[count++] = RankKey(draw_.row.logits[token], token);
  });
  return {keys, count};
}

double Histogram::WeightOf(std::span<const uint64_t> keys) const {
  uint64_t sum = 0;
  for (uint64_t key : keys) sum += draw_.scratch.weights[TokenOfKey(key)];
  return static_cast<double>(sum);
}

Border Histogram::AfterCount(uint64_t num_kept) {
  const Bin* bin = draw_.scratch.bins;
  double mass = 0.0;
  for (; bin->count < num_kept; ++bin) {
    num_kept -= bin->count;
    mass += static_cast<double>(bin->weight);
  }
  const std::span<uint64_t> keys = KeysOf(static_cast<int>(bin - draw_.scratch.bins));
  std::nth_element(keys.begin(), keys.begin() + (num_kept - 1), keys.end());
  return {keys[num_kept - 1], mass + WeightOf(keys.first(num_kept))};
}

Border Histogram::AfterWeight(double limit) {
  const Bin* bin = draw_.scratch.bins;
  double before = 0.0;
  for (; before + static_cast<double>(bin->weight) < limit; ++bin) before += static_cast<double>(bin->weight);
  std::span<uint64_t> keys = KeysOf(static_cast<int>(bin - draw_.scratch.bins));
  // The border lies in `keys`, after whose predecessors there is a weight of `before`: halve them until one is left.
  while (keys.size() > 1) {
    const size_t half = keys.size() / 2;
    std::nth_element(keys.begin(), keys.begin() + half, keys.end());
    const double middle = before + WeightOf(keys.first(half));
    keys = middle < limit ? keys.subspan(half) : keys.first(half);
    if (middle < limit) before = middle;
  }
  return {keys[0], before + WeightOf(keys)};
}

// Draws where filters may keep any number of tokens. The row's weights lie in the scratch, `total` is their sum.
int DrawWidely(const Draw& draw, double total) {
  SamplingScratch& scratch = draw.scratch;
  Histogram histogram(draw);
  Border border{RankKey(-std::numeric_limits<float>::infinity(), draw.row.size - 1), total};  // keeps everything
  if (draw.has_top_k() && static_cast<uint64_t>(draw.rule.top_k) < histogram.num_weighty()) {
    border = histogram.AfterCount(draw.rule.top_k);
  }
  if (draw.has_top_p()) border = histogram.AfterWeight(draw.rule.top_p * border.mass);
  const float border_logit = LogitOfKey(border.key);
  double kept = 0.0;
  for (int block = 0; block < draw.row.num_blocks(); ++block) {
    double& sum = scratch.block_weights[block];
    const int begin = block * kTokenBlock;
    if (sum != 0.0) {
      sum = draw.kernels.drop_block(draw.row.logits + begin, draw.row.block_size(block), border_logit,
                                    TokenOfKey(border.key) + 1 - begin, scratch.weights.get() + begin);
    }
    kept += sum;
  }
  const auto [block, target] = BlockAt(scratch.block_weights.get(), draw.TargetIn(kept));
  return block * kTokenBlock + IndexAt(scratch.weights.get() + block * kTokenBlock, target);
}

int DrawFiltered(const Draw& draw) {
  // With more blocks than tokens wanted, the maxima of blocks lead to them.
  const int few = std::min(kMaxFew, draw.row.num_blocks());
  if (draw.has_top_k() && draw.rule.top_k <= few) {
    const RankedTokens tokens = WeighFirst(draw, static_cast<int>(draw.rule.top_k));
    return DrawRanked(draw, tokens, draw.rule.top_p * tokens.weight());
  }
  const double total =
      WeighRow(draw, [&](int block) { return draw.scratch.weights.get() + block * kTokenBlock; });
  if (!draw.has_top_k() && kFirstLook <= few) {
    const int token = DrawRanked(draw, WeighFirst(draw, kFirstLook), draw.rule.top_p * total);
    if (token != kUnsettled) return token;
  }
  return DrawWidely(draw, total);
}

}  // namespace

double Uniform(uint64_t seed, uint64_t position) {
  constexpr uint64_t kLowWord = 0xffffffffu;
  uint64_t c0 = position & kLowWord, c1 = position >> 32, c2 = 0, c3 = 0;
  uint64_t k0 = seed & kLowWord, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = 0xD2511F53u * c0, product1 = 0xCD9E8D57u * c2;
    c0 = (product1 >> 32) ^ c1 ^ k0;
    c1 = product1 & kLowWord;
    c2 = (product0 >> 32) ^ c3 ^ k1;
    c3 = product0 & kLowWord;
    k0 = (k0 + 0x9E3779B9u) & kLowWord;
    k1 = (k1 + 0xBB67AE85u) & kLowWord;
  }
  return static_cast<double>((c1 << 32 | c0) >> 11) * 0x1p-53;
}

double WeighBlockExactly(const WeighTask& task, const float* x, int count, uint32_t* weights) {
  double sum = 0.0;
  for (int i = 0; i < count; ++i) {
    const double z = (x[i] - task.peak) / task.temperature;
    const double weight = z >= task.min_distance ? std::nearbyint(std::exp(z) * kWeightOne) : 0.0;
    weights[i] = static_cast<uint32_t>(weight);
    sum += weight;
  }
  return sum;
}

int DrawToken(const PeakedRow& row, const DrawRule& rule, const SamplingKernels& kernels, SamplingScratch& scratch) {
  const double min_distance = rule.min_p > 0.0 ? std::max(std::log(rule.min_p), kZeroDistance) : kZeroDistance;
  const Draw draw{row, rule, kernels, scratch, {row.peak, rule.temperature, min_distance}};
  return draw.has_top_k() || draw.has_top_p() ? DrawFiltered(draw) : DrawFree(draw);
}

}  // namespace headrace
