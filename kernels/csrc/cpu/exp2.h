// Powers of two on registers.
#pragma once

#include "cpu/vector.h"

namespace roundhouse {

// x * 2^n for whole n <= 0; 0 where n is below -200, also for minus infinity.
inline Vector scale_down(Vector x, Vector n) {
#if defined(ROUNDHOUSE_AVX2)
  // 2^-127 is made of a zero exponent, and with it 0.
  const __m256i exponent = _mm256_cvtps_epi32(max(n, Vector::all(-127.0f)).lanes);
  return x * Vector{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23))};
#else
  return {_mm512_scalef_ps(x.lanes, n.lanes)};
#endif
}

// 2^x for |x| <= 1/2: minimax polynomials in the relative error, 2e-9 for `exact`, else 3e-6, which is little beside a
// rounding to bf16.
template <bool exact>
inline Vector exp2_fraction(Vector x) {
  Vector y;
  if (exact) {
    y = multiply_add(Vector::all(1.5353361959569156e-4f), x, Vector::all(1.3398875016719103e-3f));
    y = multiply_add(y, x, Vector::all(9.61843691766262e-3f));
    y = multiply_add(y, x, Vector::all(5.5503323674201965e-2f));
    y = multiply_add(y, x, Vector::all(2.4022647738456726e-1f));
    y = multiply_add(y, x, Vector::all(6.931471824645996e-1f));
  } else {
    y = multiply_add(Vector::all(9.582852944731712e-3f), x, Vector::all(5.5906426161527634e-2f));
    y = multiply_add(y, x, Vector::all(2.4024099111557007e-1f));
    y = multiply_add(y, x, Vector::all(6.931241750717163e-1f));
  }
  return multiply_add(y, x, Vector::all(1.0f));
}

}  // namespace roundhouse
