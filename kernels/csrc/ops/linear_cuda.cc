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

// Of a weight of `bits` per input.
void check_tiles(const TensorView& tiles, int64_t outputs, int64_t inputs, int64_t bits) {
  check_whole(tiles, kUint8, ceil_div(outputs, kTileOutputs) * kTileOutputs * ceil_div(inputs, kGroup) * kGroup * bits / 8, "tiles");
  ROUNDHOUSE_CHECK(aligned(tiles.data_ptr())) << "tiles must be aligned to 16 bytes";
}

void check_steps(const TensorView& steps, int64_t outputs, int64_t inputs) {
  check_whole(steps, kBfloat16, ceil_div(outputs, kTileOutputs) * kTileOutputs * ceil_div(inputs, kGroup) * 2, "steps");
  ROUNDHOUSE_CHECK(aligned(steps.data_ptr())) << "steps must be aligned to 16 bytes";
}

void check_out(const TensorView& out, const TensorView& x) {
  check_cuda(out, "out");
  check_type(out, kBfloat16, "out");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  check_size(out, 0, x.size(0), "out");
}

const bfloat16* bias_of(const tvm::ffi::Optional<TensorView>& bias, int64_t outputs) {
  if (!bias.has_value()) return nullptr;
  check_whole(bias.value(), kBfloat16, outputs, "bias");
  return data<bfloat16>(bias.value());
}

void linear_int4_op(TensorView out, TensorView x, TensorView tiles, TensorView steps, tvm::ffi::Optional<TensorView> bias) {
  check_x(x);
  ROUNDHOUSE_CHECK(aligned(x.data_ptr()) && x.stride(0) % 8 == 0 && x.size(1) % 8 == 0)
      << "x must have rows that are multiples of 16 bytes";
  check_out(out, x);
  const int64_t outputs = out.size(1), inputs = x.size(1);
  check_tiles(tiles, outputs, inputs, 4);
  check_steps(steps, outputs, inputs);
  linear_int4({data<bfloat16>(out), x.data_ptr(), bias_of(bias, outputs), data<uint8_t>(tiles), steps.data_ptr(), nullptr,
               x.size(0), outputs, inputs, x.stride(0)},
              stream_of(x));
}

// `levels` [T, inputs rounded up to a multiple of 128] int8 and `x_scales` [T] are scratch memory.
void linear_int8_op(TensorView out, TensorView x, TensorView tiles, TensorView scales, tvm::ffi::Optional<TensorView> bias,
                    TensorView levels, TensorView x_scales) {
  check_x(x);
  check_out(out, x);
  const int64_t outputs = out.size(1), inputs = x.size(1), rows = x.size(0), padded = ceil_div(inputs, kGroup) * kGroup;
  check_tiles(tiles, outputs, inputs, 8);
  check_whole(scales, kFloat32, outputs, "scales");
  check_whole(levels, kInt8, rows * padded, "levels");
  check_whole(x_scales, kFloat32, rows, "x_scales");
  ROUNDHOUSE_CHECK(aligned(levels.data_ptr())) << "levels must be aligned to 16 bytes";
  const Stream stream = stream_of(x);
  quantize_rows({data<int8_t>(levels), data<float>(x_scales), data<bfloat16>(x), rows, inputs, x.stride(0), padded}, stream);
  linear_int8({data<bfloat16>(out), levels.data_ptr(), bias_of(bias, outputs), data<uint8_t>(tiles), scales.data_ptr(),
               data<float>(x_scales), rows, outputs, padded, padded},
              stream);
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
TVM_FFI_DLL_EXPORT_TYPED_FUNC(dequantize_int4, roundhouse::cuda::dequantize_int4_op);
