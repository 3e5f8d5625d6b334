// Products of bf16 with weights of bf16 and int8 in vector registers, where AMX is not: numbers become fp32 and so are
// their sums.
//
// A register of sums belongs to one output of one row of x, and its lanes are added at the end.
#include "cpu/linear.h"

#if !defined(ROUNDHOUSE_AMX)

#include <algorithm>

#include "cpu/int4.h"
#include "cpu/int8.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
template <class T>
constexpr int64_t kInputs = kTileBytes / sizeof(T);  // of a tile
// Outputs of a block at a time, for one row of x and for several: as many sums as there are registers for.
constexpr int kLinesOfOne = kWidth == 16 ? 16 : 8;
constexpr int kLines = kWidth == 16 ? 4 : 2;
constexpr int kRows = 4;
// Rows of x that are multiplied with one weight after another should stay in the second-level cache.
constexpr int64_t kCachedBytes = 1024 * 1024;
constexpr int64_t kAhead = 4096;  // bytes of a weight that are asked for in advance

// Two registers of weights: numbers at even and at odd places of bf16, and one half after the other of int8.
inline void load_two(const bfloat16* p, Vector& first, Vector& second) { Vector::load_even_odd(p, first, second); }
inline void load_two(const int8_t* p, Vector& first, Vector& second) {
#if defined(ROUNDHOUSE_AVX2)
  const auto load = [](const int8_t* numbers) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(numbers));
    return Vector{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
  };
#else
  const auto load = [](const int8_t* numbers) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers));
    return Vector{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
  };
#endif
  first = load(p);
  second = load(p + kWidth);
}

// A row of x as fp32, in the order in which weights come into two registers; zero beyond its inputs.
void spread(const bfloat16*, float* to, const bfloat16* x, int64_t inputs, int64_t padded) {
  int64_t i = 0;
  for (; i + 2 * kWidth <= inputs; i += 2 * kWidth) {
    Vector even, odd;
    Vector::load_even_odd(x + i, even, odd);
    even.store(to + i);
    odd.store(to + i + kWidth);
  }
  for (; i < padded; i += 2 * kWidth) {
    for (int64_t j = 0; j < 2 * kWidth; ++j) {
      to[i + j % 2 * kWidth + j / 2] = i + j < inputs ? to_float(x[i + j]) : 0.0f;
    }
  }
}
void spread(const int8_t*, float* to, const bfloat16* x, int64_t inputs, int64_t padded) {
  int64_t i = 0;
  for (; i + kWidth <= inputs; i += kWidth) Vector::load(x + i).store(to + i);
  for (; i < padded; ++i) to[i] = i < inputs ? to_float(x[i]) : 0.0f;
}

// kOutputs lines of one block times kCount rows of x, `stride` apart -> sums [row][16 outputs].
template <int kOutputs, int kCount, class T>
void multiply(const T* weight, const float* x, int64_t stride, int64_t tiles, float* sums) {
  Vector total[kOutputs][kCount];
  for (auto& line : total) std::fill(line, line + kCount, Vector::zero());
  for (int64_t t = 0; t < tiles; ++t, weight += kBlock * kInputs<T>, x += kInputs<T>) {
    for (int64_t i = 0; i < kInputs<T>; i += 2 * kWidth) {
      Vector first[kCount], second[kCount];
      for (int m = 0; m < kCount; ++m) {
        first[m] = Vector::load(x + i + m * stride);
        second[m] = Vector::load(x + i + kWidth + m * stride);
      }
#pragma GCC unroll 16
      for (int n = 0; n < kOutputs; ++n) {
        Vector w_first, w_second;
        load_two(weight + n * kInputs<T> + i, w_first, w_second);
        for (int m = 0; m < kCount; ++m) {
          total[n][m] = multiply_add(w_second, second[m], multiply_add(w_first, first[m], total[n][m]));
        }
      }
    }
    for (int n = 0; n < kOutputs; ++n) {
      _mm_prefetch(reinterpret_cast<const char*>(weight + n * kInputs<T>) + kAhead, _MM_HINT_T0);
    }
  }
  for (int n = 0; n < kOutputs; ++n) {
    for (int m = 0; m < kCount; ++m) sums[m * kBlock + n] = total[n][m].sum();
  }
}

// One block of outputs of kCount rows.
template <int kCount, class P, class T>
void block_of(const P& p, const T* weight, const float* x, int64_t stride, int64_t row, int64_t block) {
  constexpr int kOutputs = kCount == 1 ? kLinesOfOne : kLines;
  alignas(64) float sums[kCount][kBlock];
  for (int n = 0; n < kBlock; n += kOutputs) {
    multiply<kOutputs, kCount>(weight + n * kInputs<T>, x, stride, ceil_div(p.inputs, kInputs<T>), &sums[0][n]);
  }
  const int64_t first = block * kBlock, count = std::min(kBlock, p.outputs - first);
  for (int m = 0; m < kCount; ++m) {
    bfloat16* to = p.out + (row + m) * p.outputs + first;
    for (int64_t n = 0; n < count; n += kWidth) {
      const int width = static_cast<int>(std::min<int64_t>(kWidth, count - n));
      finish_sums(p, Vector::load(sums[m] + n), first + n, width).store(to + n, width);
    }
  }
}

// The whole product with weights of T; `tiles_of(block, scratch)` gives the tiles of a block.
template <class T, class P, class TilesOf>
void multiply_all(const P& p, const TilesOf& tiles_of) {
  const int64_t blocks = ceil_div(p.outputs, kBlock), padded = ceil_div(p.inputs, kInputs<T>) * kInputs<T>;
  float* const spread_x = static_cast<float*>(p.workspace);
  const int64_t private_bytes = linear_workspace(0, p.inputs, 1);
  const int64_t chunk = std::max<int64_t>(kRows, kCachedBytes / (padded * 4) / kRows * kRows);
  const int64_t bytes = blocks * padded * kBlock * static_cast<int64_t>(sizeof(T)) * ceil_div(p.rows, kRows);
  parallel_for(p.rows, p.rows * padded * 6, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      spread(static_cast<const T*>(nullptr), spread_x + i * padded, p.x + i * p.x_stride, p.inputs, padded);
    }
  });
  parallel_parts(blocks, bytes, [&](int64_t number, int64_t total) {
    uint8_t* const scratch = static_cast<uint8_t*>(p.workspace) + (ceil_div(p.rows, kBlock) + number) * private_bytes;
    for (int64_t begin = 0; begin < p.rows; begin += chunk) {
      const int64_t end = std::min(p.rows, begin + chunk);
      for (int64_t block = blocks * number / total; block < blocks * (number + 1) / total; ++block) {
        const T* const weight = tiles_of(block, scratch);
        for (int64_t row = begin; row < end; row += kRows) {
          const float* x = spread_x + row * padded;
          const int64_t left = end - row;
          if (left >= 4) block_of<4>(p, weight, x, padded, row, block);
          if (left == 3) block_of<3>(p, weight, x, padded, row, block);
          if (left == 2) block_of<2>(p, weight, x, padded, row, block);
          if (left == 1) block_of<1>(p, weight, x, padded, row, block);
        }
      }
    }
  });
}

}  // namespace

template <>
void linear<bfloat16>(const Linear<bfloat16>& p) {
  const int64_t size = ceil_div(p.inputs, kInputs<bfloat16>) * kInputs<bfloat16> * kBlock;
  multiply_all<bfloat16>(p, [&](int64_t block, uint8_t*) { return p.weight + block * size; });
}

void linear_w8a16(const LinearW8A16& p) {
  const int64_t size = ceil_div(p.inputs, kInputs<int8_t>) * kInputs<int8_t> * kBlock;
  multiply_all<int8_t>(p, [&](int64_t block, uint8_t*) { return p.weight + block * size; });
}

void linear_int4(const LinearInt4& p) {
  const int64_t groups = ceil_div(p.inputs, kInt4Group);
  multiply_all<bfloat16>(p, [&](int64_t block, uint8_t* scratch) {
    bfloat16* const tiles = reinterpret_cast<bfloat16*>(scratch);
    for (int64_t group = 0; group < groups; ++group) {
      unpack_int4(tiles + group * kBlock * kInt4Group, p.weight + (block * groups + group) * kInt4GroupBytes);
    }
    return static_cast<const bfloat16*>(tiles);
  });
}

}  // namespace roundhouse

#endif
