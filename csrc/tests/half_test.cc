#include "../half.h"

#include <cmath>
#include <limits>

#include "check.h"
#include "values.h"

namespace headrace::tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The definition of binary16, term by term.
double SlowFloatFromF16(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST("half: every f16 widens to its value and narrows back to itself") {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = FloatFromF16(static_cast<uint16_t>(bits));
    const double expected = SlowFloatFromF16(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      CHECK(std::isnan(value), "bits", bits);
      CHECK(std::isnan(FloatFromF16(F16FromFloat(value))), "bits", bits);
      continue;
    }
    CHECK_EQ(static_cast<double>(value), expected, "bits", bits);
    CHECK_EQ(std::signbit(value), bits >= 0x8000, "bits", bits);
    CHECK_EQ(F16FromFloat(value), bits, "bits", bits);
  }
}

TEST("half: between two f16 neighbours the nearer one is taken, and the even one half way") {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const float low = FloatFromF16(static_cast<uint16_t>(bits));
    // beyond the largest finite value the next step would be 65536
    const float high = bits + 1 == 0x7c00 ? 65536.0f : FloatFromF16(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    for (const int sign : {0, 0x8000}) {
      const float direction = sign ? -1.0f : 1.0f;
      CHECK_EQ(F16FromFloat(direction * std::nextafter(middle, low)), bits + sign, "bits", bits);
      CHECK_EQ(F16FromFloat(direction * middle), bits + bits % 2 + sign, "bits", bits);
      CHECK_EQ(F16FromFloat(direction * std::nextafter(middle, high)), bits + 1 + sign, "bits", bits);
    }
  }
}

TEST("half: what f16 cannot hold becomes infinite, zero or stays NaN") {
  CHECK_EQ(F16FromFloat(kInfinity), 0x7c00);
  CHECK_EQ(F16FromFloat(-kInfinity), 0xfc00);
  CHECK_EQ(F16FromFloat(std::numeric_limits<float>::max()), 0x7c00);
  CHECK_EQ(F16FromFloat(65519.996f), 0x7bff);
  CHECK_EQ(F16FromFloat(std::numeric_limits<float>::denorm_min()), 0);
  CHECK_EQ(F16FromFloat(-std::numeric_limits<float>::min()), 0x8000);
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0xff800001u}) {
    const uint16_t narrow = F16FromFloat(std::bit_cast<float>(bits));
    CHECK_EQ(narrow & 0x7c00, 0x7c00, "bits", bits);
    CHECK(narrow & 0x03ff, "bits", bits);
    CHECK_EQ(narrow >> 15, static_cast<int>(bits >> 31), "bits", bits);
  }
}

TEST("half: every bf16 widens to its bits and narrows back to itself") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FloatFromBf16(static_cast<uint16_t>(bits));
    CHECK_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      CHECK(std::isnan(FloatFromBf16(Bf16FromFloat(value))), "bits", bits);
    } else {
      CHECK_EQ(Bf16FromFloat(value), bits);
    }
  }
}

TEST("half: between two bf16 neighbours the nearer one is taken, and the even one half way") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    if ((bits & 0x7f80) == 0x7f80) continue;
    const uint32_t middle = bits << 16 | 0x8000;
    CHECK_EQ(Bf16FromFloat(std::bit_cast<float>(middle - 1)), bits);
    CHECK_EQ(Bf16FromFloat(std::bit_cast<float>(middle)), bits + bits % 2);
    CHECK_EQ(Bf16FromFloat(std::bit_cast<float>(middle + 1)), bits + 1);
  }
  CHECK(std::isnan(FloatFromBf16(Bf16FromFloat(std::bit_cast<float>(0x7f800001u)))));  // its kept half has no NaN bit
}

}  // namespace
}  // namespace headrace::tests
