// What products with weights that have a scale per group of inputs read: x as it is multiplied, and a record's scales.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/group_numbers.h"
#include "cpu/int8.h"

namespace roundhouse {

constexpr int kWidth = Vector::kWidth;
constexpr int kHalves = static_cast<int>(kBlock) / kWidth;  // registers of a block's outputs
constexpr int64_t kDigit = kLine / 4;                       // inputs
constexpr int64_t kMostSums = kLine / 16;                   // of an output in a line
constexpr int64_t kAhead = 8192;  // bytes of weights that are asked for in advance, at least

// By a power of two. GCC 12 keeps the sums of AVX-512 in registers beside shifts, and those of AVX2 beside divisions.
inline int64_t divide(int64_t x, int64_t by) { return kHalves == 1 ? x >> __builtin_ctzll(static_cast<uint64_t>(by)) : x / by; }

// x as it is multiplied. In a line that has half of its inputs, digits have their first half.
template <class Arithmetic>
struct GroupOperand {
  using Number = typename Arithmetic::Number;
  int64_t rows, lines, zero;
  bool ends_with_half;
  int64_t chunks;  // of a digit, which have a sum of their own: two where groups are that short
  Number* numbers;  // [line][row][128]
  float* scales;    // [line][row]
  float* totals;    // [line][chunk][row], sums of numbers: of each digit's first chunk, then of each one's second
  float* starts;    // where sums begin, -zero times these, in the type of the sums

  GroupOperand(int64_t rows, int64_t inputs, const GroupLayout& layout, void* workspace)
      : rows(rows), lines(ceil_div(inputs, kLine)), zero(layout.zero),
        ends_with_half(layout.span() == kLine && GroupLayout::ends_with_half(inputs)), chunks(layout.group == 16 ? 2 : 1) {
    numbers = static_cast<Number*>(workspace);
    scales = reinterpret_cast<float*>(numbers + lines * rows * kLine);
    totals = scales + lines * rows;
    starts = totals + lines * rows * kMostSums;
  }

  int64_t place(int64_t line, int64_t chunk, int64_t row) const { return (line * kMostSums + chunk) * rows + row; }

  // A line of x, [128].
  void put(int64_t line, int64_t row, const float* x) const {
    Number* const to = numbers + (line * rows + row) * kLine;
    scales[line * rows + row] = put_numbers(to, x);
    for (int64_t chunk = 0; chunk < 4 * chunks; ++chunk) {
      const Number* const from = to + chunk % 4 * kDigit + chunk / 4 * (kDigit / 2);
      put_sums(from, kDigit / chunks, totals + place(line, chunk, row), starts + place(line, chunk, row));
    }
  }

 private:
  // -> the scale, which is NaN if x is not finite.
  static float put_numbers(int16_t* to, const float* x) {
    const float magnitude = largest_magnitude(x, kLine);
    const bool none = magnitude <= 1e-30f;  // below, 32767 / magnitude would be infinite
    const Vector factor = Vector::all(none ? 0.0f : 32767.0f / magnitude);
    for (int64_t i = 0; i < kLine; i += kWidth) Int16::store_rounded(to + i, Vector::load(x + i) * factor);
    return none ? 0.0f : magnitude * (1.0f / 32767.0f) + (magnitude - magnitude);
  }
  static float put_numbers(float* to, const float* x) {
    std::copy(x, x + kLine, to);
    return 1;
  }
  void put_sums(const int16_t* x, int64_t count, float* total, float* start) const {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i];
    *total = static_cast<float>(sum);
    const int32_t begin = static_cast<int32_t>(-zero) * sum;
    std::memcpy(start, &begin, sizeof(begin));
  }
  void put_sums(const float* x, int64_t count, float* total, float* start) const {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += x[i];
    *total = sum;
    *start = static_cast<float>(-zero) * sum;
  }
};

// What numbers of a record's groups are multiplied with, and what is added.
struct GroupHeader {
  const GroupLayout& layout;
  const uint8_t *steps, *scales, *offsets, *zeros;

  GroupHeader(const GroupLayout& layout, const uint8_t* record) : layout(layout), steps(record) {
    const int64_t of_groups = divide(layout.span(), layout.group) * kBlock;
    scales = steps + 2 * kBlock * layout.steps;
    offsets = scales + of_groups * layout.scale_bytes();
    zeros = offsets + (layout.offsets ? of_groups * layout.scale_bytes() : 0);
  }

  // Of a register's width of outputs from `n` on.
  Vector scale(int64_t group, int n) const {
    const Vector stored = load(scales, group * kBlock + n);
    return layout.steps == 0 ? stored : stored * from_half(steps + 2 * n);
  }
  Vector offset(int64_t group, int n) const {
    const Vector stored = load(offsets, group * kBlock + n);
    return layout.steps == 0 ? stored : stored * from_half(steps + 2 * ((layout.steps - 1) * kBlock + n));
  }
  Vector zero(int64_t group, int n) const { return from_int8(zeros + group * kBlock + n); }

 private:
  Vector load(const uint8_t* begin, int64_t at) const {
    switch (layout.type) {
      case ScaleType::kFloat32: return Vector::load(reinterpret_cast<const float*>(begin) + at);
      case ScaleType::kFloat16: return from_half(begin + 2 * at);
      case ScaleType::kBfloat16: return Vector::load(reinterpret_cast<const bfloat16*>(begin) + at);
      case ScaleType::kInt8: return from_int8(begin + at);
      default: return from_uint8(begin + at);
    }
  }
};

}  // namespace roundhouse
