#include "cpu/norm.h"

#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

template <class T>
void run(TensorView out, TensorView x, T* residual, TensorView weight, double eps) {
  const int64_t width = x.size(x.ndim() - 1), rows = out.numel() / width;
  // [T, width], or [T, heads, width] with other heads between those of two tokens.
  const int64_t group = x.ndim() == 3 ? x.size(1) : 1, stride = x.stride(0);
  rms_norm(RmsNorm<T>{data<T>(out), data<T>(x), residual, data<T>(weight), rows, width, group, stride,
                      weight.numel() / width, static_cast<float>(eps)});
}

void check(const TensorView& out, const TensorView& x, const TensorView& weight) {
  check_cpu(out, "out");
  check_cpu(x, "x");
  check_cpu(weight, "weight");
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

void rms_norm_op(TensorView out, TensorView x, TensorView weight, double eps) {
  check(out, x, weight);
  if (is(x, kFloat32)) return run<float>(out, x, nullptr, weight, eps);
  run<bfloat16>(out, x, nullptr, weight, eps);
}

void add_rms_norm_op(TensorView out, TensorView x, TensorView residual, TensorView weight, double eps) {
  check(out, x, weight);
  check_cpu(residual, "residual");
  check_type(residual, x.dtype(), "residual");
  check_dense(x, "x");
  check_dense(residual, "residual");
  ROUNDHOUSE_CHECK(residual.numel() == x.numel()) << "residual must have the size of x";
  if (is(x, kFloat32)) return run<float>(out, x, data<float>(residual), weight, eps);
  run<bfloat16>(out, x, data<bfloat16>(residual), weight, eps);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, roundhouse::rms_norm_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_rms_norm, roundhouse::add_rms_norm_op);
