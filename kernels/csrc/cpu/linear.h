// Products with weights: out = x weight^T + bias.
//
// A weight [outputs, inputs] is packed once (kernels/ops/linear.py) into blocks of 16 outputs, which a thread reads as one
// stream; outputs that the last block lacks are zero. The same layout serves every instruction set.
// - bf16: a block is a row of tiles along the inputs, and a tile 16 outputs by 64 bytes of consecutive inputs, zero where
//   they have ended. It is one AMX tile, and each of its lines one or two vector registers.
// - fp32: a block is, for each input, its 16 weights.
//
// A result does not depend, bit for bit, on the other rows of x or the number of threads: every element is one sum over
// the inputs in an order that only the instruction set determines.
#pragma once

#include <cstdint>

#include "cpu/types.h"

namespace roundhouse {

constexpr int64_t kBlock = 16;      // outputs of a tile
constexpr int64_t kTileBytes = 64;  // of the inputs in one line of a tile

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
struct Linear {
  T* out;         // [rows, outputs]
  const T* x;     // [rows, inputs], rows x_stride elements apart
  const T* bias;  // [outputs] or null
  const T* weight;  // packed
  void* workspace;  // linear_workspace(...) bytes, at multiples of 64
  int64_t rows, outputs, inputs, x_stride;
};

// Bytes of the workspace: x once more, as fp32 or in tiles, whole in both dimensions.
inline int64_t linear_workspace(int64_t rows, int64_t inputs) {
  return ceil_div(rows, kBlock) * kBlock * ceil_div(inputs, kTileBytes) * kTileBytes * 4;
}

template <class T>
void linear(const Linear<T>& p);

}  // namespace roundhouse
