// Products with weights that have a scale per group of inputs.
//
// x becomes numbers once per call: int16 with a scale per line of 128 inputs, or fp32 where no integers hold the weights'
// numbers. A register of sums has outputs of one row side by side, and goes over a group or 32 of its inputs: with int16 it is
// exact. Each adds to the line's sum
//   scale * (sum(number * x) - zero * sum(x)) + offset * sum(x),
// and lines are added times the scale of x. This order does not depend on how many rows are multiplied at a time. For few rows
// numbers of weights are unpacked where they are multiplied, as other units of a CPU do that meanwhile; for many once.
#include <algorithm>

#include "cpu/group_line.h"
#include "cpu/linear_vector.h"

namespace roundhouse {
namespace {

// Rows of x for which weights are unpacked beforehand are more than that, and taken so many at a time.
constexpr int64_t kFewRows = kHalves == 1 ? 48 : 12;
constexpr int kLineRows = kHalves == 1 ? 8 : 6;
constexpr int64_t kWaitingSums = 256 * kBlock;

// A block times kCount rows of x from `row` on -> sums [kCount][16 outputs]. Weights that lie so many bytes ahead are asked for.
template <class Kind, int kCount>
void multiply_block(const Kind& kind, const GroupLayout& layout, const uint8_t* block,
                    const GroupOperand<typename Kind::Arithmetic>& x, int64_t row, int64_t ahead, float* sums) {
  using Arithmetic = typename Kind::Arithmetic;
  using Number = typename Arithmetic::Number;
  constexpr int kDigits = kCount < 4 ? 4 : 2;  // at a time: as many sums as there are registers for
  constexpr int64_t kAsk = Kind::kStepBytes / (kHalves * (4 / kDigits));  // in each of the passes over a step
  constexpr int64_t kAsks = (kAsk + 63) / 64;
  constexpr int64_t kLineBytes = kDigit / 2 / Kind::kPairs * Kind::kStepBytes;
  const int64_t of_record = layout.span() / kLine;
  const int64_t header_bytes = layout.header_bytes(), record_bytes = layout.record_bytes();
  std::fill(sums, sums + kCount * kBlock, 0.0f);
  for (int64_t line = 0; line < x.lines; ++line) {
    const int64_t of_block = divide(line, of_record), in_record = line - of_block * of_record;
    const uint8_t* const record = block + of_block * record_bytes;
    const uint8_t* const numbers = record + header_bytes + in_record * kLineBytes;
    const GroupHeader header(layout, record);
    const char* next = reinterpret_cast<const char*>(numbers) + ahead;
    if (in_record == 0) {
      for (int64_t i = 0; i < header_bytes; i += 64) _mm_prefetch(next - header_bytes + i, _MM_HINT_T0);
    }
    Vector of_line[kHalves][kCount];
    for (auto& half : of_line) std::fill(half, half + kCount, Vector::zero());
    const bool is_half = x.ends_with_half && line + 1 == x.lines;
    const int64_t chunks = is_half ? 1 : x.chunks, digit = is_half ? kDigit / 2 : kDigit;
    const int64_t steps = divide(digit, chunks) / (2 * Kind::kPairs);  // of a chunk
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 2
        for (int first = 0; first < 4; first += kDigits) {
          Vector sum[kDigits][kCount];
          const int64_t place = x.place(line, 4 * chunk + first, row);
#pragma GCC unroll 4
          for (int j = 0; j < kDigits; ++j) {
#pragma GCC unroll 8
            for (int m = 0; m < kCount; ++m) sum[j][m] = Vector::all(x.starts[place + j * x.rows + m]);
          }
          const Number* from = x.numbers + (line * x.rows + row) * kLine + chunk * (kDigit / 2);
          const uint8_t* step = numbers + chunk * steps * Kind::kStepBytes;
          for (int64_t i = 0; i < steps; ++i, step += Kind::kStepBytes) {
#pragma GCC unroll 8
            for (int64_t ask = 0; ask < kAsks; ++ask) _mm_prefetch(next + ask * kAsk / kAsks, _MM_HINT_T0);
            next += kAsk;
#pragma GCC unroll 4
            for (int pair = 0; pair < Kind::kPairs; ++pair, from += 2) {
              asm("" : "+r"(from));  // compilers would keep an address for each row
#pragma GCC unroll 4
              for (int j = 0; j < kDigits; ++j) {
                const auto weights = kind.weights(step, half, pair, first + j);
#pragma GCC unroll 8
                for (int m = 0; m < kCount; ++m) {
                  sum[j][m] = Arithmetic::accumulate(weights, from + m * kLine + (first + j) * kDigit, sum[j][m]);
                }
              }
            }
          }
#pragma GCC unroll 4
          for (int j = 0; j < kDigits; ++j) {
            const int n = half * kWidth;
            const float* const totals = x.totals + place + j * x.rows;
            const int64_t input = in_record * kLine + (first + j) * digit + chunk * (kDigit / 2);
            const int64_t group = divide(input, layout.group);
            const Vector scale = header.scale(group, n) * Vector::all(kind.unit);
            Vector folded[kCount];
#pragma GCC unroll 8
            for (int m = 0; m < kCount; ++m) folded[m] = Arithmetic::to_floats(sum[j][m]);
            if (layout.zeros) {
              const Vector zero = Vector::zero() - header.zero(group, n);
#pragma GCC unroll 8
              for (int m = 0; m < kCount; ++m) folded[m] = multiply_add(zero, Vector::all(totals[m]), folded[m]);
            }
#pragma GCC unroll 8
            for (int m = 0; m < kCount; ++m) of_line[half][m] = multiply_add(folded[m], scale, of_line[half][m]);
            if (layout.offsets) {
              const Vector offset = header.offset(group, n);
#pragma GCC unroll 8
              for (int m = 0; m < kCount; ++m) of_line[half][m] = multiply_add(offset, Vector::all(totals[m]), of_line[half][m]);
            }
          }
        }
      }
    }
    for (int m = 0; m < kCount; ++m) {
      const Vector scale = Vector::all(x.scales[line * x.rows + row + m]);
      for (int half = 0; half < kHalves; ++half) {
        float* const to = sums + m * kBlock + half * kWidth;
        multiply_add(of_line[half][m], scale, Vector::load(to)).store(to);
      }
    }
  }
}

template <class T, class Kind>
GroupOperand<typename Kind::Arithmetic> operand_of(const LinearGroups<T>& p, const GroupLayout& layout) {
  const GroupOperand<typename Kind::Arithmetic> x(p.rows, p.inputs, layout, p.workspace);
  parallel_for(p.rows, p.rows * x.lines * kLine * 6, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t line = 0; line < x.lines; ++line) {
        const T* const from = p.x + row * p.x_stride + line * kLine;
        const int64_t inputs = std::min(kLine, p.inputs - line * kLine);
        alignas(64) float numbers[kLine] = {};
        if (inputs == kLine) {
          for (int64_t i = 0; i < kLine; i += kWidth) Vector::load(from + i).store(numbers + i);
        } else {
          const int64_t digit = x.ends_with_half ? kDigit / 2 : kDigit;
          for (int64_t i = 0; i < inputs; ++i) numbers[i / digit * kDigit + i % digit] = to_float(from[i]);
        }
        x.put(line, row, numbers);
      }
    }
  });
  return x;
}

// The sums of a block and `count` rows from `row` on become results.
template <class T>
void finish(const LinearGroups<T>& p, int64_t block, int64_t row, int64_t count, const float* sums) {
  for (int64_t i = 0; i < count * kHalves; ++i) {
    const int64_t n = block * kBlock + i % kHalves * kWidth;
    const int lanes = static_cast<int>(std::min<int64_t>(kWidth, p.outputs - n));
    if (lanes <= 0) continue;
    const Vector sum = finish_sums(p, Vector::load(sums + i * kWidth), n, lanes);
    const int64_t at = (row + i / kHalves) * p.out_stride + n;
    if (p.exact != nullptr) {
      sum.store(p.exact + at, lanes);
    } else {
      sum.store(p.out + at, lanes);
    }
  }
}

// Blocks from `first` to `last` times all rows of x, kRows or fewer at a time.
template <class Kind, class T>
void multiply_few(const LinearGroups<T>& p, const GroupLayout& layout, const Kind& kind,
                  const GroupOperand<typename Kind::Arithmetic>& x, int64_t first, int64_t last) {
  const int64_t record_bytes = layout.record_bytes(), ahead = ceil_div(kAhead, record_bytes) * record_bytes;
  const int64_t parts = ceil_div(p.rows, kRows);
  const int64_t pairs = ceil_div(p.rows, 2);  // of rows: compilers do not keep the sums of five in registers
  alignas(64) float sums[kRows * kBlock];
  for (int64_t block = first; block < last; ++block) {
    const uint8_t* const weight = p.weight + block * layout.block_bytes(p.inputs);
    for (int64_t part = 0; part < parts; ++part) {
      const auto begin_of = [&](int64_t i) { return std::min(p.rows, pairs * i / parts * 2); };
      const int64_t row = begin_of(part), count = begin_of(part + 1) - row;
      with_constant<kRows>(count, [&](auto rows) {
        multiply_block<Kind, decltype(rows)::value>(kind, layout, weight, x, row, part == 0 ? ahead : 0, sums);
      });
      finish(p, block, row, count, sums);
    }
  }
}

// The same for many rows, as many at a time as the third-level cache holds: a line is unpacked in the time of five rows.
template <class Kind, class T>
void multiply_many(const LinearGroups<T>& p, const GroupLayout& layout, const Kind& kind,
                   const GroupOperand<typename Kind::Arithmetic>& x, int64_t first, int64_t last) {
  const int64_t row_bytes = x.lines * kLine * static_cast<int64_t>(sizeof(*x.numbers));
  const int64_t together = std::clamp<int64_t>(4 * kCachedBytes / row_bytes, kLineRows, kWaitingSums / kBlock);
  alignas(64) float sums[kWaitingSums];
  for (int64_t begin = 0; begin < p.rows; begin += together) {
    const int64_t count = std::min(together, p.rows - begin), parts = ceil_div(count, kLineRows);
    for (int64_t block = first; block < last; ++block) {
      const uint8_t* const weight = p.weight + block * layout.block_bytes(p.inputs);
      std::fill(sums, sums + count * kBlock, 0.0f);
      for (int64_t number = 0; number < x.lines; ++number) {
        const GroupLine<Kind> line(kind, layout, weight, x, number);
        for (int64_t part = 0; part < parts; ++part) {
          const int64_t row = count * part / parts, next = count * (part + 1) / parts;
          with_constant<kLineRows>(next - row, [&](auto rows) {
            line.template multiply<decltype(rows)::value>(x, begin + row, sums + row * kBlock);
          });
        }
      }
      finish(p, block, begin, count, sums);
    }
  }
}

template <class Kind, class T>
void multiply(const LinearGroups<T>& p, const GroupLayout& layout, const Kind& kind) {
  const auto x = operand_of<T, Kind>(p, layout);
  const int64_t blocks = ceil_div(p.outputs, kBlock);
  parallel_parts(blocks, blocks * layout.block_bytes(p.inputs) * ceil_div(p.rows, kRows), [&](int64_t number, int64_t total) {
    const int64_t first = blocks * number / total, last = blocks * (number + 1) / total;
    if (p.rows <= kFewRows) {
      multiply_few(p, layout, kind, x, first, last);
    } else {
      multiply_many(p, layout, kind, x, first, last);
    }
  });
}

}  // namespace

template <class T>
void linear_groups(const LinearGroups<T>& p) {
  if (p.layout.bits == 8) {
    if (p.layout.e4m3) return multiply(p, p.layout, Float8());
    return multiply(p, p.layout, EightBits());
  }
  if (p.layout.bits == 5) return multiply(p, p.layout, MoreBits<1>());
  if (p.layout.bits == 6) return multiply(p, p.layout, MoreBits<2>());
  if (p.table == nullptr) return multiply(p, p.layout, FourBits());
  if (p.layout.zeros || p.layout.zero != 0 || !IntegerTable::takes(p.table)) return multiply(p, p.layout, FloatTable(p.table));
  const IntegerTable table(p.table);
  GroupLayout layout = p.layout;
  layout.zero = -table.least;
  multiply(p, layout, table);
}

template void linear_groups(const LinearGroups<float>& p);
template void linear_groups(const LinearGroups<bfloat16>& p);

}  // namespace roundhouse
