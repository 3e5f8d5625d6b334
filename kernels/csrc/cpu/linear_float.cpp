// Products with fp32 weights.
//
// A lane belongs to one output, and its sum goes over the inputs one by one: the order of other libraries' products of
// matrices, so that a model gives what it gives there up to very few last bits. Long sums are cut into parts, whose sums
// are added, as their rounding errors would otherwise grow.
#include <algorithm>

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int64_t kPart = 384;  // inputs
constexpr int kRows = 6;        // of x at a time
constexpr int kBlocks = 4;      // of outputs at a time, if there are registers for their sums
// Rows of x that are multiplied with one weight after another should stay in the second-level cache.
constexpr int64_t kCachedBytes = 1024 * 1024;
constexpr int64_t kAhead = 4096;  // bytes of a weight that are asked for in advance

// kMany blocks of outputs of kCount rows from `row` on.
template <int kMany, int kCount>
void multiply(const Linear<float>& p, int64_t row, int64_t block) {
  constexpr int kVectors = static_cast<int>(kBlock) / kWidth;  // of a block
  const int64_t apart = p.inputs * kBlock;
  const float* weight = p.weight + block * apart;
  const float* x = p.x + row * p.x_stride;
  Vector total[kMany * kVectors][kCount];
  for (int64_t begin = 0; begin < p.inputs; begin += kPart) {
    Vector part[kMany * kVectors][kCount];
    for (auto& line : part) std::fill(line, line + kCount, Vector::zero());
    const int64_t end = std::min(p.inputs, begin + kPart);
    for (int64_t k = begin; k < end; ++k) {
      Vector w[kMany * kVectors];
      for (int b = 0; b < kMany; ++b) {
        const float* line = weight + b * apart + k * kBlock;
        for (int v = 0; v < kVectors; ++v) w[b * kVectors + v] = Vector::load(line + v * kWidth);
        _mm_prefetch(reinterpret_cast<const char*>(line) + kAhead, _MM_HINT_T0);
      }
      for (int m = 0; m < kCount; ++m) {
        const Vector value = Vector::all(x[m * p.x_stride + k]);
        for (int n = 0; n < kMany * kVectors; ++n) part[n][m] = multiply_add(w[n], value, part[n][m]);
      }
    }
    for (int n = 0; n < kMany * kVectors; ++n) {
      for (int m = 0; m < kCount; ++m) total[n][m] = begin == 0 ? part[n][m] : total[n][m] + part[n][m];
    }
  }
  for (int n = 0; n < kMany * kVectors; ++n) {
    const int64_t first = block * kBlock + n * kWidth;
    const int count = static_cast<int>(std::min<int64_t>(kWidth, p.outputs - first));
    if (count <= 0) break;
    for (int m = 0; m < kCount; ++m) {
      const Vector sum = p.bias == nullptr ? total[n][m] : total[n][m] + Vector::load(p.bias + first, count);
      sum.store(p.out + (row + m) * p.outputs + first, count);
    }
  }
}

// As many blocks, of all rows in [begin, end).
template <int kMany>
void rows_of(const Linear<float>& p, int64_t begin, int64_t end, int64_t block) {
  for (; begin + kRows <= end; begin += kRows) multiply<kMany, kRows>(p, begin, block);
  switch (end - begin) {
    case 5: return multiply<kMany, 5>(p, begin, block);
    case 4: return multiply<kMany, 4>(p, begin, block);
    case 3: return multiply<kMany, 3>(p, begin, block);
    case 2: return multiply<kMany, 2>(p, begin, block);
    case 1: return multiply<kMany, 1>(p, begin, block);
    default: return;
  }
}

}  // namespace

template <>
void linear<float>(const Linear<float>& p) {
  const int64_t blocks = ceil_div(p.outputs, kBlock);
  const int64_t chunk = std::max<int64_t>(kRows, kCachedBytes / (p.inputs * 4) / kRows * kRows);
  const int64_t bytes = blocks * kBlock * p.inputs * 4 * ceil_div(p.rows, kRows);
  const bool several = kWidth == 16 || p.rows == 1;
  parallel_parts(ceil_div(blocks, kBlocks), bytes, [&](int64_t number, int64_t total) {
    const int64_t units = ceil_div(blocks, kBlocks);
    const int64_t first = units * number / total * kBlocks, last = std::min(blocks, units * (number + 1) / total * kBlocks);
    for (int64_t begin = 0; begin < p.rows; begin += chunk) {
      const int64_t end = std::min(p.rows, begin + chunk);
      int64_t block = first;
      for (; several && block + kBlocks <= last; block += kBlocks) rows_of<kBlocks>(p, begin, end, block);
      for (; block < last; ++block) rows_of<1>(p, begin, end, block);
    }
  });
}

}  // namespace roundhouse
