#include "../ops/rows.h"

#include <cstring>

#include "../half.h"
#include "check.h"
#include "kv.h"
#include "weights.h"

namespace headrace::tests {
namespace {

constexpr int kSizes[] = {1, 7, 8, 15, 16, 17, 31, 64, 65, 576, 1000};

double RootMeanSquare(std::span<const float> x, double eps) {
  double sum = 0.0;
  for (const float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

TEST("rows: the norm divides by the root mean square and multiplies by its weight, in place too") {
  Random random(1);
  for (const Kernels* kernels : AvailableKernels()) {
    for (const int size : kSizes) {
      const std::vector<float> x = Normals(random, size, 3.0f), weight = Normals(random, size);
      std::vector<float> out(size), in_place = x;
      kernels->norm_row(x.data(), weight.data(), 1e-5f, size, out.data());
      kernels->norm_row(in_place.data(), weight.data(), 1e-5f, size, in_place.data());
      const double rms = RootMeanSquare(x, 1e-5);
      for (int i = 0; i < size; ++i) {
        const double expected = x[i] / rms * weight[i];
        CHECK_NEAR(out[i], expected, 1e-6 * std::fabs(expected) + 1e-12, kernels->name, "size", size, "at", i);
      }
      CHECK_EQ(FirstDifference(out, in_place), -1, kernels->name, "size", size);
    }
  }
}

TEST("rows: the norm of nothing but zeros is zero, and of a row that is not finite is NaN") {
  for (const Kernels* kernels : AvailableKernels()) {
    std::vector<float> zeros(33), weight(33, 2.0f), out(33);
    kernels->norm_row(zeros.data(), weight.data(), 1e-6f, 33, out.data());
    for (const float value : out) CHECK_EQ(value, 0.0f, kernels->name);
    for (const int place : {0, 20, 32}) {
      std::vector<float> x(33, 1.0f);
      x[place] = NAN;
      kernels->norm_row(x.data(), weight.data(), 1e-6f, 33, out.data());
      for (const float value : out) CHECK(std::isnan(value), kernels->name, "NaN at", place);
    }
  }
}

TEST("rows: a quantised row is within half a step of the row, with its sums, padded with zeros") {
  Random random(2);
  for (const Kernels* kernels : AvailableKernels()) {
    for (const int size : kSizes) {
      Activations x(1, size);
      for (int i = 0; i < size; ++i) x.floats[i] = Normal(random) * (i % 3 ? 1.0f : 20.0f);
      std::memset(x.values.data(), 99, x.values.size());
      kernels->quantize_row(x.floats.data(), size, x.quantized_row(0));
      for (int group = 0; group < x.num_groups; ++group) {
        float largest = 0.0f;
        int sum = 0;
        for (int i = group * 32; i < group * 32 + 32; ++i) {
          sum += x.values[i];
          if (i >= size) {
            CHECK_EQ(static_cast<int>(x.values[i]), 0, kernels->name, "size", size, "at", i);
            continue;
          }
          largest = std::max(largest, std::fabs(x.floats[i]));
          CHECK_NEAR(x.Dequantized(0, i), x.floats[i], x.scale[group] * 0.50001, kernels->name, "size", size, "at", i);
          CHECK(x.values[i] >= -127, kernels->name, "size", size, "at", i);
        }
        CHECK_NEAR(x.scale[group], largest / 127, 1e-7 * largest, kernels->name, "size", size, "group", group);
        CHECK_EQ(x.scaled_sum[group], x.scale[group] * static_cast<float>(sum), kernels->name, "size", size);
      }
    }
  }
}

TEST("rows: groups of zeros and of numbers next to nothing quantise to next to nothing") {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const float magnitude : {0.0f, 1e-45f, 1e-40f, 1e-38f, 1e-36f}) {
      Activations x(1, 32);
      for (int i = 0; i < 32; ++i) x.floats[i] = i % 2 ? magnitude : -magnitude;
      kernels->quantize_row(x.floats.data(), 32, x.quantized_row(0));
      for (int i = 0; i < 32; ++i) CHECK_NEAR(x.Dequantized(0, i), x.floats[i], 2e-36, kernels->name, magnitude);
      CHECK(std::fabs(x.scaled_sum[0]) <= 1e-28f, kernels->name, "magnitude", magnitude, "sum", x.scaled_sum[0]);
    }
  }
}

TEST("rows: what is not finite shows in the scale of its group and in no other group") {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (int place = 32; place < 64; ++place) {
        Activations x(1, 96);
        for (int i = 0; i < 96; ++i) x.floats[i] = 1.0f + static_cast<float>(i);
        x.floats[place] = bad;
        kernels->quantize_row(x.floats.data(), 96, x.quantized_row(0));
        CHECK(!std::isfinite(x.scale[1]), kernels->name, bad, "at", place);
        CHECK(!std::isfinite(x.scaled_sum[1]), kernels->name, bad, "at", place);
        CHECK(std::isfinite(x.scale[0]) && std::isfinite(x.scale[2]), kernels->name, bad, "at", place);
      }
    }
  }
}

double Activated(double x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST("rows: the gate is the activation times the other half, over the whole range of floats") {
  Random random(3);
  for (const Kernels* kernels : AvailableKernels()) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      for (const int size : kSizes) {
        std::vector<float> gate = Normals(random, size, 4.0f), up = Normals(random, size), out(size);
        if (size > 12) {
          const float extremes[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 50.0f, -50.0f,
                                    1e4f, -1e4f, 1e13f,  -1e13f,  88.5f, -88.5f};
          std::copy(std::begin(extremes), std::end(extremes), gate.begin());
        }
        kernels->gate_row(gate.data(), up.data(), activation, size, out.data());
        for (int i = 0; i < size; ++i) {
          const double expected = Activated(gate[i], activation) * up[i];
          CHECK_NEAR(out[i], expected, 2e-6 * std::fabs(expected) + 3e-7 * std::fabs(up[i]), kernels->name,
                     static_cast<int>(activation), "gate", gate[i]);
        }
        kernels->gate_row(gate.data(), up.data(), activation, size, gate.data());
        CHECK_EQ(FirstDifference(out, gate), -1, kernels->name, "size", size);
      }
      std::vector<float> gate(20, 1.0f), up(20, 1.0f), out(20);
      for (const int place : {3, 18}) {
        gate[place] = NAN;
        kernels->gate_row(gate.data(), up.data(), activation, 20, out.data());
        CHECK(std::isnan(out[place]), kernels->name, "at", place);
      }
    }
  }
}

// ---- rotation and cache -----------------------------------------------------------------------------

struct RotaryCase {
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  bool has_norm, norm_whole;
};

constexpr RotaryCase kRotaryCases[] = {
    {4, 2, 16, 16, false, false}, {3, 1, 64, 64, true, false}, {9, 3, 64, 64, false, false},
    {4, 2, 32, 32, true, true},   {2, 2, 80, 40, true, false}, {2, 1, 256, 256, true, false},
    {2, 1, 48, 12, true, true},   {1, 1, 96, 2, false, false},
};

// A token's queries and keys after norm and rotation, in double.
std::vector<double> NaiveRotated(const RotaryCase& c, const RotaryTask& task, std::span<const float> qkv,
                                 const std::vector<float>& cosines, const std::vector<float>& sines) {
  std::vector<double> out(qkv.begin(), qkv.end());
  for (int head = 0; head < c.num_heads + c.num_kv_heads; ++head) {
    const bool is_query = head < c.num_heads;
    const int first = is_query ? 0 : c.num_heads, count = is_query ? c.num_heads : c.num_kv_heads;
    double* x = out.data() + head * c.head_dim;
    if (c.has_norm) {
      const auto normed = c.norm_whole ? qkv.subspan(first * c.head_dim, count * c.head_dim)
                                       : qkv.subspan(head * c.head_dim, c.head_dim);
      const float* weight =
          (is_query ? task.query_norm : task.key_norm) + (c.norm_whole ? (head - first) * c.head_dim : 0);
      const double rms = RootMeanSquare(normed, task.norm_eps);
      for (int d = 0; d < c.head_dim; ++d) x[d] = x[d] / rms * weight[d];
    }
    const int half = c.rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      const double a = x[i], b = x[i + half];
      x[i] = a * cosines[i] - b * sines[i];
      x[i + half] = b * cosines[i] + a * sines[i];
    }
    for (int d = 0; is_query && d < c.head_dim; ++d) x[d] *= task.query_scale;
  }
  return out;
}

void CheckRotateAndStore(const Kernels& kernels, const RotaryCase& c, KvFormat format, int block_size) {
  Random random(4);
  OwnedKv kv(format, 3, c.num_kv_heads, c.head_dim, block_size);
  kv.FillWithSentinel();
  const std::vector<float> query_norm = Normals(random, c.num_heads * c.head_dim);
  const std::vector<float> key_norm = Normals(random, c.num_kv_heads * c.head_dim);
  const RotaryTask task{c.num_heads,
                        c.num_kv_heads,
                        c.head_dim,
                        c.rotary_dim,
                        0.37f,
                        1e-6f,
                        c.norm_whole,
                        c.has_norm ? query_norm.data() : nullptr,
                        c.has_norm ? key_norm.data() : nullptr};
  const int width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  for (const int slot : {0, 1, block_size - 1, block_size, 2 * block_size + 5}) {
    const std::vector<float> before = Normals(random, width, 2.0f);
    std::vector<float> cosines, sines;
    for (int i = 0; i < c.rotary_dim / 2; ++i) {
      const float angle = Normal(random) * 3;
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    std::vector<float> qkv = before;
    kernels.rotate_and_store(task, kv.view, slot, cosines.data(), sines.data(), qkv.data());
    const int other_slot = (slot + 7) % (3 * block_size);
    kernels.store_row(task, kv.view, other_slot, qkv.data());
    const std::vector<double> expected = NaiveRotated(c, task, before, cosines, sines);
    const auto where = [&](int head, int d) {
      return Where(kernels.name, "head_dim", c.head_dim, "format", static_cast<int>(format), "slot", slot, head, d);
    };
    for (int i = 0; i < c.num_heads * c.head_dim; ++i) CHECK_NEAR(qkv[i], expected[i], 2e-6 * 10, where(0, i));
    for (const int written : {slot, other_slot}) {
      const int block = written / block_size, offset = written % block_size;
      for (int head = 0; head < c.num_kv_heads; ++head) {
        const double* key = expected.data() + (c.num_heads + head) * c.head_dim;
        const double* value = expected.data() + (c.num_heads + c.num_kv_heads + head) * c.head_dim;
        const double key_max =
            *std::max_element(key, key + c.head_dim, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
        const double value_max =
            *std::max_element(value, value + c.head_dim, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
        for (int d = 0; d < c.head_dim; ++d) {
          const auto tolerance = [&](double x, double largest) {
            return 2e-5 + (format == KvFormat::kF16    ? std::fabs(x) / 2048
                           : format == KvFormat::kBf16 ? std::fabs(x) / 256
                           : format == KvFormat::kInt8 ? std::fabs(largest) / 253
                                                       : 0);
          };
          CHECK_NEAR(kv.Key(block, head, d, offset), key[d], tolerance(key[d], key_max), where(head, d));
          CHECK_NEAR(kv.Value(block, head, d, offset), value[d], tolerance(value[d], value_max), where(head, d));
        }
      }
      kv.MarkWritten(written);
    }
  }
  CHECK(kv.OtherSlotsHoldSentinel(), kernels.name, static_cast<int>(format));
}

TEST("rows: queries turn in place, keys and values land in their slot and nowhere else") {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const KvFormat format : kAllKvFormats) {
      for (const RotaryCase& c : kRotaryCases) {
        for (const int block_size : {16, 32, 64}) CheckRotateAndStore(*kernels, c, format, block_size);
      }
    }
  }
}

// Finite values that lie on, between and beside those of a 16-bit format, whose bits below `infinity` count up.
template <typename Widen>
std::vector<float> ValuesToRound(int first, int infinity, float after_last, const Widen& widen) {
  Random random(5);
  std::vector<float> samples;
  for (int bits = first; bits < infinity; bits += 3) {
    const float low = widen(static_cast<uint16_t>(bits));
    const float high = bits + 1 == infinity ? after_last : widen(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    for (const float value : {low, std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
      samples.push_back(value);
      samples.push_back(-value);
    }
  }
  while (samples.size() % 64) samples.push_back(Normal(random));
  return samples;
}

template <typename Narrow>
void CheckStored(KvFormat format, const std::vector<float>& samples, const Narrow& narrow) {
  for (const Kernels* kernels : AvailableKernels()) {
    OwnedKv kv(format, 1, 1, 64, 16);
    const RotaryTask task{1, 1, 64, 2, 1.0f, 1e-6f, false, nullptr, nullptr};
    const float cosine = 1.0f, sine = 0.0f;
    for (size_t at = 0; at < samples.size(); at += 64) {
      std::vector<float> qkv(3 * 64);
      std::copy_n(samples.begin() + at, 64, qkv.begin() + 64);
      std::copy_n(samples.begin() + at, 64, qkv.begin() + 128);
      kernels->rotate_and_store(task, kv.view, 3, &cosine, &sine, qkv.data());
      for (int d = 2; d < 64; ++d) {  // the first two are a pair that turned
        const uint16_t expected = narrow(samples[at + d]);
        CHECK_EQ(kv.RawKey(0, 0, d, 3), expected, kernels->name, samples[at + d]);
        CHECK_EQ(kv.RawValue(0, 0, d, 3), expected, kernels->name, samples[at + d]);
      }
    }
  }
}

TEST("rows: a cache in f16 holds exactly what rounding to nearest even gives") {
  CheckStored(KvFormat::kF16, ValuesToRound(0, 0x7c00, 65536.0f, FloatFromF16), F16FromFloat);
}

TEST("rows: a cache in bf16 holds exactly what rounding normal numbers to nearest even gives") {
  CheckStored(KvFormat::kBf16, ValuesToRound(0x80, 0x7f7f, FloatFromBf16(0x7f7f), FloatFromBf16), Bf16FromFloat);
}

TEST("rows: keys and values that are not finite stay so in every cache format") {
  for (const Kernels* kernels : AvailableKernels()) {
    for (const KvFormat format : kAllKvFormats) {
      for (const float bad : {NAN, INFINITY}) {
        for (int d = 0; d < 32; ++d) {
          OwnedKv kv(format, 1, 1, 32, 16);
          const RotaryTask task{1, 1, 32, 32, 1.0f, 1e-6f, false, nullptr, nullptr};
          const std::vector<float> cosines(16, 0.6f), sines(16, 0.8f);
          std::vector<float> qkv(3 * 32, 0.5f);
          qkv[32 + d] = qkv[64 + d] = bad;
          kernels->rotate_and_store(task, kv.view, 7, cosines.data(), sines.data(), qkv.data());
          CHECK(!std::isfinite(kv.Key(0, 0, d, 7)), kernels->name, static_cast<int>(format), bad, "at", d);
          CHECK(!std::isfinite(kv.Value(0, 0, d, 7)), kernels->name, static_cast<int>(format), bad, "at", d);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace::tests
