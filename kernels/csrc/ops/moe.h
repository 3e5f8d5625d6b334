// What the bindings of mixtures of experts ask of their tensors, on any device.
#pragma once

#include "ops/check.h"

namespace roundhouse {

inline void check_numbers(const TensorView& tensor, DLDataType type, int64_t size, const char* name, CheckDevice check_device) {
  check_device(tensor, name);
  check_type(tensor, type, name);
  check_dense(tensor, name);
  ROUNDHOUSE_CHECK(tensor.numel() == size) << name << " has " << tensor.numel() << " elements instead of " << size;
}

inline void check_rows(const TensorView& tensor, const char* name, CheckDevice check_device) {
  check_device(tensor, name);
  ROUNDHOUSE_CHECK(is(tensor, kFloat32) || is(tensor, kBfloat16)) << name << " must be float32 or bfloat16";
  check_dimensions(tensor, 2, name);
  check_dense(tensor, name);
}

inline void check_routing(const TensorView& weights, const TensorView& chosen, const TensorView& order, const TensorView& places,
                          const TensorView& tokens, const TensorView& ends, const TensorView& logits, CheckDevice check_device) {
  check_rows(logits, "logits", check_device);
  check_dimensions(weights, 2, "weights");
  const int64_t k = weights.size(1), pairs = logits.size(0) * k;
  ROUNDHOUSE_CHECK(k <= logits.size(1)) << "weights has more columns than there are experts";
  check_numbers(weights, kFloat32, pairs, "weights", check_device);
  check_numbers(chosen, kInt64, pairs, "chosen", check_device);
  check_numbers(order, kInt64, pairs, "order", check_device);
  check_numbers(places, kInt64, pairs, "places", check_device);
  check_numbers(tokens, kInt64, pairs, "tokens", check_device);
  check_numbers(ends, kInt64, logits.size(1), "ends", check_device);
}

inline void check_combination(const TensorView& out, const TensorView& outputs, const TensorView& weights,
                              const TensorView& places, CheckDevice check_device) {
  check_rows(out, "out", check_device);
  check_rows(outputs, "outputs", check_device);
  check_type(outputs, out.dtype(), "outputs");
  check_dimensions(weights, 2, "weights");
  const int64_t pairs = out.size(0) * weights.size(1);
  check_size(outputs, 0, pairs, "outputs");
  check_size(outputs, 1, out.size(1), "outputs");
  check_numbers(weights, kFloat32, pairs, "weights", check_device);
  check_numbers(places, kInt64, pairs, "places", check_device);
}

// The parameters of any device's bodies.
template <class Params, class T>
Params routing_params(TensorView weights, TensorView chosen, TensorView order, TensorView places, TensorView tokens,
                      TensorView ends, TensorView logits) {
  return {data<T>(logits),       data<float>(weights),  data<int64_t>(chosen), data<int64_t>(order), data<int64_t>(places),
          data<int64_t>(tokens), data<int64_t>(ends),   logits.size(0),        logits.size(1),       weights.size(1)};
}

template <class Params, class T>
Params combination_params(TensorView out, TensorView outputs, TensorView weights, TensorView places) {
  return {data<T>(out), data<T>(outputs), data<float>(weights), data<int64_t>(places), out.size(0), weights.size(1), out.size(1)};
}

}  // namespace roundhouse
