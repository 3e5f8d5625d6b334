// Products of int16 of many rows, with AVX2 alone.
//
// Sums of integers are the same in any order. So where there are rows enough, weights are unpacked with outputs side by side,
// [pair of inputs][16 outputs][2], and a register of sums has eight outputs of a row: nothing is left to be added at the end,
// which takes its time where inputs are few.
#pragma once

#include "cpu/int16.h"
#include "cpu/linear_vector.h"

#if defined(ROUNDHOUSE_AVX2)

namespace roundhouse {

constexpr int64_t kManyRows = 24;
constexpr int64_t kPairedRows = 144;  // that are multiplied with a part of a block while it is unpacked
constexpr int kHalves = kBlock / Vector::kWidth;  // registers of a block's outputs

// A block's weights of so many pairs times kCount rows of x, `stride` apart -> sums [kCount][kHalves].
template <int kCount>
void multiply_pairs(const int16_t* weight, const int16_t* x, int64_t stride, int64_t pairs, Vector* sums) {
  Vector total[kCount][kHalves];
  for (int m = 0; m < kCount; ++m) {
    for (int half = 0; half < kHalves; ++half) total[m][half] = Vector::zero();
  }
  const int16_t* later = x + 3 * stride;
  for (int64_t pair = 0; pair < pairs; ++pair, weight += 2 * kBlock, x += 2, later += 2) {
    const Vector first = Int16::numbers(weight), second = Int16::numbers(weight + kBlock);
#pragma GCC unroll 8
    for (int m = 0; m < kCount; ++m) {
      int32_t both;
      std::memcpy(&both, m < 3 ? x + m * stride : later + (m - 3) * stride, sizeof(both));
      const Vector numbers{_mm256_castsi256_ps(_mm256_set1_epi32(both))};
      total[m][0] = Int16::add(total[m][0], first, numbers);
      total[m][1] = Int16::add(total[m][1], second, numbers);
    }
  }
  for (int m = 0; m < kCount; ++m) {
    for (int half = 0; half < kHalves; ++half) sums[m * kHalves + half] = total[m][half];
  }
}

// The whole product of x, whose numbers lie as `parts` says, with blocks of weights.
// `unpack(block, tile, weight)` writes the part of a block that begins with a tile, -> its pairs. `fold(row, block, tile,
// half, exact, sums)` adds what they give for half of the outputs to `sums`, and `finish(row, output, sums)` takes these.
template <class Kind, class Unpack, class Fold, class Finish>
void multiply_all_pairs(const Parts<Kind>& parts, int64_t outputs, const int16_t* x, const Unpack& unpack, const Fold& fold,
                        const Finish& finish) {
  const int64_t blocks = ceil_div(outputs, kBlock), rows = parts.rows;
  const int64_t row_bytes = parts.tiles * Kind::kRegisters * Kind::kWidth * static_cast<int64_t>(sizeof(int16_t));
  const int64_t chunk = std::max<int64_t>(kPairedRows, kCachedBytes / row_bytes / kPairedRows * kPairedRows);
  parallel_parts(blocks, blocks * row_bytes * kBlock * ceil_div(rows, kRows), [&](int64_t number, int64_t total) {
    alignas(64) int16_t weight[Kind::kPart * Kind::kRegisters * Kind::kWidth * kBlock];
    alignas(64) float sums[kPairedRows * kBlock];
    const auto multiply_rows = [&](int64_t begin, int64_t end, int64_t block) {
      std::fill(sums, sums + (end - begin) * kBlock, 0.0f);
      const int64_t groups = ceil_div(end - begin, kRows);
      for (int64_t tile = 0; tile < parts.tiles; tile += Kind::kPart) {
        const int64_t pairs = unpack(block, tile, weight), stride = parts.stride(tile);
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t row = begin + (end - begin) * group / groups, next = begin + (end - begin) * (group + 1) / groups;
          const int16_t* const from = x + parts.place(row, tile);
          Vector exact[kRows * kHalves];
          with_constant<kRows>(next - row, [&](auto of_group) {
            multiply_pairs<decltype(of_group)::value>(weight, from, stride, pairs, exact);
          });
          for (int64_t i = 0; i < (next - row) * kHalves; ++i) {
            float* const to = sums + (row - begin) * kBlock + i * Vector::kWidth;
            fold(row + i / kHalves, block, tile, static_cast<int>(i % kHalves), exact[i], to);
          }
        }
      }
      for (int64_t row = begin; row < end; ++row) {
        const float* of_row = sums + (row - begin) * kBlock;
        for (int64_t n = block * kBlock; n < std::min((block + 1) * kBlock, outputs); n += Vector::kWidth, of_row += Vector::kWidth) {
          finish(row, n, Vector::load(of_row));
        }
      }
    };
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t end = std::min(rows, begin + chunk);
      for (int64_t block = blocks * number / total; block < blocks * (number + 1) / total; ++block) {
        for (int64_t row = begin; row < end; row += kPairedRows) multiply_rows(row, std::min(end, row + kPairedRows), block);
      }
    }
  });
}

}  // namespace roundhouse

#endif
