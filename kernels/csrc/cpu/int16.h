// Products of int16 numbers, whose sums of int32 are exact and so the same in any order.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/vector.h"

namespace roundhouse {

#if defined(ROUNDHOUSE_AVX2)

using Words = __m256i;  // of 16 bits

// What kinds (linear_vector.h) have in common whose numbers are int16.
struct Int16 {
  using Number = int16_t;
  static constexpr int kWidth = 16;

  static Vector numbers(const int16_t* x) {
    __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    asm("" : "+x"(loaded));  // once: compilers would load it again for each line
    return {_mm256_castsi256_ps(loaded)};
  }
  static Vector add(Vector sum, Vector weights, Vector numbers) {
    sum = plus(sum, {_mm256_castsi256_ps(_mm256_madd_epi16(bits(weights), bits(numbers)))});
    asm("" : "+x"(sum.lanes));  // compilers would add in another order, which takes more registers than there are
    return sum;
  }
  static Vector pair(const int16_t* x) {
    int32_t both;
    std::memcpy(&both, x, sizeof(both));
    return all(both);
  }
  static Vector all(int32_t x) { return {_mm256_castsi256_ps(_mm256_set1_epi32(x))}; }
  // A register's width of numbers, rounded to the nearest.
  static void store_rounded(int16_t* to, Vector numbers) {
    const __m256i whole = numbers.rounded();
    const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
  }
  static __m256i bits(Vector x) { return _mm256_castps_si256(x.lanes); }
  static Vector plus(Vector a, Vector b) { return {_mm256_castsi256_ps(_mm256_add_epi32(bits(a), bits(b)))}; }
  static Vector to_floats(Vector sums) { return {_mm256_cvtepi32_ps(bits(sums))}; }
};

#else

using Words = __m512i;

struct Int16 {
  using Number = int16_t;

  static Vector add(Vector sum, Vector weights, Vector numbers) {
    return {_mm512_castsi512_ps(_mm512_dpwssd_epi32(bits(sum), bits(weights), bits(numbers)))};
  }
  static Vector pair(const int16_t* x) {
    int32_t both;
    std::memcpy(&both, x, sizeof(both));
    return all(both);
  }
  static Vector all(int32_t x) { return {_mm512_castsi512_ps(_mm512_set1_epi32(x))}; }
  // A register's width of numbers, rounded to the nearest.
  static void store_rounded(int16_t* to, Vector numbers) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(numbers.rounded()));
  }
  static __m512i bits(Vector x) { return _mm512_castps_si512(x.lanes); }
  static Vector to_floats(Vector sums) { return {_mm512_cvtepi32_ps(bits(sums))}; }
};

#endif

}  // namespace roundhouse
