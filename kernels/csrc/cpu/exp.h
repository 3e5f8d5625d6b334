// The exponential function of a register of numbers.
#pragma once

#include "cpu/vector.h"

namespace roundhouse {

// x * 2^n for whole n in [-252, 254], rounded once.
inline Vector scale(Vector x, Vector n) {
#if defined(ROUNDHOUSE_AVX2)
  // In two steps: no number has the exponents of infinity and of what is nearly zero. The first step is exact.
  const __m256i whole = _mm256_cvtps_epi32(n.lanes), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(whole, half);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(x.lanes, first), second)};
#else
  return {_mm512_scalef_ps(x.lanes, n.lanes)};
#endif
}

// e^x, within one unit in the last place and a few hundredths, denormals among them; the same bits on every instruction
// set. Infinity beyond 88.72; NaN stays NaN. As usual, 2^n e^r with |r| <= log(2) / 2 (Cody and Waite, 1980); the
// polynomial for e^r is Cephes' (Moshier, 1989).
inline Vector exp(Vector x) {
  // In this order a NaN goes through both.
  x = min(Vector::all(89.0f), max(Vector::all(-104.0f), x));
  const Vector n = round(x * Vector::all(1.44269504088896341f));
  Vector r = multiply_add(n, Vector::all(-0.693359375f), x);
  r = multiply_add(n, Vector::all(2.12194440e-4f), r);
  Vector p = Vector::all(1.9875691500e-4f);
  p = multiply_add(p, r, Vector::all(1.3981999507e-3f));
  p = multiply_add(p, r, Vector::all(8.3334519073e-3f));
  p = multiply_add(p, r, Vector::all(4.1665795894e-2f));
  p = multiply_add(p, r, Vector::all(1.6666665459e-1f));
  p = multiply_add(p, r, Vector::all(5.0000001201e-1f));
  p = multiply_add(p, r * r, r);
  return scale(p + Vector::all(1.0f), n);
}

}  // namespace roundhouse
