// A line of 128 inputs of weights that have a scale per group, unpacked once for many rows of x.
#pragma once

#include "cpu/group_operand.h"

namespace roundhouse {

template <class Kind>
class GroupLine {
  using Arithmetic = typename Kind::Arithmetic;
  using Operand = GroupOperand<Arithmetic>;

 public:
  GroupLine(const Kind& kind, const GroupLayout& layout, const uint8_t* block, const Operand& x, int64_t number)
      : layout(layout), number(number) {
    const int64_t of_record = layout.span() / kLine, of_block = divide(number, of_record);
    const int64_t in_record = number - of_block * of_record;
    const uint8_t* const record = block + of_block * layout.record_bytes();
    const uint8_t* step = record + layout.header_bytes() + in_record * (kDigit / 2 / Kind::kPairs * Kind::kStepBytes);
    const GroupHeader header(layout, record);
    const bool is_half = x.ends_with_half && number + 1 == x.lines;
    const int64_t chunks = is_half ? 1 : x.chunks, digit = is_half ? kDigit / 2 : kDigit;
    sums = 4 * chunks, pairs = divide(digit, chunks) / 2;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t i = 0; i < pairs; i += Kind::kPairs, step += Kind::kStepBytes) unpack(kind, step, 4 * chunk * pairs + i);
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t group = divide(in_record * kLine + j * digit + chunk * (kDigit / 2), layout.group), sum = 4 * chunk + j;
        for (int half = 0; half < kHalves; ++half) {
          const int n = half * kWidth;
          scales[half][sum] = header.scale(group, n) * Vector::all(kind.unit);
          if (layout.zeros) zeros[half][sum] = Vector::zero() - header.zero(group, n);
          if (layout.offsets) offsets[half][sum] = header.offset(group, n);
        }
      }
    }
  }

  // This line times kCount rows of x from `row` on is added to `to` [kCount][16 outputs].
  template <int kCount>
  void multiply(const Operand& x, int64_t row, float* to) const {
    for (int half = 0; half < kHalves; ++half) {
      Vector of_line[kCount];
      std::fill(of_line, of_line + kCount, Vector::zero());
      const auto* numbers = weights[half];
      for (int64_t i = 0; i < sums; ++i) {
        const int64_t place = x.place(number, i, row);
        const float* const totals = x.totals + place;
        const auto* from = x.numbers + (number * x.rows + row) * kLine + i % 4 * kDigit + i / 4 * (kDigit / 2);
        Vector sum[kCount];
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) sum[m] = Vector::all(x.starts[place + m]);
        for (int64_t pair = 0; pair < pairs; ++pair, ++numbers, from += 2) {
          asm("" : "+r"(from));  // compilers would keep an address for each row
#pragma GCC unroll 8
          for (int m = 0; m < kCount; ++m) sum[m] = Arithmetic::accumulate(*numbers, from + m * kLine, sum[m]);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kCount; ++m) {
          sum[m] = Arithmetic::to_floats(sum[m]);
          if (layout.zeros) sum[m] = multiply_add(zeros[half][i], Vector::all(totals[m]), sum[m]);
          of_line[m] = multiply_add(sum[m], scales[half][i], of_line[m]);
          if (layout.offsets) of_line[m] = multiply_add(offsets[half][i], Vector::all(totals[m]), of_line[m]);
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < kCount; ++m) {
        float* const at = to + m * kBlock + half * kWidth;
        multiply_add(of_line[m], Vector::all(x.scales[number * x.rows + row + m]), Vector::load(at)).store(at);
      }
    }
  }

 private:
  // A step's numbers, whose first digit's are those from `place` on.
  void unpack(const Kind& kind, const uint8_t* step, int64_t place) {
    for (int64_t at = 0; at < Kind::kStepBytes; at += 64) _mm_prefetch(step + kAhead + at, _MM_HINT_T0);
    for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 4
      for (int pair = 0; pair < Kind::kPairs; ++pair) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) weights[half][place + j * pairs + pair] = kind.weights(step, half, pair, j);
      }
    }
  }

  const GroupLayout& layout;
  int64_t number, sums, pairs;  // sums of an output, and pairs of inputs that each goes over
  typename Arithmetic::Weights weights[kHalves][kLine / 2];  // [sum][pair]
  Vector scales[kHalves][kMostSums], offsets[kHalves][kMostSums], zeros[kHalves][kMostSums];
};

}  // namespace roundhouse
