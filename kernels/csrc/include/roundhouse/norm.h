// Root mean square normalisation (Zhang and Sennrich, 2019) on CUDA.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

// Rows of `width` numbers, one behind the other; of x only `group` rows are, with the next group `stride` elements on, as
// heads are beside others of the same token. Row i has weights i % weight_rows, so that heads can have their own.
template <class T>
struct RmsNorm {
  T* out;
  const T* x;
  T* residual;  // null, or rows like those of `out`: x is added to them, and their sum is what is normalised
  const T* weight;
  int64_t rows, width, group, stride, weight_rows;
  float eps;
};

template <class T>
void rms_norm(const RmsNorm<T>& p, Stream stream);

}  // namespace roundhouse::cuda
