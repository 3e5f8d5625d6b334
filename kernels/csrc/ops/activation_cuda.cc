#include "ops/activation.h"

#include "ops/cuda.h"
#include "roundhouse/activation.h"

namespace roundhouse::cuda {
namespace {

template <class T>
void run(TensorView out, TensorView x, Activation activation) {
  activate_and_multiply(
      ActivateAndMultiply<T>{data<T>(out), data<T>(x), out.size(0), out.size(1), x.stride(0), activation}, stream_of(x));
}

void dispatch(TensorView out, TensorView x, Activation activation) {
  check_activation(out, x, check_cuda);
  if (is(x, kFloat32)) return run<float>(out, x, activation);
  run<bfloat16>(out, x, activation);
}

void silu_and_mul_op(TensorView out, TensorView x) { dispatch(out, x, Activation::kSilu); }

void gelu_and_mul_op(TensorView out, TensorView x, bool tanh) {
  dispatch(out, x, tanh ? Activation::kGeluTanh : Activation::kGelu);
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_and_mul, roundhouse::cuda::silu_and_mul_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gelu_and_mul, roundhouse::cuda::gelu_and_mul_op);
