// The scores and sums of one split by fused multiply-additions in fp32, for every instruction set and head dimension.
#pragma once

#include "cpu/attention_softmax.h"
#include "cpu/narrow.h"

namespace roundhouse {

// c[m][n] = sum of a(m, k) * b[k][n] over k, for `rows` values of m and `registers` of n. The k lie in chunks: a(m, k) is
// chunks[k / length][offset + m * row_step + k % length * step]. Each chunk is summed by itself and then added, which
// loses less to rounding than one long sum.
template <int rows, int registers>
inline void multiply_rows(const float* const* chunks, int64_t length, int64_t total, int64_t offset, int64_t row_step,
                          int64_t step, const float* b, float* c) {
  constexpr int kWidth = Vector::kWidth, ld = registers * kWidth;
  Vector sum[rows][registers];
  for (int m = 0; m < rows; ++m) {
    for (int r = 0; r < registers; ++r) sum[m][r] = Vector::zero();
  }
  for (int64_t first = 0; first < total; first += length, ++chunks) {
    Vector part[rows][registers];
    for (int m = 0; m < rows; ++m) {
      for (int r = 0; r < registers; ++r) part[m][r] = Vector::zero();
    }
    const float* a = *chunks + offset;
    const float* last = b + std::min(length, total - first) * ld;
    for (; b != last; b += ld, a += step) {
      Vector column[registers];
      for (int r = 0; r < registers; ++r) column[r] = Vector::load(b + r * kWidth);
      for (int m = 0; m < rows; ++m) {
        const Vector x = Vector::all(a[m * row_step]);
        for (int r = 0; r < registers; ++r) part[m][r] = multiply_add(x, column[r], part[m][r]);
      }
    }
    for (int m = 0; m < rows; ++m) {
      for (int r = 0; r < registers; ++r) sum[m][r] = sum[m][r] + part[m][r];
    }
  }
  for (int m = 0; m < rows; ++m) {
    for (int r = 0; r < registers; ++r) sum[m][r].store(c + m * ld + r * kWidth);
  }
}

template <int registers>
inline void multiply(const float* const* chunks, int64_t length, int64_t total, int64_t rows, int64_t row_step,
                     int64_t step, const float* b, float* c) {
  constexpr int ld = registers * Vector::kWidth;
#if defined(ROUNDHOUSE_AVX2)
  constexpr int kRows = 4;
#else
  constexpr int kRows = 8;
#endif
  int64_t m = 0;
  for (; m + kRows <= rows; m += kRows) {
    multiply_rows<kRows, registers>(chunks, length, total, m * row_step, row_step, step, b, c + m * ld);
  }
  for (; m < rows; ++m) multiply_rows<1, registers>(chunks, length, total, m * row_step, row_step, step, b, c + m * ld);
}

template <class T, class C>
class FmaAttention {
 public:
  using Query = float;
  static constexpr int64_t kAlign = kBlock;  // splits of fewer keys begin and end at multiples of this
  static constexpr bool kNarrows = false;

  static bool fits(int64_t) { return true; }
  // Elements of `Query` that a group of columns takes.
  static int64_t query_size(int64_t dim) { return dim * kColumns; }
  static int64_t scratch(int64_t dim) { return (2 * kSplit * dim + kSplit * kColumns) * static_cast<int64_t>(sizeof(float)); }

  FmaAttention(int64_t dim, uint8_t* memory)
      : dim_(dim),
        scores_(reinterpret_cast<float*>(memory)),
        keys_(scores_ + kSplit * kColumns),
        values_(keys_ + kSplit * dim) {}

  // Columns [dim][registers * width] of the vectors at query[i], zeros where those are null.
  void pack(const T* const* query, int registers, Query* packed) const {
    const int columns = registers * Vector::kWidth;
    for (int column = 0; column < columns; ++column) {
      for (int64_t i = 0; i < dim_; ++i) {
        packed[i * columns + column] = query[column] == nullptr ? 0.0f : to_float(query[column][i]);
      }
    }
  }

  // Makes keys [begin, end) ready, whose blocks are those from `table` on.
  void load(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end) {
    begin_ = begin;
    for (int64_t key = begin; key < end; key += kBlock) {
      const int64_t index = (key - begin) / kBlock, tokens = std::min(kBlock, end - key);
      const int64_t place = cache.place(table[index], head), scale = cache.scale_place(table[index], head);
      float *keys = keys_ + index * kBlock * dim_, *values = values_ + index * kBlock * dim_;
      key_blocks_[index] = floats(cache.keys + place, cache.token_stride, tokens, cache.key_scales + scale, keys);
      value_blocks_[index] = floats(cache.values + place, cache.token_stride, tokens, cache.value_scales + scale, values);
    }
    token_step_ = std::is_same<C, float>::value ? cache.token_stride : dim_;
  }

  // The split's weighted sum [dim][registers * width] of keys [begin, end), and its columns' exponents and weights' sums.
  template <int registers>
  void attend(const Query* query, int64_t begin, int64_t end, Scale scale, const Visible& visible, float* sums,
              float* exponent, float* total) {
    constexpr int kWidth = Vector::kWidth, ld = registers * kWidth;
    const int64_t first = (begin - begin_) / kBlock;
    for (int64_t key = begin, index = first; key < end; key += kBlock, ++index) {
      const int64_t tokens = std::min(kBlock, (end - key + 3) / 4 * 4);
      multiply<registers>(&key_blocks_[index], dim_, dim_, tokens, token_step_, 1, query, scores_ + (key - begin) * ld);
    }
    softmax<true, registers>(scores_, begin, (end + 3) / 4 * 4, scale, visible, exponent, total,
                             [&](int64_t row, int r, Vector weight) { weight.store(scores_ + row * ld + r * kWidth); });
    multiply<registers>(&value_blocks_[first], kBlock, end - begin, dim_, 1, token_step_, scores_, sums);
  }

 private:
  // A block as floats, which are made at `target` where it holds others.
  const float* floats(const C* source, int64_t stride, int64_t tokens, const float* scales, float* target) const {
    if constexpr (std::is_same<C, float>::value) {
      return source;
    } else {
      for (int64_t token = 0; token < tokens; ++token) {
        widen(source + token * stride, dim_, std::is_same<C, int8_t>::value ? scales[token] : 1.0f, target + token * dim_);
      }
      return target;
    }
  }

  int64_t dim_;
  float* scores_;
  float* keys_;
  float* values_;
  int64_t begin_ = 0, token_step_ = 0;
  const float* key_blocks_[kSplit / kBlock];
  const float* value_blocks_[kSplit / kBlock];
};

}  // namespace roundhouse
