#include "ops/norm.h"

#include "ops/cuda.h"
#include "roundhouse/norm.h"

namespace roundhouse::cuda {
namespace {

template <class T>
void run(TensorView out, TensorView x, T* residual, TensorView weight, double eps) {
  rms_norm(norm_params<RmsNorm<T>>(out, x, residual, weight, eps), stream_of(x));
}

void rms_norm_op(TensorView out, TensorView x, TensorView weight, double eps) {
  check_norm(out, x, weight, check_cuda);
  if (is(x, kFloat32)) return run<float>(out, x, nullptr, weight, eps);
  run<bfloat16>(out, x, nullptr, weight, eps);
}

void add_rms_norm_op(TensorView out, TensorView x, TensorView residual, TensorView weight, double eps) {
  check_norm(out, x, weight, check_cuda);
  check_residual(x, residual, check_cuda);
  if (is(x, kFloat32)) return run<float>(out, x, data<float>(residual), weight, eps);
  run<bfloat16>(out, x, data<bfloat16>(residual), weight, eps);
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, roundhouse::cuda::rms_norm_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_rms_norm, roundhouse::cuda::add_rms_norm_op);
