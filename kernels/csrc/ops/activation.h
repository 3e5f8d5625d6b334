// What the bindings of the gated activations ask of their tensors, on any device.
#pragma once

#include "ops/check.h"

namespace roundhouse {

inline void check_activation(const TensorView& out, const TensorView& x, CheckDevice check_device) {
  check_device(out, "out");
  check_device(x, "x");
  ROUNDHOUSE_CHECK(is(x, kFloat32) || is(x, kBfloat16)) << "x must be float32 or bfloat16";
  check_type(out, x.dtype(), "out");
  check_dimensions(x, 2, "x");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(is_dense(x, 1)) << "x must have rows without gaps";
  check_size(out, 0, x.size(0), "out");
  check_size(x, 1, 2 * out.size(1), "x");
}

}  // namespace roundhouse
