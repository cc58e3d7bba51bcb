// The tiny model computed in double, straight from its description.
#pragma once

#include <cmath>
#include <span>

#include "tiny_model.h"

namespace headrace::tests {

using Row = std::vector<double>;

inline Row NaiveProduct(const OwnedMatrix& matrix, const Row& x) {
  Row out(matrix.shape.num_rows);
  for (int n = 0; n < matrix.shape.num_rows; ++n) {
    const std::vector<float> w = matrix.Row(n);
    for (int k = 0; k < matrix.shape.num_columns; ++k) out[n] += w[k] * x[k];
  }
  return out;
}

inline void NaiveNorm(std::span<double> x, const float* weight) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  const double rms = std::sqrt(sum / static_cast<double>(x.size()) + kEps);
  for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] / rms * weight[i];
}

// Norm and rotation of `count` heads at a position.
inline void NaiveTurn(std::span<double> heads, int count, const float* norm, int layer, const Rope& rope,
                      int position) {
  if (layer == 1) NaiveNorm(heads, norm);
  for (int head = 0; head < count; ++head) {
    const std::span<double> x = heads.subspan(head * kHeadDim, kHeadDim);
    if (layer == 0) NaiveNorm(x, norm);
    const int half = rope.rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(static_cast<float>(position) * rope.frequencies[i]);
      const double cosine = std::cos(angle) * rope.attention_factor, sine = std::sin(angle) * rope.attention_factor;
      const double a = x[i], b = x[i + half];
      x[i] = a * cosine - b * sine;
      x[i + half] = b * cosine + a * sine;
    }
  }
}

// Attention of the token at `position` over all rows of queries, keys and values up to it.
inline Row NaiveAttention(const std::vector<Row>& qkv, int position, int layer) {
  Row out(kAttended);
  const int begin = layer == 0 ? std::max(0, position - kWindow + 1) : 0;
  for (int head = 0; head < kHeads; ++head) {
    const int kv_head = head / (kHeads / kKvHeads);
    const double* query = qkv[position].data() + head * kHeadDim;
    Row weights;
    double sum = 0.0;
    for (int at = begin; at <= position; ++at) {
      const double* key = qkv[at].data() + (kHeads + kv_head) * kHeadDim;
      double score = 0.0;
      for (int d = 0; d < kHeadDim; ++d) score += query[d] * kQueryScale * key[d];
      if (layer == 1) score = kAttentionCap * std::tanh(score / kAttentionCap);
      weights.push_back(std::exp(score));
      sum += weights.back();
    }
    for (int at = begin; at <= position; ++at) {
      const double* value = qkv[at].data() + (kHeads + kKvHeads + kv_head) * kHeadDim;
      for (int d = 0; d < kHeadDim; ++d) out[head * kHeadDim + d] += weights[at - begin] / sum * value[d];
    }
  }
  return out;
}

inline Row NaiveGate(const Row& gate_up, int layer) {
  Row out(kInner);
  for (int i = 0; i < kInner; ++i) {
    const double x = gate_up[i];
    const double activated = layer == 0
                                 ? x / (1.0 + std::exp(-x))
                                 : 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    out[i] = activated * gate_up[kInner + i];
  }
  return out;
}

inline void NaiveAdd(const TinyLayer& layer, int index, Row block, Row& hidden) {
  if (index == 1) NaiveNorm(block, layer.post_norm.data());
  for (int i = 0; i < kHidden; ++i) hidden[i] += kResidualScale * block[i];
}

// Hidden states of every token of one sequence.
inline std::vector<Row> NaiveHidden(const TinyModel& model, const std::vector<int>& tokens) {
  std::vector<Row> hidden;
  for (const int token : tokens) {
    const std::vector<float> row = model.embedding.Row(token);
    hidden.emplace_back(row.begin(), row.end());
    for (double& value : hidden.back()) value *= kEmbeddingScale;
  }
  for (int index = 0; index < kLayers; ++index) {
    const TinyLayer& layer = model.layers[index];
    std::vector<Row> qkv;
    for (size_t at = 0; at < tokens.size(); ++at) {
      Row normed = hidden[at];
      NaiveNorm(normed, layer.attention_norm.data());
      qkv.push_back(NaiveProduct(layer.qkv, normed));
      for (int i = 0; i < kQkv; ++i) qkv[at][i] += layer.qkv_bias[i];
      const std::span<double> all = qkv[at];
      const int position = static_cast<int>(at);
      NaiveTurn(all.subspan(0, kAttended), kHeads, layer.query_norm.data(), index, model.ropes[index], position);
      NaiveTurn(all.subspan(kAttended, kKvHeads * kHeadDim), kKvHeads, layer.key_norm.data(), index, model.ropes[index],
                position);
    }
    for (size_t at = 0; at < tokens.size(); ++at) {
      NaiveAdd(layer, index, NaiveProduct(layer.output, NaiveAttention(qkv, static_cast<int>(at), index)), hidden[at]);
      Row normed = hidden[at];
      NaiveNorm(normed, layer.feed_forward_norm.data());
      NaiveAdd(layer, index, NaiveProduct(layer.down, NaiveGate(NaiveProduct(layer.gate_up, normed), index)),
               hidden[at]);
    }
  }
  return hidden;
}

inline Row NaiveLogits(const TinyModel& model, Row hidden) {
  NaiveNorm(hidden, model.final_norm.data());
  Row logits = NaiveProduct(model.head, hidden);
  for (double& value : logits) value = kFinalCap * std::tanh(value * 0.5 / kFinalCap);
  return logits;
}

}  // namespace headrace::tests
