// What is between the two products of a gated feed-forward layer (Shazeer, 2020), on CUDA: the first half of a row,
// through an activation function, times the second.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

enum class Activation {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// x: rows of 2 * width numbers, `stride` elements from one to the next; out: rows of width, one behind the other.
template <class T>
struct ActivateAndMultiply {
  T* out;
  const T* x;
  int64_t rows, width, stride;
  Activation activation;
};

template <class T>
void activate_and_multiply(const ActivateAndMultiply<T>& p, Stream stream);

}  // namespace roundhouse::cuda
