#include "cpu/linear.h"

#include <type_traits>

#include "ops/check.h"

namespace roundhouse {
namespace {

// What all kinds of weights ask for; returns whether there is a bias.
void check(const TensorView& out, const TensorView& x, const TensorView& weight, const TensorView& workspace) {
  check_cpu(out, "out");
  check_cpu(x, "x");
  check_cpu(weight, "weight");
  check_cpu(workspace, "workspace");
  check_type(out, x.dtype(), "out");
  check_dimensions(x, 2, "x");
  check_dimensions(out, 2, "out");
  check_size(out, 0, x.size(0), "out");
  check_dense(out, "out");
  check_dense(weight, "weight");
  check_dense(workspace, "workspace");
  check_type(weight, kUint8, "weight");
  check_type(workspace, kUint8, "workspace");
  ROUNDHOUSE_CHECK(x.size(1) > 0) << "x has no inputs";
  ROUNDHOUSE_CHECK(is_dense(x, 1)) << "x must be contiguous but for its rows";
  ROUNDHOUSE_CHECK(reinterpret_cast<uintptr_t>(workspace.data_ptr()) % 64 == 0) << "workspace must lie at a multiple of 64";
  const int64_t needed = linear_workspace(x.size(0), x.size(1));
  ROUNDHOUSE_CHECK(workspace.numel() >= needed) << "workspace has " << workspace.numel() << " bytes instead of " << needed;
}

template <class T>
const T* check_bias(const tvm::ffi::Optional<TensorView>& bias, const TensorView& out) {
  if (!bias.has_value()) return nullptr;
  check_cpu(*bias, "bias");
  check_type(*bias, out.dtype(), "bias");
  check_dimensions(*bias, 1, "bias");
  check_size(*bias, 0, out.size(1), "bias");
  check_dense(*bias, "bias");
  return data<T>(*bias);
}

template <class T>
void run(const TensorView& out, const TensorView& x, const TensorView& weight, const tvm::ffi::Optional<TensorView>& bias,
         const TensorView& workspace) {
  const int64_t line = std::is_same_v<T, float> ? x.size(1) * 4 : ceil_div(x.size(1) * 2, kTileBytes) * kTileBytes;
  check_size(weight, 0, ceil_div(out.size(1), kBlock) * kBlock * line, "weight");
  linear(Linear<T>{data<T>(out), data<T>(x), check_bias<T>(bias, out), data<T>(weight), workspace.data_ptr(), x.size(0),
                   out.size(1), x.size(1), x.stride(0)});
}

void linear_op(TensorView out, TensorView x, TensorView weight, tvm::ffi::Optional<TensorView> bias, TensorView workspace) {
  check(out, x, weight, workspace);
  ROUNDHOUSE_CHECK(is(x, kFloat32) || is(x, kBfloat16)) << "x must be float32 or bfloat16";
  if (x.size(0) == 0) return;
  if (is(x, kFloat32)) return run<float>(out, x, weight, bias, workspace);
  run<bfloat16>(out, x, weight, bias, workspace);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, roundhouse::linear_op);
