// Products of int8 in vector registers, where AMX is not. Sums of integers are exact in any order.
#include "cpu/linear.h"

#if !defined(ROUNDHOUSE_AMX)

#include <algorithm>

#include "cpu/int8.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
// Outputs of a block at a time, for one row of x and for several: as many sums as there are registers for.
constexpr int kLinesOfOne = kWidth == 16 ? 16 : 8;
constexpr int kLines = kWidth == 16 ? 4 : 2;
constexpr int kRows = 4;
// Rows of x that are multiplied with one weight after another should stay in the second-level cache.
constexpr int64_t kCachedBytes = 1024 * 1024;
constexpr int64_t kAhead = 4096;  // bytes of a weight that are asked for in advance

#if defined(ROUNDHOUSE_AVX2)

// x as int16: products of two bytes are summed without saturation only so.
using Number = int16_t;
using Register = __m256i;
constexpr int kOffset = 0;

inline void store_numbers(int16_t* to, __m256i numbers) {
  const __m128i low = _mm256_castsi256_si128(numbers), high = _mm256_extracti128_si256(numbers, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(low, high));
}
inline Register zero() { return _mm256_setzero_si256(); }
// A line of a tile times 64 numbers of x.
inline Register add_products(Register sum, const int8_t* line, const int16_t* x) {
  for (int i = 0; i < 64; i += 16) {
    const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(line + i)));
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, numbers));
  }
  return sum;
}
inline int32_t add_lanes(Register sum) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

#else

// x as uint8, 128 too large, which VPDPBUSD asks for; the sums are put right with those of the weights.
using Number = uint8_t;
using Register = __m512i;
constexpr int kOffset = 128;

inline void store_numbers(uint8_t* to, __m512i numbers) {
  const __m512i shifted = _mm512_add_epi32(numbers, _mm512_set1_epi32(kOffset));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(shifted));
}
inline Register zero() { return _mm512_setzero_si512(); }
inline Register add_products(Register sum, const int8_t* line, const uint8_t* x) {
  return _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(x), _mm512_loadu_si512(line));
}
inline int32_t add_lanes(Register sum) { return _mm512_reduce_add_epi32(sum); }

#endif

// kOutputs lines of one block times kCount rows of x, `stride` apart -> sums [row][16 outputs].
template <int kOutputs, int kCount>
void multiply(const int8_t* weight, const Number* x, int64_t stride, int64_t tiles, int32_t* sums) {
  Register total[kOutputs][kCount];
  for (auto& line : total) std::fill(line, line + kCount, zero());
  for (int64_t t = 0; t < tiles; ++t, weight += kBlock * kTileBytes, x += kTileBytes) {
#pragma GCC unroll 16
    for (int n = 0; n < kOutputs; ++n) {
      for (int m = 0; m < kCount; ++m) total[n][m] = add_products(total[n][m], weight + n * kTileBytes, x + m * stride);
      _mm_prefetch(reinterpret_cast<const char*>(weight + n * kTileBytes) + kAhead, _MM_HINT_T0);
    }
  }
  for (int n = 0; n < kOutputs; ++n) {
    for (int m = 0; m < kCount; ++m) sums[m * kBlock + n] = add_lanes(total[n][m]);
  }
}

// One block of outputs of kCount rows.
template <int kCount>
void block_of(const LinearInt8& p, const Number* x, int64_t stride, const float* scales, int64_t row, int64_t block) {
  constexpr int kOutputs = kCount == 1 ? kLinesOfOne : kLines;
  alignas(64) int32_t sums[kCount][kBlock];
  const int64_t tiles = stride / kTileBytes, first = block * kBlock, count = std::min(kBlock, p.outputs - first);
  const int8_t* weight = p.weight + block * tiles * kBlock * kTileBytes;
  for (int n = 0; n < kBlock; n += kOutputs) {
    multiply<kOutputs, kCount>(weight + n * kTileBytes, x, stride, tiles, &sums[0][n]);
  }
  for (int m = 0; m < kCount; ++m) {
    for (int64_t n = 0; n < count; ++n) sums[m][n] -= kOffset * p.totals[first + n];
    for (int64_t n = 0; n < count; n += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, count - n));
      const bfloat16* bias = p.bias == nullptr ? nullptr : p.bias + first + n;
      scale_sums(Vector::convert(sums[m] + n), scales[row + m], p.scales + first + n, bias, width)
          .store(p.out + (row + m) * p.outputs + first + n, width);
    }
  }
}

}  // namespace

void linear_int8(const LinearInt8& p) {
  const int64_t stride = ceil_div(p.inputs, kTileBytes) * kTileBytes, blocks = ceil_div(p.outputs, kBlock);
  float* const scales = static_cast<float*>(p.workspace);
  Number* const numbers = reinterpret_cast<Number*>(scales + ceil_div(p.rows, kBlock) * kBlock);
  const int64_t chunk = std::max<int64_t>(kRows, kCachedBytes / (stride * static_cast<int64_t>(sizeof(Number))) / kRows * kRows);
  const int64_t bytes = blocks * stride * kBlock * ceil_div(p.rows, kRows);
  parallel_for(p.rows, p.rows * stride * 6, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Number* const to = numbers + i * stride;
      std::fill(to + p.inputs / kWidth * kWidth, to + stride, static_cast<Number>(kOffset));
      scales[i] = quantize_row(p.x + i * p.x_stride, p.inputs, [&](int64_t at, Register values) {
        store_numbers(to + at, values);
      });
    }
  });
  parallel_parts(blocks, bytes, [&](int64_t number, int64_t total) {
    for (int64_t begin = 0; begin < p.rows; begin += chunk) {
      const int64_t end = std::min(p.rows, begin + chunk);
      for (int64_t block = blocks * number / total; block < blocks * (number + 1) / total; ++block) {
        for (int64_t row = begin; row < end; row += kRows) {
          const Number* x = numbers + row * stride;
          const int64_t left = end - row;
          if (left >= 4) block_of<4>(p, x, stride, scales, row, block);
          if (left == 3) block_of<3>(p, x, stride, scales, row, block);
          if (left == 2) block_of<2>(p, x, stride, scales, row, block);
          if (left == 1) block_of<1>(p, x, stride, scales, row, block);
        }
      }
    }
  });
}

}  // namespace roundhouse

#endif
