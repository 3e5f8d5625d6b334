// Numbers of weights that have a scale per group of inputs (LinearGroups), as registers that are multiplied.
//
// A kind of numbers is a struct:
// - Arithmetic: what x becomes and how sums are made, Integers or Floats;
// - kPairs: pairs of inputs of each digit in a step, and kStepBytes, its size (layout in linear.h);
// - weights(step, half, r, j): of a register's width of outputs, the r-th pair of digit j;
// - unit: what is multiplied with the numbers, beyond their scales.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/int16.h"
#include "cpu/linear.h"

namespace roundhouse {

// x as int16 with a scale for each 128 inputs, which times the scale is what it was to half of the last of the largest
// one's 16 bits. Sums of a group are exact.
struct Integers : Int16 {
  using Weights = Vector;
  static Vector accumulate(Weights weights, const int16_t* x, Vector sum) {
#if defined(ROUNDHOUSE_AVX2)
    return add(sum, weights, pair(x));
#else
    // Compilers load the pair by itself and move sums to and fro.
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.lanes) : "v"(weights.lanes), "m"(*reinterpret_cast<const char(*)[4]>(x)));
    return sum;
#endif
  }
};

// x as fp32, for numbers that no int16 holds.
struct Floats {
  using Number = float;
  struct Weights {
    Vector even, odd;
  };
  static Vector accumulate(Weights weights, const float* x, Vector sum) {
    return multiply_add(weights.odd, Vector::all(x[1]), multiply_add(weights.even, Vector::all(x[0]), sum));
  }
  static Vector to_floats(Vector sums) { return sums; }
};

#if defined(ROUNDHOUSE_AVX2)

inline Words load_words(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Words and_words(Words a, int mask) { return _mm256_and_si256(a, _mm256_set1_epi16(static_cast<int16_t>(mask))); }
inline Words either_words(Words a, Words b) { return _mm256_or_si256(a, b); }
inline Words shift_words(Words a, int count) { return count == 0 ? a : _mm256_srli_epi16(a, count); }
inline Words left_words(Words a, int count) { return _mm256_slli_epi16(a, count); }
inline Vector as_vector(Words a) { return {_mm256_castsi256_ps(a)}; }
inline Words int8_words(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vector from_half(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Vector from_int8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline Vector from_uint8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

#else

inline Words load_words(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Words and_words(Words a, int mask) { return _mm512_and_si512(a, _mm512_set1_epi16(static_cast<int16_t>(mask))); }
inline Words either_words(Words a, Words b) { return _mm512_or_si512(a, b); }
inline Words shift_words(Words a, int count) { return count == 0 ? a : _mm512_srli_epi16(a, static_cast<unsigned>(count)); }
inline Words left_words(Words a, int count) { return _mm512_slli_epi16(a, static_cast<unsigned>(count)); }
inline Vector as_vector(Words a) { return {_mm512_castsi512_ps(a)}; }
inline Words int8_words(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vector from_half(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vector from_int8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vector from_uint8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#endif

constexpr int64_t kWordBytes = 4 * kBlock;  // of a pair of inputs' words of all outputs

inline Words words_of(const uint8_t* step, int half, int r) {
  return load_words(step + kWordBytes * r + static_cast<int64_t>(sizeof(Words)) * half);
}
// The j-th lowest four bits of each word of the r-th pair.
inline Words digit_words(const uint8_t* step, int half, int r, int j) {
  const Words words = shift_words(words_of(step, half, r), 4 * j);
  return j == 3 ? words : and_words(words, 15);
}

struct FourBits {
  using Arithmetic = Integers;
  static constexpr int kPairs = 1;
  static constexpr int64_t kStepBytes = kWordBytes;
  static constexpr float unit = 1;
  static Vector weights(const uint8_t* step, int half, int r, int j) { return as_vector(digit_words(step, half, r, j)); }
};

// Of five or six bits, those beyond the fourth in words of their own.
template <int kMore>
struct MoreBits {
  using Arithmetic = Integers;
  static constexpr int kPairs = 4 / kMore;
  static constexpr int64_t kStepBytes = (kPairs + 1) * kWordBytes;
  static constexpr float unit = 1;
  static Vector weights(const uint8_t* step, int half, int r, int j) {
    const int place = kMore * (4 * r + j);
    const Words more = words_of(step, half, kPairs);
    const Words high = place < 4 ? left_words(more, 4 - place) : shift_words(more, place - 4);
    return as_vector(either_words(digit_words(step, half, r, j), and_words(high, ((1 << kMore) - 1) << 4)));
  }
};

struct EightBits {
  using Arithmetic = Integers;
  static constexpr int kPairs = 1;
  static constexpr int64_t kStepBytes = 2 * kWordBytes;
  static constexpr float unit = 1;
  static Vector weights(const uint8_t* step, int half, int, int j) {
    return as_vector(int8_words(step + kWordBytes / 2 * j + static_cast<int64_t>(sizeof(Words)) / 2 * half));
  }
};

// Places in a table of multiples of a unit.
struct IntegerTable {
  using Arithmetic = Integers;
  static constexpr int kPairs = 1;
  static constexpr int64_t kStepBytes = kWordBytes;
  float unit;
  int64_t least;  // which is subtracted from what the table has
  Words entries;

  // Whether numbers are as many units of a power of two, of up to eight bits with their differences.
  static bool takes(const float* numbers) { return unit_of(numbers) != 0; }

  explicit IntegerTable(const float* numbers) : unit(unit_of(numbers)) {
    least = static_cast<int64_t>(*std::min_element(numbers, numbers + 16) / unit);
#if defined(ROUNDHOUSE_AVX2)
    alignas(32) uint8_t bytes[32];
    for (int i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(static_cast<int64_t>(numbers[i % 16] / unit) - least);
    entries = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
#else
    alignas(64) int16_t words[32];  // twice: VPERMW looks at five bits
    for (int i = 0; i < 32; ++i) words[i] = static_cast<int16_t>(static_cast<int64_t>(numbers[i % 16] / unit) - least);
    entries = _mm512_load_si512(words);
#endif
  }

  Vector weights(const uint8_t* step, int half, int r, int j) const {
#if defined(ROUNDHOUSE_AVX2)
    // Of the high bytes nothing is looked up: their highest bit says so.
    const Words nothing = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
    return as_vector(_mm256_shuffle_epi8(entries, either_words(digit_words(step, half, r, j), nothing)));
#else
    return as_vector(_mm512_permutexvar_epi16(shift_words(words_of(step, half, r), 4 * j), entries));
#endif
  }

 private:
  static float unit_of(const float* numbers) {
    const float least = *std::min_element(numbers, numbers + 16), most = *std::max_element(numbers, numbers + 16);
    for (float unit = 1; unit > 1e-3f; unit /= 2) {
      const auto whole = [unit](float number) { return std::trunc(number / unit) * unit == number; };
      if (std::all_of(numbers, numbers + 16, whole) && std::abs(least / unit) < 256 && (most - least) / unit < 256) return unit;
    }
    return 0;
  }
};

// Places in a table of any numbers.
struct FloatTable {
  using Arithmetic = Floats;
  static constexpr int kPairs = 1;
  static constexpr int64_t kStepBytes = kWordBytes;
  static constexpr float unit = 1;

#if defined(ROUNDHOUSE_AVX2)
  __m256 low, high;
  explicit FloatTable(const float* numbers) : low(_mm256_loadu_ps(numbers)), high(_mm256_loadu_ps(numbers + 8)) {}
  Vector look_up(__m256i places) const {
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));  // the fourth bit as a sign
    return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, places), _mm256_permutevar8x32_ps(high, places), upper)};
  }
  Floats::Weights weights(const uint8_t* step, int half, int r, int j) const {
    const Words words = shift_words(words_of(step, half, r), 4 * j);
    return {look_up(words), look_up(_mm256_srli_epi32(words, 16))};
  }
#else
  __m512 all;
  explicit FloatTable(const float* numbers) : all(_mm512_loadu_ps(numbers)) {}
  Floats::Weights weights(const uint8_t* step, int half, int r, int j) const {
    const Words words = shift_words(words_of(step, half, r), 4 * j);
    return {{_mm512_permutexvar_ps(words, all)}, {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 16), all)}};
  }
#endif
};

// e4m3, as fp16 that is too small by the difference of the exponents' biases.
struct Float8 {
  using Arithmetic = Floats;
  static constexpr int kPairs = 1;
  static constexpr int64_t kStepBytes = EightBits::kStepBytes;
  static constexpr float unit = 256;

#if defined(ROUNDHOUSE_AVX2)
  using Halves = __m128i;
  static Halves all(int word) { return _mm_set1_epi16(static_cast<int16_t>(word)); }
  static Halves both(Halves a, int mask) { return _mm_and_si128(a, all(mask)); }
  static Halves either(Halves a, Halves b) { return _mm_or_si128(a, b); }
  static Halves left(Halves a, int count) { return _mm_slli_epi16(a, count); }
  static Halves right(Halves a, int count) { return _mm_srli_epi16(a, count); }
  static Halves not_numbers(Halves a) { return _mm_cmpeq_epi16(a, all(0x7f << 7)); }
  static Vector widen(Halves a) { return {_mm256_cvtph_ps(a)}; }
  static Halves load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
#else
  using Halves = __m256i;
  static Halves all(int word) { return _mm256_set1_epi16(static_cast<int16_t>(word)); }
  static Halves both(Halves a, int mask) { return _mm256_and_si256(a, all(mask)); }
  static Halves either(Halves a, Halves b) { return _mm256_or_si256(a, b); }
  static Halves left(Halves a, int count) { return _mm256_slli_epi16(a, count); }
  static Halves right(Halves a, int count) { return _mm256_srli_epi16(a, count); }
  static Halves not_numbers(Halves a) { return _mm256_cmpeq_epi16(a, all(0x7f << 7)); }
  static Vector widen(Halves a) { return {_mm512_cvtph_ps(a)}; }
  static Halves load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
#endif

  // From magnitudes and signs where fp16 has them.
  static Vector number(Halves magnitude, Halves sign) {
    return widen(either(either(magnitude, both(not_numbers(magnitude), 0x7e00)), sign));
  }
  static Floats::Weights weights(const uint8_t* step, int half, int, int j) {
    const Halves pair = load(step + kWordBytes / 2 * j + static_cast<int64_t>(sizeof(Halves)) * half);
    const Vector even = number(left(both(pair, 0x7f), 7), left(both(pair, 0x80), 8));
    return {even, number(right(both(pair, 0x7f00), 1), both(pair, 0x8000))};
  }
};

}  // namespace roundhouse
