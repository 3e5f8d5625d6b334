#include "cpu/activation.h"

#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

template <class T>
void run(TensorView out, TensorView x, Activation activation) {
  activate_and_multiply(
      ActivateAndMultiply<T>{data<T>(out), data<T>(x), out.size(0), out.size(1), x.stride(0), activation});
}

void dispatch(TensorView out, TensorView x, Activation activation) {
  check_cpu(out, "out");
  check_cpu(x, "x");
  ROUNDHOUSE_CHECK(is(x, kFloat32) || is(x, kBfloat16)) << "x must be float32 or bfloat16";
  check_type(out, x.dtype(), "out");
  check_dimensions(x, 2, "x");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(is_dense(x, 1)) << "x must have rows without gaps";
  check_size(out, 0, x.size(0), "out");
  check_size(x, 1, 2 * out.size(1), "x");
  if (is(x, kFloat32)) return run<float>(out, x, activation);
  run<bfloat16>(out, x, activation);
}

void silu_and_mul_op(TensorView out, TensorView x) { dispatch(out, x, Activation::kSilu); }

void gelu_and_mul_op(TensorView out, TensorView x, bool tanh) {
  dispatch(out, x, tanh ? Activation::kGeluTanh : Activation::kGelu);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_and_mul, roundhouse::silu_and_mul_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gelu_and_mul, roundhouse::gelu_and_mul_op);
