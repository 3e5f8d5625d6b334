#include "cpu/linear.h"

#include <omp.h>

#include <type_traits>

#include "ops/check.h"

namespace roundhouse {
namespace {

using Bias = tvm::ffi::Optional<TensorView>;

// What all kinds of weights ask for, most of them that rows of `out` are one behind the other. The workspace is for `digits`
// rows per row of x.
void check(const TensorView& out, const TensorView& x, const TensorView& weight, const Bias& bias, const TensorView& workspace,
           int64_t digits = 1, bool dense = true) {
  check_cpu(out, "out");
  check_cpu(x, "x");
  check_cpu(weight, "weight");
  check_cpu(workspace, "workspace");
  ROUNDHOUSE_CHECK(is(x, kFloat32) || is(x, kBfloat16)) << "x must be float32 or bfloat16";
  if (!is(out, kFloat32)) check_type(out, x.dtype(), "out");
  check_dimensions(x, 2, "x");
  check_dimensions(out, 2, "out");
  check_size(out, 0, x.size(0), "out");
  if (dense) check_dense(out, "out");
  check_dense(weight, "weight");
  check_dense(workspace, "workspace");
  check_type(weight, kUint8, "weight");
  check_type(workspace, kUint8, "workspace");
  ROUNDHOUSE_CHECK(x.size(1) > 0) << "x has no inputs";
  ROUNDHOUSE_CHECK(is_dense(x, 1)) << "x must be contiguous but for its rows";
  ROUNDHOUSE_CHECK(reinterpret_cast<uintptr_t>(workspace.data_ptr()) % 64 == 0) << "workspace must lie at a multiple of 64";
  const int64_t needed = linear_workspace(digits * x.size(0), x.size(1), omp_get_max_threads());
  ROUNDHOUSE_CHECK(workspace.numel() >= needed) << "workspace has " << workspace.numel() << " bytes instead of " << needed;
  if (!bias.has_value()) return;
  check_cpu(*bias, "bias");
  check_type(*bias, x.dtype(), "bias");
  check_dimensions(*bias, 1, "bias");
  check_size(*bias, 0, out.size(1), "bias");
  check_dense(*bias, "bias");
}

template <class T>
const T* optional(const Bias& bias) {
  return bias.has_value() ? data<T>(*bias) : nullptr;
}

// Where results go if they are rounded to T, and if they are not.
template <class T>
T* rounded(const TensorView& out) {
  return is(out, kFloat32) && !std::is_same_v<T, float> ? nullptr : data<T>(out);
}
template <class T>
float* exact(const TensorView& out) {
  return is(out, kFloat32) && !std::is_same_v<T, float> ? data<float>(out) : nullptr;
}

// Bytes of a weight whose blocks have `size` of them.
void check_weight(const TensorView& weight, const TensorView& out, int64_t size) {
  check_size(weight, 0, ceil_div(out.size(1), kBlock) * size, "weight");
}

void check_bfloat16(const TensorView& x) { ROUNDHOUSE_CHECK(is(x, kBfloat16)) << "x must be bfloat16"; }

// Bytes of a block of tiles of inputs of `itemsize` bytes.
int64_t tiled(const TensorView& x, int64_t itemsize) {
  return kBlock * ceil_div(x.size(1) * itemsize, kTileBytes) * kTileBytes;
}

template <class T>
void run(const TensorView& out, const TensorView& x, const TensorView& weight, const Bias& bias, const TensorView& workspace) {
  check_weight(weight, out, std::is_same_v<T, float> ? kBlock * x.size(1) * 4 : tiled(x, 2));
  linear(Linear<T>{rounded<T>(out), exact<T>(out), data<T>(x), optional<T>(bias), data<T>(weight), workspace.data_ptr(),
                   x.size(0), out.size(1), x.size(1), x.stride(0)});
}

void linear_op(TensorView out, TensorView x, TensorView weight, Bias bias, TensorView workspace) {
  check(out, x, weight, bias, workspace);
  if (x.size(0) == 0) return;
  if (is(x, kFloat32)) return run<float>(out, x, weight, bias, workspace);
  run<bfloat16>(out, x, weight, bias, workspace);
}

// One number of each output.
void check_outputs(const TensorView& each, DLDataType type, const TensorView& out, const char* name) {
  check_cpu(each, name);
  check_type(each, type, name);
  check_dimensions(each, 1, name);
  check_size(each, 0, out.size(1), name);
  check_dense(each, name);
}

void linear_int8_op(TensorView out, TensorView x, TensorView weight, TensorView scales, TensorView totals, Bias bias,
                    TensorView workspace, int64_t limit) {
  check(out, x, weight, bias, workspace, kInt8Digits);
  ROUNDHOUSE_CHECK(limit > 0 && limit <= kMaxInt8Limit) << "limit is " << limit;
  check_bfloat16(x);
  check_weight(weight, out, tiled(x, 1));
  check_outputs(scales, kFloat32, out, "scales");
  check_outputs(totals, kInt32, out, "totals");
  if (x.size(0) == 0) return;
  linear_int8({rounded<bfloat16>(out), exact<bfloat16>(out), data<bfloat16>(x), optional<bfloat16>(bias), data<int8_t>(weight),
               data<float>(scales), data<int32_t>(totals), workspace.data_ptr(), x.size(0), out.size(1), x.size(1),
               x.stride(0), limit});
}

void linear_w8a16_op(TensorView out, TensorView x, TensorView weight, TensorView scales, Bias bias, TensorView workspace) {
  check(out, x, weight, bias, workspace);
  check_bfloat16(x);
  check_weight(weight, out, tiled(x, 1));
  check_outputs(scales, kFloat32, out, "scales");
  if (x.size(0) == 0) return;
  linear_w8a16({rounded<bfloat16>(out), exact<bfloat16>(out), data<bfloat16>(x), optional<bfloat16>(bias), data<int8_t>(weight),
                data<float>(scales), workspace.data_ptr(), x.size(0), out.size(1), x.size(1), x.stride(0)});
}

void linear_int4_op(TensorView out, TensorView x, TensorView weight, Bias bias, TensorView workspace) {
  check(out, x, weight, bias, workspace);
  check_bfloat16(x);
  check_weight(weight, out, ceil_div(x.size(1), kInt4Group) * kInt4GroupBytes);
  if (x.size(0) == 0) return;
  linear_int4({rounded<bfloat16>(out), exact<bfloat16>(out), data<bfloat16>(x), optional<bfloat16>(bias), data<uint8_t>(weight),
               workspace.data_ptr(), x.size(0), out.size(1), x.size(1), x.stride(0)});
}

template <class T>
void run_groups(const TensorView& out, const TensorView& x, const TensorView& weight, const float* table, const Bias& bias,
                const TensorView& workspace, const GroupLayout& layout) {
  linear_groups(LinearGroups<T>{rounded<T>(out), exact<T>(out), data<T>(x), optional<T>(bias), data<uint8_t>(weight), table,
                                workspace.data_ptr(), x.size(0), out.size(1), x.size(1), x.stride(0), out.stride(0), layout});
}

void linear_groups_op(TensorView out, TensorView x, TensorView weight, Bias table, Bias bias, TensorView workspace,
                      int64_t bits, bool e4m3, int64_t group, int64_t steps, int64_t type, bool offsets, bool zeros,
                      int64_t zero) {
  check(out, x, weight, bias, workspace, 1, false);
  ROUNDHOUSE_CHECK(is_dense(out, 1)) << "out must be contiguous but for its rows";
  ROUNDHOUSE_CHECK(bits == 4 || bits == 5 || bits == 6 || bits == 8) << "bits is " << bits;
  ROUNDHOUSE_CHECK(!e4m3 || (bits == 8 && !zeros && zero == 0)) << "e4m3 has eight bits and no zeros";
  ROUNDHOUSE_CHECK(group == 16 || group == 32 || group == 64 || group == 128) << "group is " << group;
  ROUNDHOUSE_CHECK(steps >= 0 && steps <= 2) << "steps is " << steps;
  ROUNDHOUSE_CHECK(type >= 0 && type <= 4) << "type is " << type;
  const GroupLayout layout{bits, e4m3, group, steps, static_cast<ScaleType>(type), offsets, zeros, zero};
  ROUNDHOUSE_CHECK(steps == 0 || x.size(1) % layout.span() == 0) << "x has " << x.size(1) << " inputs";
  check_weight(weight, out, layout.block_bytes(x.size(1)));
  if (table.has_value()) {
    ROUNDHOUSE_CHECK(bits == 4) << "numbers of " << bits << " bits have no table";
    check_cpu(*table, "table");
    check_type(*table, kFloat32, "table");
    check_dimensions(*table, 1, "table");
    check_size(*table, 0, 16, "table");
    check_dense(*table, "table");
  }
  if (x.size(0) == 0) return;
  const float* const numbers = optional<float>(table);
  if (is(x, kFloat32)) return run_groups<float>(out, x, weight, numbers, bias, workspace, layout);
  run_groups<bfloat16>(out, x, weight, numbers, bias, workspace, layout);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, roundhouse::linear_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_int8, roundhouse::linear_int8_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_w8a16, roundhouse::linear_w8a16_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_int4, roundhouse::linear_int4_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_groups, roundhouse::linear_groups_op);
