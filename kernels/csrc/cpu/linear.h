// Products with weights: out = x weight^T + bias.
//
// A weight [outputs, inputs] is packed once (kernels/formats) into blocks of 16 outputs, which a thread reads as one
// stream; outputs that the last block lacks are zero. The same layout serves every instruction set.
// - bf16, int8 (also as W8A16): a block is a row of tiles along the inputs, and a tile 16 outputs by 64 bytes of consecutive inputs, zero
//   where they have ended. It is one AMX tile, and each of its lines one or two vector registers.
// - int4: a block is a row of groups of 128 inputs: first 16 pairs of bf16, the output's step and what level 0 stands for,
//   then a line of 32 words of 16 bits per output, where the j-th lowest 4 bits of word i are the level of input 32 j + i.
// - weights with a scale per group (LinearGroups): a block is a row of records of 128 inputs, or 256 where scales are multiplied
//   with steps. Before the numbers stand, for each of the 16 outputs in turn: steps, then for each group its scale, its offset
//   and its zero, of which those that there are not take no room; zeros up to a multiple of 64 bytes. Behind it, for each line
//   of 128 inputs, are steps. One of numbers of four bits is [16 outputs][2] words of 16 bits, and the j-th lowest 4 bits of
//   step i are the numbers of inputs 32 j + 2 i and 32 j + 2 i + 1. Of those of five bits it is four such steps i, and behind
//   them such words whose bit 4 r + j is the fifth of digit j of step r; of six bits two of them, and words whose bits
//   8 r + 2 j and the next are the others. One of numbers of eight bits is [4 digits j][16 outputs][2] bytes. If 64 inputs or
//   fewer are left for the last line, it has half as many steps, and digit j begins with input 16 j.
// - fp32: a block is, for each input, its 16 weights.
//
// Results are rounded to the type of x, or stay the fp32 that sums are: `exact` is where these go, or null.
//
// A result does not depend, bit for bit, on the other rows of x or the number of threads: every element is one sum over
// the inputs in an order that only the instruction set determines.
#pragma once

#include <cstdint>

#include "cpu/types.h"

namespace roundhouse {

constexpr int64_t kBlock = 16;       // outputs of a tile
constexpr int64_t kTileBytes = 64;   // of the inputs in one line of a tile
constexpr int64_t kInt4Group = 128;  // inputs with one step
constexpr int64_t kInt4GroupBytes = kBlock * (4 + kTileBytes);  // of a block

constexpr int64_t kLine = 128;       // inputs that weights with a scale per group have side by side

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// x and out are rows one behind the other, those of x x_stride elements apart. `workspace` is linear_workspace() bytes that
// begin at a multiple of 64.
template <class T>
struct Linear {
  T* out;          // [rows, outputs]
  float* exact;    // the same
  const T* x;      // [rows, inputs]
  const T* bias;   // [outputs] or null
  const T* weight;  // packed
  void* workspace;
  int64_t rows, outputs, inputs, x_stride;
};

// Rows of x become whole numbers of -limit to limit times a scale of their own, max |x| / limit, and products are sums of
// integers, which are exact: out = (float(sum) * scale of the row) * scale of the output + bias. Where a product takes bytes
// only, a number is two digits, 128 * high + low, and a row of x two rows; hence the most that limit may be.
constexpr int64_t kMaxInt8Limit = 127 * 128 + 63;
constexpr int64_t kInt8Digits = 2;
struct LinearInt8 {
  bfloat16* out;
  float* exact;
  const bfloat16 *x, *bias;
  const int8_t* weight;   // packed
  const float* scales;    // [outputs]
  const int32_t* totals;  // [outputs]: the sum of an output's weights
  void* workspace;        // for kInt8Digits rows per row
  int64_t rows, outputs, inputs, x_stride;
  int64_t limit;  // such that no sum of products leaves the range of int32
};

// W8A16: weights of int8, which bf16 holds exactly, and the product is that of bf16: out = sum * scale of the output + bias.
struct LinearW8A16 {
  bfloat16* out;
  float* exact;
  const bfloat16 *x, *bias;
  const int8_t* weight;  // packed
  const float* scales;   // [outputs]
  void* workspace;
  int64_t rows, outputs, inputs, x_stride;
};

// W4A16: weights become bf16(step * level + zero), and the product is that of bf16. With AVX2 alone they are not rounded, and
// x becomes int16 by groups (linear_int4.cpp).
struct LinearInt4 {
  bfloat16* out;
  float* exact;
  const bfloat16 *x, *bias;
  const uint8_t* weight;  // packed
  void* workspace;
  int64_t rows, outputs, inputs, x_stride;
};

// Types of scales and offsets.
enum class ScaleType : int64_t { kFloat32, kFloat16, kBfloat16, kInt8, kUint8 };

// How a weight's records are laid out.
struct GroupLayout {
  int64_t bits;  // of a number: 4, 5, 6, or 8 with a sign
  bool e4m3;     // whether numbers of eight bits are e4m3
  int64_t group;  // inputs with one scale, a power of two from 16 to 128
  int64_t steps;  // fp16 numbers per output that scales are multiplied with: none, one, or two, the last for offsets
  ScaleType type;
  bool offsets, zeros;  // whether groups have offsets of that type, and zeros in int8
  int64_t zero;         // of all groups, where these have none

  int64_t span() const { return steps == 0 ? kLine : 2 * kLine; }
  int64_t scale_bytes() const {
    return type == ScaleType::kFloat32 ? 4 : type == ScaleType::kFloat16 || type == ScaleType::kBfloat16 ? 2 : 1;
  }
  int64_t header_bytes() const {
    const int64_t of_group = scale_bytes() * (offsets ? 2 : 1) + (zeros ? 1 : 0);
    return ceil_div(kBlock * (2 * steps + span() / group * of_group), 64) * 64;
  }
  int64_t record_bytes() const { return header_bytes() + kBlock * span() * bits / 8; }
  // Bytes of a block.
  int64_t block_bytes(int64_t inputs) const {
    const int64_t absent = span() == kLine && ends_with_half(inputs) ? kBlock * kLine / 2 * bits / 8 : 0;
    return ceil_div(inputs, span()) * record_bytes() - absent;
  }
  // Whether the last line has half of the steps.
  static bool ends_with_half(int64_t inputs) { return inputs % kLine != 0 && inputs % kLine <= kLine / 2; }
};

// Weights are scale * (number - zero) + offset. Where there is a table, numbers are places in it.
template <class T>
struct LinearGroups {
  T* out;
  float* exact;
  const T *x, *bias;
  const uint8_t* weight;  // packed
  const float* table;     // [16] or null
  void* workspace;
  int64_t rows, outputs, inputs, x_stride, out_stride;  // rows of out too may lie apart
  GroupLayout layout;
};

// Bytes of x once more, as fp32 or in tiles, with scales and sums, and of a block or two of weights per thread, as bf16.
inline int64_t linear_workspace(int64_t rows, int64_t inputs, int64_t threads) {
  return (ceil_div(rows, kBlock) + threads) * kBlock * ceil_div(inputs, kInt4Group) * kInt4Group * 5;
}

template <class T>
void linear(const Linear<T>& p);
void linear_int8(const LinearInt8& p);
void linear_w8a16(const LinearW8A16& p);
void linear_int4(const LinearInt4& p);
template <class T>
void linear_groups(const LinearGroups<T>& p);

}  // namespace roundhouse
