// Rows of activations as int8 with a scale each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/vector.h"

namespace roundhouse {

// Gives the numbers of a row of x, rounded to the nearest of -127 to 127 times the returned scale, to
// `put(index, number)`, one register or less at a time; all are zero if x is.
template <class Put>
float quantize_row(const bfloat16* x, int64_t count, const Put& put) {
  constexpr int kWidth = Vector::kWidth;
  const int64_t whole = count / kWidth * kWidth;
  const int rest = static_cast<int>(count - whole);
  const Vector zero = Vector::zero();
  Vector most = zero;
  const auto largest = [&](Vector v) { most = max(most, max(v, zero - v)); };
  for (int64_t i = 0; i < whole; i += kWidth) largest(Vector::load(x + i));
  if (rest != 0) largest(Vector::load(x + whole, rest));
  const float magnitude = most.max();
  const bool any = magnitude > 1e-30f;  // below, 127 / magnitude would be infinite
  const Vector factor = Vector::all(any ? 127.0f / magnitude : 0.0f);
  for (int64_t i = 0; i < whole; i += kWidth) put(i, (Vector::load(x + i) * factor).rounded());
  if (rest != 0) put(whole, (Vector::load(x + whole, rest) * factor).rounded());
  return any ? magnitude * (1.0f / 127.0f) : 0.0f;
}

// `count` outputs of one row from their sums of products.
inline Vector scale_sums(Vector sums, float scale, const float* scales, const bfloat16* bias, int count) {
  const Vector out = sums * Vector::all(scale) * Vector::load(scales, count);
  return bias == nullptr ? out : out + Vector::load(bias, count);
}

}  // namespace roundhouse
