// Sampling's definition once more, one row and one token at a time, as slow and obvious as can be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "../ops/draw.h"
#include "../ops/sampling.h"

namespace headrace::tests {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Parameters {
  DrawRule rule = {.temperature = 1.0, .top_p = 1.0, .min_p = 0.0, .top_k = 0, .seed = 0, .position = 0};
  double repetition = 1.0, frequency = 0.0, presence = 0.0;
  int num_top = -1;
  std::vector<int32_t> allowed, forbidden, biased, prompt, output;
  std::vector<double> biases;
};

inline bool Contains(const std::vector<int32_t>& ids, int token) { return std::find(ids.begin(), ids.end(), token) != ids.end(); }

inline bool IsMasked(const std::vector<uint32_t>& mask, int token) {
  return !mask.empty() && ((mask[token / 32] >> (token % 32)) & 1) == 0;
}

inline std::vector<float> NaiveEdits(const std::vector<float>& logits, const Parameters& p, const std::vector<uint32_t>& mask) {
  std::vector<float> edited = logits;
  for (int token = 0; token < static_cast<int>(logits.size()); ++token) {
    float& x = edited[token];
    if (IsMasked(mask, token) || (!p.allowed.empty() && !Contains(p.allowed, token)) || Contains(p.forbidden, token)) {
      x = kMinusInfinity;
    }
    for (size_t i = 0; i < p.biased.size(); ++i) {
      if (p.biased[i] == token) x += static_cast<float>(p.biases[i]);
    }
    if (p.repetition != 1.0 && (Contains(p.prompt, token) || Contains(p.output, token))) {
      const float penalty = static_cast<float>(p.repetition);
      x = x > 0.0f ? x / penalty : x * penalty;
    }
    const auto count = std::count(p.output.begin(), p.output.end(), token);
    if (count > 0) {
      const float product = static_cast<float>(p.frequency) * static_cast<float>(count);
      x = x - product;
      x = x - static_cast<float>(p.presence);
    }
  }
  return edited;
}

inline double NaiveMaskedMass(const std::vector<float>& logits, const std::vector<uint32_t>& mask) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(peak)) return 0.0;
  double total = 0.0, masked = 0.0;
  for (int token = 0; token < static_cast<int>(logits.size()); ++token) {
    const double weight = std::exp(logits[token] - peak);
    total += weight;
    if (IsMasked(mask, token)) masked += weight;
  }
  return std::isnan(total) ? 0.0 : masked / total;
}

inline std::vector<int> NaiveRanking(const std::vector<float>& logits) {
  std::vector<int> ranking(logits.size());
  std::iota(ranking.begin(), ranking.end(), 0);
  std::stable_sort(ranking.begin(), ranking.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  return ranking;
}

inline int NaiveDraw(const std::vector<float>& logits, const DrawRule& rule) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  std::vector<double> distances, weights;
  for (float x : logits) distances.push_back((x - peak) / rule.temperature);
  for (double z : distances) weights.push_back(std::nearbyint(std::exp(z) * 0x1p31));
  std::vector<int> ranking = NaiveRanking(logits);
  if (rule.min_p > 0.0) {
    std::erase_if(ranking, [&](int token) { return distances[token] < std::log(rule.min_p); });
  }
  if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(ranking.size())) ranking.resize(rule.top_k);
  double total = 0.0;
  for (int token : ranking) total += weights[token];
  if (rule.top_p < 1.0) {
    const double limit = rule.top_p * total;
    size_t num_kept = 0;
    for (total = 0.0; num_kept < ranking.size() && total < limit; ++num_kept) total += weights[ranking[num_kept]];
    ranking.resize(num_kept);
  }
  std::sort(ranking.begin(), ranking.end());
  const double target = std::min(std::floor(Uniform(rule.seed, rule.position) * total), total - 1.0);
  double running = 0.0;
  for (int token : ranking) {
    running += weights[token];
    if (running > target) return token;
  }
  return -1;  // cannot be: the target lies below the total
}

struct NaiveResult {
  RowStatus status;
  int token = -1;
};

inline NaiveResult NaiveSample(const std::vector<float>& logits, const Parameters& p, const std::vector<uint32_t>& mask) {
  const auto is_usable = [](const std::vector<float>& row) {
    const bool has_nan = std::any_of(row.begin(), row.end(), [](float x) { return std::isnan(x); });
    return !has_nan && std::isfinite(*std::max_element(row.begin(), row.end()));
  };
  if (!is_usable(logits)) return {RowStatus::kNotFinite};
  const std::vector<float> edited = NaiveEdits(logits, p, mask);
  if (!is_usable(edited)) return {RowStatus::kNothingLeft};
  if (p.rule.temperature == 0.0 || p.rule.top_k == 1) return {RowStatus::kChosen, NaiveRanking(edited)[0]};
  return {RowStatus::kChosen, NaiveDraw(edited, p.rule)};
}

}  // namespace headrace::tests
