// Products with quantised weights on CUDA: out = x weight^T + bias, for bf16 x.
//
// A weight [outputs, inputs] is packed once (kernels/formats/cuda.py) into tiles of 16 outputs by 64 inputs, in the order
// in which the lanes of a warp take them: lane 4 g + t has of outputs g and g + 8 the inputs 16 t to 16 t + 15. Outputs and
// inputs that are missing are zero. Inputs form groups of 128, and group i belongs to slice i % 8: a slice is one sum over
// its groups in order, and the slices are added in order, so that a result does not depend on the other rows.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

constexpr int kGroup = 128;      // inputs with one step
constexpr int kChunk = 64;       // inputs of a tile
constexpr int kTileOutputs = 16;

struct QuantizedLinear {
  bfloat16* out;         // [rows, outputs]
  float* exact;          // the same where results are not rounded to bf16, or null
  const void* x;         // [rows, inputs], rows x_stride elements apart: bf16, or int8 if x has become that, too
  const bfloat16* bias;  // [outputs] or null
  const uint8_t* tiles;
  // int4: for each tile of outputs, group and g of 0 to 7, of outputs g and g + 8: the step and what level 0 stands for, in
  // bf16. A weight is bf16(step * level + zero).
  // int8: the scales of the outputs in fp32.
  const void* scales;
  const float* x_scales;  // of the rows of an int8 x, whose digits are rows of their own
  int64_t rows, outputs, inputs, x_stride;
};

// inputs and x_stride are multiples of 8, and x is aligned to 16 bytes.
void linear_int4(const QuantizedLinear& p, Stream stream);

// The same x with int8 weights, which bf16 holds exactly: out = sum * scale + bias.
void linear_w8a16(const QuantizedLinear& p, Stream stream);

// The same for rows by expert, each times its expert's weight: rows ends[e - 1] <= i < ends[e] times weight e. The experts'
// tiles and scales lie one behind the other.
struct GroupedQuantizedLinear {
  QuantizedLinear linear;  // of the first expert, and of the rows of all
  const int64_t* ends;     // [experts]
  int64_t experts;
  int64_t tiles_stride, scales_stride;  // in bytes
};

void grouped_linear_int4(const GroupedQuantizedLinear& p, Stream stream);
void grouped_linear_int8(const GroupedQuantizedLinear& p, Stream stream);
void grouped_linear_w8a16(const GroupedQuantizedLinear& p, Stream stream);

// Rows of x become whole numbers with a scale of their own, max |x| / limit: out = float(sum) * x_scale * scale + bias. They
// have two digits, 128 * high + low. x_stride, between digits, is a multiple of 16, and inputs beyond are zero up to a
// multiple of 128.
void linear_int8(const QuantizedLinear& p, Stream stream);

// Rows [rows, inputs] of bf16, x_stride elements apart -> digits in int8 [rows, 2, out_stride] with zeros at the end, and scales
// [rows]. No sum of products of numbers up to `limit` may leave the range of int32.
constexpr int64_t kMaxLimit = 127 * 128 + 63;
struct QuantizeRows {
  int8_t* out;
  float* scales;
  const bfloat16* x;
  int64_t rows, inputs, x_stride, out_stride, limit;
};

void quantize_rows(const QuantizeRows& p, Stream stream);

// The weight itself, [outputs, inputs] in bf16, from int4.
struct DequantizeInt4 {
  bfloat16* out;
  const uint8_t* tiles;
  const void* scales;
  int64_t outputs, inputs;
};

void dequantize_int4(const DequantizeInt4& p, Stream stream);

}  // namespace roundhouse::cuda
