// Rows of activations as whole numbers with a scale each, and weights of int8 as bf16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/linear.h"
#include "cpu/vector.h"

namespace roundhouse {

// The largest magnitude among `count` numbers; NaN if one of them is, which a maximum of floats might lose. Bits without the
// sign are in the order of what they stand for, NaN the last.
inline float largest_magnitude(const bfloat16* x, int64_t count) {
  constexpr int64_t kWidth = 2 * Vector::kWidth;
  bfloat16 last[kWidth] = {};
  std::copy(x + count / kWidth * kWidth, x + count, last);
#if defined(ROUNDHOUSE_AVX2)
  const auto magnitudes = [](const bfloat16* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
  };
  __m256i most = magnitudes(last);
  for (int64_t i = 0; i + kWidth <= count; i += kWidth) most = _mm256_max_epu16(most, magnitudes(x + i));
#else
  const auto magnitudes = [](const bfloat16* from) {
    return _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi16(0x7fff));
  };
  __m512i both = magnitudes(last);
  for (int64_t i = 0; i + kWidth <= count; i += kWidth) both = _mm512_max_epu16(both, magnitudes(x + i));
  const __m256i most = _mm256_max_epu16(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
#endif
  const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));  // of the complements
  return to_float(bfloat16{static_cast<uint16_t>(~_mm_cvtsi128_si32(least))});
}

inline float largest_magnitude(const float* x, int64_t count) {
  int32_t most = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    most = std::max(most, bits & 0x7fffffff);
  }
  float magnitude;
  std::memcpy(&magnitude, &most, sizeof(most));
  return magnitude;
}

// Gives the numbers of a row of x, rounded to the nearest of -limit to limit times the returned scale, to
// `put(index, number)`, one register or less at a time; all are zero if x is. The scale is NaN if x is not finite.
template <class Put>
float quantize_row(const bfloat16* x, int64_t count, float limit, const Put& put) {
  constexpr int kWidth = Vector::kWidth;
  const int64_t whole = count / kWidth * kWidth;
  const int rest = static_cast<int>(count - whole);
  const float magnitude = largest_magnitude(x, count);
  const bool none = magnitude <= 1e-30f;  // below, limit / magnitude would be infinite
  const Vector factor = Vector::all(none ? 0.0f : limit / magnitude);
  for (int64_t i = 0; i < whole; i += kWidth) put(i, (Vector::load(x + i) * factor).rounded());
  if (rest != 0) put(whole, (Vector::load(x + whole, rest) * factor).rounded());
  return none ? 0.0f : magnitude * (1.0f / limit) + (magnitude - magnitude);
}

#if !defined(ROUNDHOUSE_AVX2)

// The digits of numbers, `high` of -127 to 127 and `low` of -64 to 63.
struct Digits {
  __m512i high, low;
  explicit Digits(__m512i numbers)
      : high(_mm512_srai_epi32(_mm512_add_epi32(numbers, _mm512_set1_epi32(64)), 7)),
        low(_mm512_sub_epi32(numbers, _mm512_slli_epi32(high, 7))) {}
};

// Sums of products of numbers from those of their digits.
inline __m512i from_digits(__m512i high, __m512i low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }

#endif

// `count` outputs of one row from their sums of products.
inline Vector scale_sums(Vector sums, float scale, const float* scales, const bfloat16* bias, int count) {
  const Vector out = sums * Vector::all(scale) * Vector::load(scales, count);
  return bias == nullptr ? out : out + Vector::load(bias, count);
}

// `count` outputs of one row, from `first` on, from their sums of products.
template <class P>
Vector finish_sums(const P& p, Vector sums, int64_t first, int count) {
  return p.bias == nullptr ? sums : sums + Vector::load(p.bias + first, count);
}
inline Vector finish_sums(const LinearW8A16& p, Vector sums, int64_t first, int count) {
  const Vector out = sums * Vector::load(p.scales + first, count);
  return p.bias == nullptr ? out : out + Vector::load(p.bias + first, count);
}

// Puts `count` outputs of a row, from `first` on, where they go.
template <class P>
void store_outputs(const P& p, Vector values, int64_t row, int64_t first, int count) {
  const int64_t at = row * p.outputs + first;
  if (p.exact != nullptr) return values.store(p.exact + at, count);
  values.store(p.out + at, count);
}

#if defined(ROUNDHOUSE_AMX)

// Lines (outputs) [first, first + count) of a tile of int8, each as those of two tiles of bf16, side by side; lines are
// `apart` numbers from each other.
inline void unpack_int8_lines(bfloat16* tiles, int64_t apart, const int8_t* tile, int first, int count) {
  const auto wide = [](const int8_t* numbers) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers))));
  };
#pragma GCC unroll 8
  for (int n = first; n < first + count; ++n) {
    for (int half = 0; half < 2; ++half) {
      const int8_t* const line = tile + 64 * n + 32 * half;
      const __m512bh weights = _mm512_cvtne2ps_pbh(wide(line + 16), wide(line));
      _mm512_store_si512(tiles + 32 * half + apart * n, reinterpret_cast<__m512i>(weights));
    }
  }
}

#endif

}  // namespace roundhouse
