// What the bindings of the embedding ask of their tensors, on any device.
#pragma once

#include "ops/check.h"

namespace roundhouse {

inline void check_embedding(const TensorView& out, const TensorView& tokens, const TensorView& weight,
                            CheckDevice check_device) {
  check_device(out, "out");
  check_device(tokens, "tokens");
  check_device(weight, "weight");
  check_type(tokens, kInt64, "tokens");
  check_type(out, weight.dtype(), "out");
  check_dimensions(tokens, 1, "tokens");
  check_dimensions(weight, 2, "weight");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  check_dense(tokens, "tokens");
  ROUNDHOUSE_CHECK(is_dense(weight, 1)) << "weight must have rows without gaps";
  check_size(out, 0, tokens.size(0), "out");
  check_size(out, 1, weight.size(1), "out");
}

// The parameters of any device's body.
template <class Params>
Params embedding_params(TensorView out, TensorView tokens, TensorView weight) {
  const int64_t bytes = weight.dtype().bits / 8;
  return {data<char>(out), data<char>(weight),      data<int64_t>(tokens),    tokens.size(0),
          weight.size(0),  weight.size(1) * bytes, weight.stride(0) * bytes};
}

}  // namespace roundhouse
