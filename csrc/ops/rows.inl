// Included by the per-ISA translation units after vec.h.

#include <algorithm>
#include <cmath>

#include "../packed_matrix.h"
#include "rows.h"

namespace headrace::HEADRACE_ISA {

// Calls whole(i) for each full vector of [0, size) and rest(i) for each element after the last.
template <typename Whole, typename Rest>
inline void ForLanes(int size, const Whole& whole, const Rest& rest) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) whole(i);
  for (; i < size; ++i) rest(i);
}

inline float SumOfSquares(const float* x, int size) {
  Vec lanes = {};
  float rest = 0.0f;
  ForLanes(size, [&](int i) { lanes = MulAdd(Load(x + i), Load(x + i), lanes); }, [&](int i) { rest += x[i] * x[i]; });
  return ReduceAdd(lanes) + rest;
}

// out = x / rms(x) * weight (Zhang and Sennrich, arXiv:1910.07467); `out` may be `x`.
void NormRow(const float* x, const float* weight, float eps, int size, float* out) {
  const float inverse = 1.0f / std::sqrt(SumOfSquares(x, size) / static_cast<float>(size) + eps);
  ForLanes(size, [&](int i) { Store(out + i, Load(x + i) * inverse * Load(weight + i)); },
           [&](int i) { out[i] = x[i] * inverse * weight[i]; });
}

// x of `size` elements to int8 in groups of 32; the last group is filled up with zeros.
void QuantizeRow(const float* x, int size, QuantizedRow out) {
  const int num_groups = static_cast<int>(CeilDiv(size, kGroupColumns));
  for (int group = 0; group < num_groups; ++group) {
    alignas(64) float padded[kGroupColumns];
    const float* from = x + group * kGroupColumns;
    const int count = std::min(kGroupColumns, size - group * kGroupColumns);
    if (count < kGroupColumns) {
      std::fill(std::copy(from, from + count, padded), padded + kGroupColumns, 0.0f);
      from = padded;
    }
    Vec largest = {}, poison = {};
    for (int i = 0; i < kGroupColumns; i += kLanes) {
      const Vec v = Load(from + i);
      largest = Max(v < Vec{} ? -v : v, largest);
      poison += v * 0.0f;
    }
    // NaN and infinity must reach the scale, or a broken row would turn into plausible numbers.
    const float max = ReduceMax(largest) + ReduceAdd(poison);
    const float inverse = max > 0.0f ? 127.0f / max : 0.0f;
    typedef uint32_t Unsigned __attribute__((vector_size(kLanes * 4)));
    Unsigned total = {};  // wraps around where the row holds what rounds to no integer
    for (int i = 0; i < kGroupColumns; i += kLanes) {
      typedef int8_t Narrow __attribute__((vector_size(kLanes)));
      const Vec shifted = Load(from + i) * inverse + 12582912.0f;  // 1.5 * 2**23: rounds to nearest even
      const IntVec rounded = (IntVec)shifted - 0x4B400000;
      total += (Unsigned)rounded;
      const Narrow narrow = __builtin_convertvector(rounded, Narrow);
      std::memcpy(out.values + group * kGroupColumns + i, &narrow, sizeof(narrow));
    }
    out.scale[group] = max / 127.0f;
    // exact: no sum of a group comes near 2**24
    out.scaled_sum[group] = out.scale[group] * ReduceAdd(__builtin_convertvector((IntVec)total, Vec));
  }
}

inline Vec Activate(Vec x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1.0f + Exp(-x));
  // Hendrycks and Gimpel, arXiv:1606.08415, the tanh form
  const Vec inner = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
  return x * 0.5f * (1.0f + Tanh(inner));
}

// out = activation(gate) * up; `out` may be `gate`.
void GateRow(const float* gate, const float* up, Activation activation, int size, float* out) {
  ForLanes(size, [&](int i) { Store(out + i, Activate(Load(gate + i), activation) * Load(up + i)); },
           [&](int i) { out[i] = Activate(Splat(gate[i]), activation)[0] * up[i]; });
}

// Rotates one head by the angles whose cosines and sines are given, [rotary_dim / 2] each, and scales it
// (Su et al., arXiv:2104.09864).
inline void RotateHead(const RotaryTask& task, const float* cosines, const float* sines, float scale, float* head) {
  const int half = task.rotary_dim / 2;
  float* second = head + half;
  ForLanes(half,
           [&](int i) {
             const Vec a = Load(head + i), b = Load(second + i), c = Load(cosines + i), s = Load(sines + i);
             Store(head + i, (a * c - b * s) * scale);
             Store(second + i, (b * c + a * s) * scale);
           },
           [&](int i) {
             const float a = head[i], b = second[i];
             head[i] = (a * cosines[i] - b * sines[i]) * scale;
             second[i] = (b * cosines[i] + a * sines[i]) * scale;
           });
  if (scale != 1.0f) {
    for (int i = task.rotary_dim; i < task.head_dim; ++i) head[i] *= scale;
  }
}

inline void NormHeads(const RotaryTask& task, const float* weight, int num_heads, float* heads) {
  if (weight == nullptr) return;
  if (task.norm_whole) return NormRow(heads, weight, task.norm_eps, num_heads * task.head_dim, heads);
  for (int head = 0; head < num_heads; ++head) {
    float* x = heads + head * task.head_dim;
    NormRow(x, weight, task.norm_eps, task.head_dim, x);
  }
}

// One head's key and value into slot (block, offset) of the cache.
inline void WriteHead(const KvView& kv, int block, int offset, int head, const float* key, const float* value) {
  const size_t first = kv.HeadIndex(block, head);
  const size_t row = first + static_cast<size_t>(offset) * kv.head_dim;
  switch (kv.format) {
    case KvFormat::kF32: {
      float* keys = reinterpret_cast<float*>(kv.keys) + first + offset;
      for (int d = 0; d < kv.head_dim; ++d) keys[static_cast<size_t>(d) * kv.block_size] = key[d];
      std::memcpy(reinterpret_cast<float*>(kv.values) + row, value, kv.head_dim * sizeof(float));
      return;
    }
    case KvFormat::kF16: {
      alignas(64) uint16_t narrow[kLanes];
      uint16_t* keys = reinterpret_cast<uint16_t*>(kv.keys) + first + offset;
      uint16_t* values = reinterpret_cast<uint16_t*>(kv.values) + row;
      for (int d = 0; d < kv.head_dim; d += kLanes) {
        StoreF16(narrow, Load(key + d));
        for (int i = 0; i < kLanes; ++i) keys[static_cast<size_t>(d + i) * kv.block_size] = narrow[i];
        StoreF16(values + d, Load(value + d));
      }
      return;
    }
    case KvFormat::kBf16: {
      alignas(64) uint16_t narrow[kLanes];
      uint16_t* keys = reinterpret_cast<uint16_t*>(kv.keys) + first;
      uint16_t* values = reinterpret_cast<uint16_t*>(kv.values) + first;
      for (int d = 0; d < kv.head_dim; d += kLanes) {
        StoreBf16(narrow, Load(key + d));
        for (int i = 0; i < kLanes; ++i) keys[kv.KeyIndex(d + i, offset)] = narrow[i];
        StoreBf16(narrow, Load(value + d));
        for (int i = 0; i < kLanes; ++i) values[kv.ValueIndex(offset, d + i)] = narrow[i];
      }
      return;
    }
    case KvFormat::kInt8: {
      const auto write = [&](const float* x, int8_t* to, size_t stride, float* scale) {
        float max = 0.0f, poison = 0.0f;
        for (int d = 0; d < kv.head_dim; ++d) {
          max = std::max(max, std::fabs(x[d]));
          poison += x[d] * 0.0f;
        }
        const float inverse = max > 0.0f ? 127.0f / max : 0.0f;
        for (int d = 0; d < kv.head_dim; ++d) to[d * stride] = static_cast<int8_t>(std::nearbyint(x[d] * inverse));
        *scale = max / 127.0f + poison;
      };
      const size_t scale_index = kv.ScaleIndex(block, head) + offset;
      write(key, reinterpret_cast<int8_t*>(kv.keys) + first + offset, kv.block_size, kv.key_scales + scale_index);
      write(value, reinterpret_cast<int8_t*>(kv.values) + row, 1, kv.value_scales + scale_index);
      return;
    }
  }
}

// Cache write of one token whose keys in `qkv` are rotated.
void StoreRow(const RotaryTask& task, const KvView& kv, int slot, const float* qkv) {
  const float* keys = qkv + task.num_heads * task.head_dim;
  const float* values = keys + task.num_kv_heads * task.head_dim;
  const int block = slot / kv.block_size, offset = slot % kv.block_size;
  for (int head = 0; head < task.num_kv_heads; ++head) {
    WriteHead(kv, block, offset, head, keys + head * task.head_dim, values + head * task.head_dim);
  }
}

// Norm, rotation and cache write of one token. `qkv` is the token's queries, keys and values side by side; queries
// and keys are left there rotated, the queries scaled.
void RotateAndStore(const RotaryTask& task, const KvView& kv, int slot, const float* cosines, const float* sines,
                    float* qkv) {
  float* keys = qkv + task.num_heads * task.head_dim;
  NormHeads(task, task.query_norm, task.num_heads, qkv);
  NormHeads(task, task.key_norm, task.num_kv_heads, keys);
  for (int head = 0; head < task.num_heads; ++head) {
    RotateHead(task, cosines, sines, task.query_scale, qkv + head * task.head_dim);
  }
  for (int head = 0; head < task.num_kv_heads; ++head) {
    RotateHead(task, cosines, sines, 1.0f, keys + head * task.head_dim);
  }
  StoreRow(task, kv, slot, qkv);
}

}  // namespace headrace::HEADRACE_ISA
