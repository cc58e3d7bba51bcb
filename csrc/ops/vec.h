// The vector type that ops are written in: as wide as the instruction set this file is compiled for.
//
// Included only by the per-ISA translation units (isa_*.cc), inside which HEADRACE_ISA names the namespace.
// Built on the compilers' vector extensions, so that one source serves SSE2, NEON, AVX2 and AVX-512; only what
// they cannot express (16-bit conversions) is an intrinsic. Widths differ between instruction sets, so
// bits may differ between machines, never between batches on one machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_ISA {

// Never wider than a register: compilers take comparisons of wider vectors apart, lane by lane.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));

inline Vec Splat(float value) { return value - Vec{}; }

inline Vec Load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline void Store(float* to, Vec v) { std::memcpy(to, &v, sizeof(v)); }

// One rounding where the instruction set has it; the build sets -ffp-contract=fast for the ops.
inline Vec MulAdd(Vec a, Vec b, Vec c) { return a * b + c; }

// A NaN in `a` survives, so that a broken row stays visible up to its logits.
inline Vec Max(Vec a, Vec b) { return a < b ? b : a; }
inline Vec Min(Vec a, Vec b) { return a > b ? b : a; }

// Combines the lanes by halving: lane i with lane i + width / 2, the same order every time.
template <typename Combine>
inline float ReduceLanes(Vec v, const Combine& combine) {
  typedef float Vec4 __attribute__((vector_size(16)));
#if defined(__AVX512F__)
  typedef float Vec8 __attribute__((vector_size(32)));
  const Vec8 eight = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#elif defined(__AVX2__)
  const Vec eight = v;
#endif
#if defined(__AVX2__)
  const Vec4 four = combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                            __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const Vec4 four = v;
#endif
  const Vec4 two = combine(four, __builtin_shufflevector(four, four, 2, 3, 2, 3));
  return combine(two, __builtin_shufflevector(two, two, 1, 1, 1, 1))[0];
}

inline float ReduceAdd(Vec v) {
  return ReduceLanes(v, [](auto a, auto b) { return a + b; });
}

inline float ReduceMax(Vec v) {
  return ReduceLanes(v, [](auto a, auto b) { return a > b ? a : b; });
}

inline Vec LoadF16(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = FloatFromF16(from[i]);
  return v;
#endif
}

inline void StoreF16(uint16_t* to, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = F16FromFloat(v[i]);
#endif
}

inline Vec LoadBf16(const uint16_t* from) {
  typedef uint16_t Narrow __attribute__((vector_size(kLanes * 2)));
  typedef uint32_t Wide __attribute__((vector_size(kLanes * 4)));
  Narrow narrow;
  std::memcpy(&narrow, from, sizeof(narrow));
  return (Vec)(__builtin_convertvector(narrow, Wide) << 16);
}

// Rounds to nearest even; NaN stays NaN. Where there is an instruction for it, what is too small for a normal number
// becomes zero.
inline void StoreBf16(uint16_t* to, Vec v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
  typedef uint32_t Wide __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t Narrow __attribute__((vector_size(kLanes * 2)));
  const Wide bits = (Wide)v;
  const Wide rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Narrow narrow = __builtin_convertvector(v == v ? rounded : bits >> 16 | 0x40, Narrow);
  std::memcpy(to, &narrow, sizeof(narrow));
#endif
}

// Pairs of neighbouring bf16 values, a pair in each lane.
typedef uint32_t Pairs __attribute__((vector_size(kLanes * 4)));

inline Pairs LoadPairs(const uint16_t* from) {
  Pairs pairs;
  std::memcpy(&pairs, from, sizeof(pairs));
  return pairs;
}

// The same pair in every lane.
inline Pairs SplatPair(const uint16_t* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair - Pairs{};
}

inline Pairs FirstOfPairs(Pairs pairs) { return pairs & 0xffff; }

// sum + the two products of each lane's pairs, one after the other.
inline Vec AddPairProducts(Vec sum, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum = MulAdd((Vec)(a & 0xffff0000u), (Vec)(b & 0xffff0000u), sum);
  return MulAdd((Vec)(a << 16), (Vec)(b << 16), sum);
#endif
}

// e**x with a relative error below 2e-7 for x in [-87, 88]; 0 below that range, NaN for NaN.
// Range reduction by log 2 in two parts and a degree-6 polynomial (the Cephes library's constants).
inline Vec Exp(Vec x) {
  const Vec clamped = Max(Min(x, Splat(88.0f)), Splat(-87.3f));
  const Vec shifted = clamped * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2**23: rounds to an integer
  const IntVec power = (IntVec)shifted - 0x4B400000;
  const Vec rounded = shifted - 12582912.0f;
  Vec r = MulAdd(rounded, Splat(-0.693359375f), clamped);
  r = MulAdd(rounded, Splat(2.12194440e-4f), r);
  Vec p = Splat(1.9875691500e-4f);
  p = MulAdd(p, r, Splat(1.3981999507e-3f));
  p = MulAdd(p, r, Splat(8.3334519073e-3f));
  p = MulAdd(p, r, Splat(4.1665795894e-2f));
  p = MulAdd(p, r, Splat(1.6666665459e-1f));
  p = MulAdd(p, r, Splat(5.0000001201e-1f));
  p = MulAdd(p, r * r, r + 1.0f);
  const Vec scale = (Vec)((power + 127) << 23);
  return x < Splat(-87.3f) ? Vec{} : p * scale;
}

// The same with a relative error below 1.1e-4, for what is rounded to bf16 afterwards (2e-3): the power of two in one
// part and a polynomial of degree 3 for the rest, in [-1/2, 1/2], fitted for the least relative error.
inline Vec ExpForBf16(Vec x) {
  const Vec shifted = MulAdd(x, Splat(1.44269504088896341f), Splat(12582912.0f));
  const Vec f = MulAdd(x, Splat(1.44269504088896341f), 12582912.0f - shifted);
  Vec p = Splat(0.0551716685f);
  p = MulAdd(p, f, Splat(0.242611125f));
  p = MulAdd(p, f, Splat(0.693260968f));
  p = MulAdd(p, f, Splat(0.999928057f));
  const Vec scale = (Vec)(((IntVec)shifted - 0x4B400000 + 127) << 23);
  return x < Splat(-87.3f) ? Vec{} : p * scale;
}

inline Vec Tanh(Vec x) {
  const Vec magnitude = x < Vec{} ? -x : x;
  const Vec e = Exp(Min(magnitude, Splat(20.0f)) * -2.0f);
  const Vec t = (1.0f - e) / (1.0f + e);
  return x < Vec{} ? -t : t;
}

}  // namespace headrace::HEADRACE_ISA
