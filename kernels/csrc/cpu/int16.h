// Products of int16 numbers in AVX2's registers, whose sums of int32 are exact and so the same in any order.
#pragma once

#include "cpu/vector.h"

#if defined(ROUNDHOUSE_AVX2)

namespace roundhouse {

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
  static __m256i bits(Vector x) { return _mm256_castps_si256(x.lanes); }
  static Vector plus(Vector a, Vector b) { return {_mm256_castsi256_ps(_mm256_add_epi32(bits(a), bits(b)))}; }
  static Vector to_floats(Vector sums) { return {_mm256_cvtepi32_ps(bits(sums))}; }
};

}  // namespace roundhouse

#endif
