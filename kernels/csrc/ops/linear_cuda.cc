#include "roundhouse/linear.h"

#include "ops/cuda.h"
#include "roundhouse/alignment.h"

namespace roundhouse::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_x(const TensorView& x) {
  check_cuda(x, "x");
  check_type(x, kBfloat16, "x");
  check_dimensions(x, 2, "x");
  ROUNDHOUSE_CHECK(is_dense(x, 1)) << "x must have rows without gaps";
}

void check_whole(const TensorView& tensor, DLDataType type, int64_t numel, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, type, name);
  check_dense(tensor, name);
  ROUNDHOUSE_CHECK(tensor.numel() == numel) << name << " has " << tensor.numel() << " elements instead of " << numel;
}

// Bytes of a weight of `bits` per input.
int64_t tile_bytes(int64_t outputs, int64_t inputs, int64_t bits) {
  return ceil_div(outputs, kTileOutputs) * kTileOutputs * ceil_div(inputs, kGroup) * kGroup * bits / 8;
}

void check_tiles(const TensorView& tiles, int64_t outputs, int64_t inputs, int64_t bits, int64_t experts = 1) {
  check_whole(tiles, kUint8, experts * tile_bytes(outputs, inputs, bits), "tiles");
  ROUNDHOUSE_CHECK(aligned(tiles.data_ptr())) << "tiles must be aligned to 16 bytes";
}

// Of int4 weights: numbers, two for an output and a group.
int64_t step_count(int64_t outputs, int64_t inputs) {
  return ceil_div(outputs, kTileOutputs) * kTileOutputs * ceil_div(inputs, kGroup) * 2;
}

void check_steps(const TensorView& steps, int64_t outputs, int64_t inputs, int64_t experts = 1) {
  check_whole(steps, kBfloat16, experts * step_count(outputs, inputs), "steps");
  ROUNDHOUSE_CHECK(aligned(steps.data_ptr())) << "steps must be aligned to 16 bytes";
}

void check_out(const TensorView& out, const TensorView& x) {
  check_cuda(out, "out");
  ROUNDHOUSE_CHECK(is(out, kFloat32) || is(out, kBfloat16)) << "out must be float32 or bfloat16";
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  check_size(out, 0, x.size(0), "out");
}

// Where results go if they are rounded, and if they are not.
bfloat16* rounded(const TensorView& out) { return is(out, kFloat32) ? nullptr : data<bfloat16>(out); }
float* exact(const TensorView& out) { return is(out, kFloat32) ? data<float>(out) : nullptr; }

const bfloat16* bias_of(const tvm::ffi::Optional<TensorView>& bias, int64_t outputs) {
  if (!bias.has_value()) return nullptr;
  check_whole(bias.value(), kBfloat16, outputs, "bias");
  return data<bfloat16>(bias.value());
}

// Rows of bf16 times weights of `bits`, one of each expert.
QuantizedLinear read_rows(TensorView out, TensorView x, TensorView tiles, TensorView scales, int64_t bits, int64_t experts) {
  check_x(x);
  ROUNDHOUSE_CHECK(aligned(x.data_ptr()) && x.stride(0) % 8 == 0 && x.size(1) % 8 == 0)
      << "x must have rows that are multiples of 16 bytes";
  check_out(out, x);
  const int64_t outputs = out.size(1), inputs = x.size(1);
  check_tiles(tiles, outputs, inputs, bits, experts);
  return {rounded(out), exact(out), x.data_ptr(), nullptr, data<uint8_t>(tiles), scales.data_ptr(), nullptr, x.size(0), outputs,
          inputs, x.stride(0)};
}

QuantizedLinear read_int4(TensorView out, TensorView x, TensorView tiles, TensorView steps, int64_t experts) {
  const QuantizedLinear p = read_rows(out, x, tiles, steps, 4, experts);
  check_steps(steps, p.outputs, p.inputs, experts);
  return p;
}

QuantizedLinear read_w8a16(TensorView out, TensorView x, TensorView tiles, TensorView scales, int64_t experts) {
  const QuantizedLinear p = read_rows(out, x, tiles, scales, 8, experts);
  check_whole(scales, kFloat32, experts * p.outputs, "scales");
  return p;
}

// The same for int8 weights; the rows of x are to become digits in int8 first. `digits` [T, 2, inputs rounded up to a multiple
// of 128] int8 and `x_scales` [T] are scratch memory.
QuantizedLinear read_int8(TensorView out, TensorView x, TensorView tiles, TensorView scales, TensorView digits,
                          TensorView x_scales, int64_t experts) {
  check_x(x);
  check_out(out, x);
  const int64_t outputs = out.size(1), inputs = x.size(1), rows = x.size(0), padded = ceil_div(inputs, kGroup) * kGroup;
  check_tiles(tiles, outputs, inputs, 8, experts);
  check_whole(scales, kFloat32, experts * outputs, "scales");
  check_whole(digits, kInt8, rows * 2 * padded, "digits");
  check_whole(x_scales, kFloat32, rows, "x_scales");
  ROUNDHOUSE_CHECK(aligned(digits.data_ptr())) << "digits must be aligned to 16 bytes";
  return {rounded(out), exact(out), digits.data_ptr(), nullptr, data<uint8_t>(tiles), scales.data_ptr(), data<float>(x_scales),
          rows, outputs, padded, padded};
}

void quantize(TensorView x, const QuantizedLinear& p, TensorView digits, TensorView x_scales, int64_t limit) {
  ROUNDHOUSE_CHECK(limit > 0 && limit <= kMaxLimit) << "limit is " << limit;
  quantize_rows({data<int8_t>(digits), data<float>(x_scales), data<bfloat16>(x), p.rows, x.size(1), x.stride(0), p.inputs, limit},
                stream_of(x));
}

void linear_int4_op(TensorView out, TensorView x, TensorView tiles, TensorView steps, tvm::ffi::Optional<TensorView> bias) {
  QuantizedLinear p = read_int4(out, x, tiles, steps, 1);
  p.bias = bias_of(bias, p.outputs);
  linear_int4(p, stream_of(x));
}

void linear_w8a16_op(TensorView out, TensorView x, TensorView tiles, TensorView scales, tvm::ffi::Optional<TensorView> bias) {
  QuantizedLinear p = read_w8a16(out, x, tiles, scales, 1);
  p.bias = bias_of(bias, p.outputs);
  linear_w8a16(p, stream_of(x));
}

void linear_int8_op(TensorView out, TensorView x, TensorView tiles, TensorView scales, tvm::ffi::Optional<TensorView> bias,
                    TensorView digits, TensorView x_scales, int64_t limit) {
  QuantizedLinear p = read_int8(out, x, tiles, scales, digits, x_scales, 1);
  p.bias = bias_of(bias, p.outputs);
  quantize(x, p, digits, x_scales, limit);
  linear_int8(p, stream_of(x));
}

int64_t read_experts(const TensorView& ends) {
  check_dimensions(ends, 1, "ends");
  check_whole(ends, kInt64, ends.size(0), "ends");
  return ends.size(0);
}

void grouped_linear_int4_op(TensorView out, TensorView x, TensorView tiles, TensorView steps, TensorView ends) {
  const int64_t experts = read_experts(ends);
  const QuantizedLinear p = read_int4(out, x, tiles, steps, experts);
  const int64_t bytes = tile_bytes(p.outputs, p.inputs, 4), step_bytes = step_count(p.outputs, p.inputs) * sizeof(bfloat16);
  grouped_linear_int4({p, data<int64_t>(ends), experts, bytes, step_bytes}, stream_of(x));
}

void grouped_linear_w8a16_op(TensorView out, TensorView x, TensorView tiles, TensorView scales, TensorView ends) {
  const int64_t experts = read_experts(ends);
  const QuantizedLinear p = read_w8a16(out, x, tiles, scales, experts);
  const int64_t scale_bytes = p.outputs * static_cast<int64_t>(sizeof(float));
  grouped_linear_w8a16({p, data<int64_t>(ends), experts, tile_bytes(p.outputs, p.inputs, 8), scale_bytes}, stream_of(x));
}

void grouped_linear_int8_op(TensorView out, TensorView x, TensorView tiles, TensorView scales, TensorView ends, TensorView digits,
                            TensorView x_scales, int64_t limit) {
  const int64_t experts = read_experts(ends);
  const QuantizedLinear p = read_int8(out, x, tiles, scales, digits, x_scales, experts);
  quantize(x, p, digits, x_scales, limit);
  const int64_t scale_bytes = p.outputs * static_cast<int64_t>(sizeof(float));
  grouped_linear_int8({p, data<int64_t>(ends), experts, tile_bytes(p.outputs, p.inputs, 8), scale_bytes}, stream_of(x));
}

void dequantize_int4_op(TensorView out, TensorView tiles, TensorView steps) {
  check_cuda(out, "out");
  check_type(out, kBfloat16, "out");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  const int64_t outputs = out.size(0), inputs = out.size(1);
  ROUNDHOUSE_CHECK(inputs % 2 == 0) << "out must have an even number of inputs";
  check_tiles(tiles, outputs, inputs, 4);
  check_steps(steps, outputs, inputs);
  dequantize_int4({data<bfloat16>(out), data<uint8_t>(tiles), steps.data_ptr(), outputs, inputs}, stream_of(out));
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_int4, roundhouse::cuda::linear_int4_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_int8, roundhouse::cuda::linear_int8_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_w8a16, roundhouse::cuda::linear_w8a16_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dequantize_int4, roundhouse::cuda::dequantize_int4_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_linear_int4, roundhouse::cuda::grouped_linear_int4_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_linear_int8, roundhouse::cuda::grouped_linear_int8_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_linear_w8a16, roundhouse::cuda::grouped_linear_w8a16_op);
