// Products with weights that have a scale per group of inputs.
//
// x becomes numbers once per call: int16 with a scale per line of 128 inputs, or fp32 where no integers hold the weights'
// numbers. A register of sums has outputs of one row side by side, and goes over a group or 32 of its inputs: with int16 it is
// exact. Each adds to the line's sum
//   scale * (sum(number * x) - zero * sum(x)) + offset * sum(x),
// and lines are added times the scale of x. This order does not depend on how many rows are multiplied at a time. Numbers of
// weights are unpacked for each few rows anew: registers that multiply are what there is least of, and others do that.
#include <algorithm>

#include "cpu/group_numbers.h"
#include "cpu/int8.h"
#include "cpu/linear_vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int kHalves = static_cast<int>(kBlock) / kWidth;  // registers of a block's outputs
constexpr int64_t kDigit = kLine / 4;                       // inputs
constexpr int64_t kMostChunks = kLine / 16;
constexpr int64_t kAhead = 8192;  // bytes of weights that are asked for in advance, at least

// By a power of two. GCC 12 keeps the sums of AVX-512 in registers beside shifts, and those of AVX2 beside divisions.
int64_t divide(int64_t x, int64_t by) { return kHalves == 1 ? x >> __builtin_ctzll(static_cast<uint64_t>(by)) : x / by; }

// x as it is multiplied. In a line that has half of its inputs, digits have their first half.
template <class Arithmetic>
struct Operand {
  using Number = typename Arithmetic::Number;
  int64_t rows, lines, zero;
  bool ends_with_half;
  int64_t chunks;  // of a digit, which have a sum of their own: two where groups are that short
  Number* numbers;  // [line][row][128]
  float* scales;    // [line][row]
  float* totals;    // [line][chunk][row], sums of numbers: of each digit's first chunk, then of each one's second
  float* starts;    // where sums begin, -zero times these, in the type of the sums

  Operand(int64_t rows, int64_t inputs, const GroupLayout& layout, void* workspace)
      : rows(rows), lines(ceil_div(inputs, kLine)), zero(layout.zero),
        ends_with_half(layout.span() == kLine && GroupLayout::ends_with_half(inputs)), chunks(layout.group == 16 ? 2 : 1) {
    numbers = static_cast<Number*>(workspace);
    scales = reinterpret_cast<float*>(numbers + lines * rows * kLine);
    totals = scales + lines * rows;
    starts = totals + lines * rows * kMostChunks;
  }

  int64_t place(int64_t line, int64_t chunk, int64_t row) const { return (line * kMostChunks + chunk) * rows + row; }

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
struct Header {
  const GroupLayout& layout;
  const uint8_t *steps, *scales, *offsets, *zeros;

  Header(const GroupLayout& layout, const uint8_t* record) : layout(layout), steps(record) {
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

// A block times kCount rows of x from `row` on -> sums [kCount][16 outputs]. Weights that lie so many bytes ahead are asked for.
template <class Kind, int kCount>
void multiply_block(const Kind& kind, const GroupLayout& layout, const uint8_t* block,
                    const Operand<typename Kind::Arithmetic>& x, int64_t row, int64_t ahead, float* sums) {
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
    const Header header(layout, record);
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

template <class Kind, class T>
void multiply(const LinearGroups<T>& p, GroupLayout layout, const Kind& kind) {
  using Arithmetic = typename Kind::Arithmetic;
  const Operand<Arithmetic> x(p.rows, p.inputs, layout, p.workspace);
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
  const int64_t blocks = ceil_div(p.outputs, kBlock);
  const int64_t record_bytes = layout.record_bytes(), block_bytes = layout.block_bytes(p.inputs);
  const int64_t ahead = ceil_div(kAhead, record_bytes) * record_bytes;
  const int64_t row_bytes = x.lines * kLine * static_cast<int64_t>(sizeof(typename Arithmetic::Number));
  const int64_t cached = std::max<int64_t>(kRows, kCachedBytes / row_bytes / kRows * kRows);
  parallel_parts(blocks, blocks * block_bytes * ceil_div(p.rows, kRows), [&](int64_t number, int64_t total) {
    alignas(64) float sums[kRows * kBlock];
    for (int64_t begin = 0; begin < p.rows; begin += cached) {
      const int64_t count = std::min(cached, p.rows - begin), parts = ceil_div(count, kRows);
      const int64_t pairs = ceil_div(count, 2);  // of rows: compilers do not keep the sums of five in registers
      for (int64_t block = blocks * number / total; block < blocks * (number + 1) / total; ++block) {
        for (int64_t part = 0; part < parts; ++part) {
          const auto begin_of = [&](int64_t i) { return begin + std::min(count, pairs * i / parts * 2); };
          const int64_t row = begin_of(part), next = begin_of(part + 1);
          with_constant<kRows>(next - row, [&](auto rows) {
            constexpr int kCount = decltype(rows)::value;
            multiply_block<Kind, kCount>(kind, layout, p.weight + block * block_bytes, x, row, part == 0 ? ahead : 0, sums);
          });
          for (int64_t i = 0; i < (next - row) * kHalves; ++i) {
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
      }
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
