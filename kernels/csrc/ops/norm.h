// What the bindings of the norms ask of their tensors, on any device.
#pragma once

#include "ops/check.h"

namespace roundhouse {

// x is [T, width], or [T, heads, width] with other heads between those of two tokens.
inline void check_norm(const TensorView& out, const TensorView& x, const TensorView& weight, CheckDevice check_device) {
  check_device(out, "out");
  check_device(x, "x");
  check_device(weight, "weight");
  ROUNDHOUSE_CHECK(is(x, kFloat32) || is(x, kBfloat16)) << "x must be float32 or bfloat16";
  check_type(out, x.dtype(), "out");
  check_type(weight, x.dtype(), "weight");
  check_dense(out, "out");
  check_dense(weight, "weight");
  ROUNDHOUSE_CHECK(x.ndim() == 2 || x.ndim() == 3) << "x must be [T, width] or [T, heads, width]";
  ROUNDHOUSE_CHECK(is_dense(x, x.ndim() - 1)) << "x must be contiguous but for its tokens";
  ROUNDHOUSE_CHECK(weight.ndim() >= 1) << "weight must have a width";
  check_size(weight, weight.ndim() - 1, x.size(x.ndim() - 1), "weight");
  ROUNDHOUSE_CHECK(out.numel() == x.numel()) << "out must have the size of x";
  ROUNDHOUSE_CHECK(weight.numel() != 0 && x.numel() % weight.numel() == 0) << "x must be rows of weight's size";
}

inline void check_residual(const TensorView& x, const TensorView& residual, CheckDevice check_device) {
  check_device(residual, "residual");
  check_type(residual, x.dtype(), "residual");
  check_dense(x, "x");
  check_dense(residual, "residual");
  ROUNDHOUSE_CHECK(residual.numel() == x.numel()) << "residual must have the size of x";
}

// The parameters of any device's body; T is its type of the elements.
template <class Params, class T>
Params norm_params(TensorView out, TensorView x, T* residual, TensorView weight, double eps) {
  const int64_t width = x.size(x.ndim() - 1), rows = out.numel() / width;
  const int64_t group = x.ndim() == 3 ? x.size(1) : 1, stride = x.stride(0);
  return {data<T>(out), data<T>(x), residual, data<T>(weight), rows, width, group, stride, weight.numel() / width, static_cast<float>(eps)};
}

}  // namespace roundhouse
