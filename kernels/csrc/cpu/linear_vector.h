// Products in vector registers: of all weights where AMX is not, and everywhere of those with a scale per group.
//
// A register of sums belongs to one output of one row of x, and its lanes are added at the end. So few rows read weights
// just as they lie in memory, many take them from the first-level cache, and an element's additions are the same in
// both. What differs by the kind of weight is a Kind:
// - Weight: what tiles hold; Number: what x becomes; kWidth: how many of these a register has;
// - kRegisters: registers that a tile's line fills, as many as x has for its inputs;
// - weights(line, i): the i-th of these; numbers(x): those of x that belong to them; add(sum, weights, numbers);
// - plus(a, b): sums of sums, which are as many as a Vector has lanes, as fp32 or as the bits of int32; kPart: tiles of
//   a block at a time; kScratch: numbers that unpacking these takes;
// - kDigits, if that is not 1: digits of a number of x, whose rows lie one behind the other, and from_digits(high, low),
//   which makes one register of sums from those of two digits.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/transpose.h"
#include "cpu/vector.h"

namespace roundhouse {

constexpr int kRows = 6;  // of x at a time
// Outputs of a block at a time, for so many rows: as many sums as there are registers for.
constexpr int lines_of(int rows) {
  const int lines = rows == 1 ? 8 : rows == 2 ? 4 : 2;
  return Vector::kWidth == 16 ? 2 * lines : lines;
}
// Rows whose sums wait for the next part of the inputs, in the first-level cache or nearly so.
constexpr int64_t kWaitingRows = Vector::kWidth == 16 ? 24 : 48;
// Rows of x that are multiplied with one weight after another should stay in the second-level cache.
constexpr int64_t kCachedBytes = 1024 * 1024;
// Weights of so many bytes come from memory, where a core reads several streams faster than one.
constexpr int64_t kFromMemory = 4 * 1024 * 1024;
constexpr int64_t kStreams = 4;

template <class Kind, class = void>
constexpr int kDigits = 1;
template <class Kind>
constexpr int kDigits<Kind, std::void_t<decltype(Kind::kDigits)>> = Kind::kDigits;

// Rows of x at a time: kRows, unless a kind says otherwise.
template <class Kind, class = void>
constexpr int kMostRows = kRows;
template <class Kind>
constexpr int kMostRows<Kind, std::void_t<decltype(Kind::kMostRows)>> = Kind::kMostRows;

// Whether half of a line's registers are half of its inputs.
template <class Kind>
constexpr bool kSplits = Kind::kRegisters >= 4;

// kOutputs lines of a tile, the first kRegisters of each, times kCount rows of x, `stride` apart, are added to `sums`.
template <class Kind, int kRegisters, int kOutputs, int kCount>
inline __attribute__((always_inline)) void multiply_tile(const typename Kind::Weight* weight, const typename Kind::Number* x,
                                                         int64_t stride, Vector (&sums)[kOutputs][kCount]) {
  constexpr int64_t kInputs = kTileBytes / static_cast<int64_t>(sizeof(typename Kind::Weight));
  // One row alone takes two registers of a line at a time: lines begin in the same bank of the first-level cache.
  constexpr int kStep = kCount == 1 ? std::min(2, kRegisters) : 1;
#pragma GCC unroll 8
  for (int i = 0; i < kRegisters; i += kStep) {
    if constexpr (kCount == 1) {
      Vector numbers[kStep];
      for (int j = 0; j < kStep; ++j) numbers[j] = Kind::numbers(x + (i + j) * Kind::kWidth);
#pragma GCC unroll 16
      for (int n = 0; n < kOutputs; ++n) {
        for (int j = 0; j < kStep; ++j) {
          sums[n][0] = Kind::add(sums[n][0], Kind::weights(weight + n * kInputs, i + j), numbers[j]);
        }
      }
      continue;
    }
    // Compilers would hold on to addresses, and to what they have loaded, for the next i: there are too few registers.
    const typename Kind::Number* later = x + 3 * stride;
    if (kCount > 3) asm("" : "+r"(weight), "+r"(x), "+r"(later), "+r"(stride));
    Vector line[kOutputs];
#pragma GCC unroll 16
    for (int n = 0; n < kOutputs; ++n) line[n] = Kind::weights(weight + n * kInputs, i);
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      const auto numbers = Kind::numbers((m < 3 ? x + m * stride : later + (m - 3) * stride) + i * Kind::kWidth);
#pragma GCC unroll 16
      for (int n = 0; n < kOutputs; ++n) sums[n][m] = Kind::add(sums[n][m], line[n], numbers);
    }
  }
}

// The first `halves` halves of tiles of one block, kOutputs of its lines, times kCount rows of x, `stride` apart, are added to
// `sums` [row][16 outputs], or begin them. As many bytes as the lines have are asked for at `next`, if at all.
template <class Kind, int kOutputs, int kCount, bool kAsk>
void multiply_lines(const typename Kind::Weight* weight, const typename Kind::Number* x, int64_t stride, int64_t halves,
                    const char* next, bool begins, Vector* sums) {
  constexpr int64_t kInputs = kTileBytes / static_cast<int64_t>(sizeof(typename Kind::Weight));
  Vector total[kOutputs][kCount];
#pragma GCC unroll 16
  for (int n = 0; n < kOutputs; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) total[n][m] = begins ? Vector::zero() : sums[m * kBlock + n];
  }
  for (; halves > 1; halves -= 2, weight += kBlock * kInputs, x += Kind::kRegisters * Kind::kWidth) {
    multiply_tile<Kind, Kind::kRegisters>(weight, x, stride, total);
    if constexpr (kAsk) {
#pragma GCC unroll 16
      for (int n = 0; n < kOutputs; ++n, next += kTileBytes) _mm_prefetch(next, _MM_HINT_T0);
    }
  }
  if constexpr (kSplits<Kind>) {
    if (halves == 1) multiply_tile<Kind, Kind::kRegisters / 2>(weight, x, stride, total);
  }
#pragma GCC unroll 16
  for (int n = 0; n < kOutputs; ++n) {
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) sums[m * kBlock + n] = total[n][m];
  }
}

// All lines of a block. Memory from `next` on is asked for in the order in which it lies: in that of the lines it would come
// too late.
template <class Kind, int kCount, bool kAsk>
void multiply_block(const typename Kind::Weight* weight, const typename Kind::Number* x, int64_t stride, int64_t halves,
                    const char* next, bool begins, Vector* sums) {
  constexpr int kOutputs = lines_of(kCount);
  constexpr int64_t kInputs = kTileBytes / static_cast<int64_t>(sizeof(typename Kind::Weight));
  for (int n = 0; n < kBlock; n += kOutputs) {
    multiply_lines<Kind, kOutputs, kCount, kAsk>(weight + n * kInputs, x, stride, halves, next, begins, sums + n);
    if constexpr (kAsk) next += halves / 2 * kOutputs * kTileBytes;
  }
}

// Calls body(std::integral_constant<int, count>()), count from 1 to kMost.
template <int kMost, class Body>
void with_constant(int64_t count, const Body& body) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_constant<kMost - 1>(count, body);
  }
  body(std::integral_constant<int, kMost>());
}

// The lanes of each of a register's width of sums, added -> a register.
template <class Kind>
Vector add_lanes(const Vector* sums) {
  Vector four[Vector::kWidth / 4];  // of as many sums, what each 128 bits have of them
  for (int i = 0; i < Vector::kWidth / 4; ++i) {
    const Vector* const x = sums + 4 * i;
    const Vector first = Kind::plus(unpack_low(x[0], x[1]), unpack_high(x[0], x[1]));
    const Vector second = Kind::plus(unpack_low(x[2], x[3]), unpack_high(x[2], x[3]));
    four[i] = Kind::plus(unpack_low_pairs(first, second), unpack_high_pairs(first, second));
  }
#if defined(ROUNDHOUSE_AVX2)
  return Kind::plus(even_quarters(four[0], four[1]), odd_quarters(four[0], four[1]));
#else
  const Vector low = Kind::plus(even_quarters(four[0], four[1]), odd_quarters(four[0], four[1]));
  const Vector high = Kind::plus(even_quarters(four[2], four[3]), odd_quarters(four[2], four[3]));
  return Kind::plus(even_quarters(low, high), odd_quarters(low, high));
#endif
}

// How the numbers of x lie: part of the inputs by part, one row's behind the other's. In rows of their own, which often are a
// multiple of 4 KiB apart, those of one part would drive each other out of the first-level cache.
template <class Kind>
struct Parts {
  static constexpr int64_t kInputs = kTileBytes / static_cast<int64_t>(sizeof(typename Kind::Weight));
  int64_t rows, inputs;
  int64_t tiles = ceil_div(inputs, kInputs);

  // Halves of tiles, from one on, that have inputs at all, or tiles where a kind cannot halve them.
  int64_t halves(int64_t tile, int64_t count) const {
    return kSplits<Kind> ? std::min(2 * count, ceil_div(inputs - tile * kInputs, kInputs / 2)) : 2 * count;
  }
  int64_t count(int64_t tile) const { return std::min(Kind::kPart, tiles - tile); }
  int64_t stride(int64_t tile) const { return count(tile) * Kind::kRegisters * Kind::kWidth; }
  // Where the part that begins with `tile` does, of one row.
  int64_t place(int64_t row, int64_t tile) const { return tile * Kind::kRegisters * Kind::kWidth * rows + row * stride(tile); }
};

// One row times `count` blocks from `block` on, whose tiles take turns. Each is read in the order in which it lies, and nothing
// is asked for: that is what a CPU foresees best. `sums` [block][digit][16 outputs].
template <class Kind, class TilesOf>
void multiply_row(const Parts<Kind>& parts, const typename Kind::Number* x, int64_t block, int64_t count,
                  const TilesOf& tiles_of, Vector* sums) {
  typename Kind::Weight* const scratch = nullptr;
  for (int64_t tile = 0; tile < parts.tiles; ++tile) {
    const int64_t part = tile / Kind::kPart * Kind::kPart;
    const typename Kind::Number* const from = x + parts.place(0, part) + (tile - part) * Kind::kRegisters * Kind::kWidth;
    for (int64_t i = 0; i < count; ++i) {
      const typename Kind::Weight* const weight = tiles_of(block + i, tile, 1, scratch);
      Vector* const to = sums + i * kDigits<Kind> * kBlock;
      multiply_block<Kind, kDigits<Kind>, false>(weight, from, parts.stride(part), parts.halves(tile, 1), nullptr, tile == 0, to);
    }
  }
}

// The whole product of x, whose numbers lie as `parts` says, with blocks of weights.
// `tiles_of(block, tile, count, scratch)` gives so many tiles of a block; `finish(row, output, sums)` takes the sums of a
// register's width of outputs, some of which may lie beyond the last.
template <class Kind, class TilesOf, class Finish>
void multiply_all(const Parts<Kind>& parts, int64_t outputs, const typename Kind::Number* x, const TilesOf& tiles_of,
                  const Finish& finish) {
  const int64_t blocks = ceil_div(outputs, kBlock), rows = parts.rows;
  const int64_t row_bytes = parts.tiles * Kind::kRegisters * Kind::kWidth * static_cast<int64_t>(sizeof(typename Kind::Number));
  const int64_t chunk = std::max<int64_t>(kWaitingRows, kCachedBytes / row_bytes / kWaitingRows * kWaitingRows);
  const int64_t bytes = blocks * parts.tiles * kBlock * kTileBytes * ceil_div(rows, kRows);
  parallel_parts(blocks, bytes, [&](int64_t number, int64_t total) {
    alignas(64) Vector sums[kWaitingRows * kBlock];
    alignas(64) typename Kind::Weight scratch[Kind::kScratch];
    const auto finish_row = [&](int64_t row, int64_t block, const Vector* of_row) {
      const int64_t begin = block * kBlock, end = std::min(begin + kBlock, outputs);
      Vector whole[kBlock];
      if constexpr (kDigits<Kind> == 2) {
        for (int n = 0; n < kBlock; ++n) whole[n] = Kind::from_digits(of_row[n], of_row[kBlock + n]);
        of_row = whole;
      }
      for (int64_t n = begin; n < end; n += Vector::kWidth) finish(row / kDigits<Kind>, n, add_lanes<Kind>(of_row + n - begin));
    };
    const auto multiply_rows = [&](int64_t begin, int64_t end, int64_t block) {
      const int64_t groups = ceil_div(end - begin, kMostRows<Kind>);
      for (int64_t tile = 0; tile < parts.tiles; tile += Kind::kPart) {
        const int64_t count = parts.count(tile), stride = parts.stride(tile), halves = parts.halves(tile, count);
        const typename Kind::Weight* const weight = tiles_of(block, tile, count, scratch);
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t row = begin + (end - begin) * group / groups, next = begin + (end - begin) * (group + 1) / groups;
          // The next part, or for all rows but the first what is there already.
          const char* const ahead = reinterpret_cast<const char*>(weight) + (group == 0 ? count * kBlock * kTileBytes : 0);
          const typename Kind::Number* const from = x + parts.place(row, tile);
          Vector* const to = sums + (row - begin) * kBlock;
          with_constant<kMostRows<Kind>>(next - row, [&](auto of_group) {
            multiply_block<Kind, decltype(of_group)::value, true>(weight, from, stride, halves, ahead, tile == 0, to);
          });
        }
      }
      for (int64_t row = begin; row < end; row += kDigits<Kind>) finish_row(row, block, sums + (row - begin) * kBlock);
    };
    const int64_t first = blocks * number / total, last = blocks * (number + 1) / total;
    if (Kind::kScratch == 1 && rows == kDigits<Kind> && blocks * parts.tiles * kBlock * kTileBytes >= kFromMemory) {
      for (int64_t block = first; block < last; block += kStreams) {
        const int64_t count = std::min(kStreams, last - block);
        multiply_row(parts, x, block, count, tiles_of, sums);
        for (int64_t i = 0; i < count; ++i) finish_row(0, block + i, sums + i * kDigits<Kind> * kBlock);
      }
      return;
    }
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t end = std::min(rows, begin + chunk);
      for (int64_t block = first; block < last; ++block) {
        for (int64_t row = begin; row < end; row += kWaitingRows) multiply_rows(row, std::min(end, row + kWaitingRows), block);
      }
    }
  });
}

}  // namespace roundhouse
