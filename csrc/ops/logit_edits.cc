#include "logit_edits.h"

#include <algorithm>
#include <limits>

namespace headrace {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

struct EditedRow {
  int size;
  uint32_t* counts;
  float* logits;

  template <typename Visit>
  void ForKnown(std::span<const int32_t> token_ids, const Visit& visit) const {
    for (int32_t token : token_ids) {
      if (static_cast<uint32_t>(token) < static_cast<uint32_t>(size)) visit(token);
    }
  }

  // Calls visit(token, count) once for each different token.
  template <typename Visit>
  void ForCounted(std::span<const int32_t> token_ids, const Visit& visit) const {
    ForKnown(token_ids, [&](int32_t token) { counts[token] = 0; });
    ForKnown(token_ids, [&](int32_t token) { ++counts[token]; });
    ForKnown(token_ids, [&](int32_t token) {
      if (counts[token] != 0) visit(token, counts[token]);
      counts[token] = 0;
    });
  }
};

void CopyPermitted(const float* logits, const LogitEdits& edits, const SamplingKernels& kernels, const EditedRow& row) {
  if (edits.allowed.empty()) {
    if (edits.mask == nullptr) {
      std::copy_n(logits, row.size, row.logits);
    } else {
      kernels.copy_allowed(logits, edits.mask, row.size, row.logits);
    }
    return;
  }
  std::fill_n(row.logits, row.size, kForbidden);
  row.ForKnown(edits.allowed, [&](int32_t token) {
    const bool is_masked = edits.mask != nullptr && ((edits.mask[token / 32] >> (token % 32)) & 1) == 0;
    if (!is_masked) row.logits[token] = logits[token];
  });
}

void Penalise(const LogitEdits& edits, const EditedRow& row) {
  if (edits.repetition_penalty != 1.0) {
    const float penalty = static_cast<float>(edits.repetition_penalty);
    row.ForCounted(edits.history, [&](int32_t token, uint32_t) {
      float& logit = row.logits[token];
      logit = logit > 0.0f ? logit / penalty : logit * penalty;
    });
  }
  if (edits.frequency_penalty != 0.0 || edits.presence_penalty != 0.0) {
    const float frequency = static_cast<float>(edits.frequency_penalty);
    const float presence = static_cast<float>(edits.presence_penalty);
    row.ForCounted(edits.output, [&](int32_t token, uint32_t count) {
      row.logits[token] -= frequency * static_cast<float>(count);
      row.logits[token] -= presence;
    });
  }
}

}  // namespace

void EditLogits(const float* logits, int size, const LogitEdits& edits, const SamplingKernels& kernels,
                uint32_t* counts, float* out) {
  const EditedRow row{size, counts, out};
  CopyPermitted(logits, edits, kernels, row);
  row.ForKnown(edits.forbidden, [&](int32_t token) { out[token] = kForbidden; });
  for (size_t i = 0; i < edits.biased.size(); ++i) {
    row.ForKnown(edits.biased.subspan(i, 1), [&](int32_t token) { out[token] += static_cast<float>(edits.biases[i]); });
  }
  Penalise(edits, row);
}

}  // namespace headrace
