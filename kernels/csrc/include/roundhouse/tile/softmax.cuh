// The running softmax of FlashAttention over the scores that a warp's matrix products give, in the layout of ptx/mma.cuh:
// lane l has of rows l / 4 and l / 4 + 8 two columns in eight.
//
// Scores are in units of log 2. A row that has seen no key has maximum -inf, sum 0 and output 0.
#pragma once

#include "roundhouse/ptx/convert.cuh"
#include "roundhouse/tile/reduce.cuh"

namespace roundhouse::cuda {

constexpr float kNothing = -INFINITY;

// exp2(a - b) where both may be -inf: nothing then.
ROUNDHOUSE_DEVICE float rescaling(float a, float b) { return a == kNothing ? 0.0f : ptx::exp2(a - b); }

struct RunningSoftmax {
  float maximum[2] = {kNothing, kNothing};
  float sum[2] = {0.0f, 0.0f};  // of this lane's columns until `finish`

  // Takes the scores of 8 kEights keys, makes them exp2(score - maximum), and scales what was computed so far: sums here,
  // and of the output what `scale(row, factor)` is called for, row 0 or 1.
  template <int kEights, class Scale>
  ROUNDHOUSE_DEVICE void add(float (&scores)[kEights][4], Scale scale) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float highest = maximum[row];
#pragma unroll
      for (int n = 0; n < kEights; ++n) highest = fmaxf(highest, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
      highest = reduce_warp<4>(highest, Max());
      const float factor = rescaling(maximum[row], highest);
      maximum[row] = highest;
      // Finite, so that masked scores become 0 also where all are masked.
      const float subtract = highest == kNothing ? 0.0f : highest;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          scores[n][i] = ptx::exp2(scores[n][i] - subtract);
          added += scores[n][i];
        }
      }
      sum[row] = fmaf(sum[row], factor, added);
      scale(row, factor);
    }
  }

  // The sums of whole rows, in all their lanes.
  ROUNDHOUSE_DEVICE void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) sum[row] = reduce_warp<4>(sum[row], Sum());
  }
};

// Two parts of a row's keys become one: outputs are added with these factors, which apply to the sums too.
struct Merge {
  float maximum, sum, factor_of_first, factor_of_second;

  ROUNDHOUSE_DEVICE Merge(float maximum1, float sum1, float maximum2, float sum2)
      : maximum(fmaxf(maximum1, maximum2)),
        factor_of_first(rescaling(maximum1, maximum)),
        factor_of_second(rescaling(maximum2, maximum)) {
    sum = apply(sum1, sum2);
  }

  ROUNDHOUSE_DEVICE float apply(float first, float second) const {
    return fmaf(first, factor_of_first, second * factor_of_second);
  }
};

}  // namespace roundhouse::cuda
