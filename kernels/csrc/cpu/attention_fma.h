// The scores and sums of one split by fused multiply-additions in fp32, for every instruction set and head dimension.
#pragma once

#include "cpu/attention_fma_few.h"

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
  constexpr int kRows = 8 / registers;
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

  static bool fits(int64_t) { return true; }
  // How many columns `attend_few` takes: beyond, a register is no longer mostly empty.
  static int64_t few(int64_t dim) { return dim % 16 == 0 ? Vector::kWidth / 2 : 0; }
  static int64_t few_dim(int64_t dim) { return dim; }
  // Elements of `Query` that a group of columns takes.
  static int64_t query_size(int64_t dim) { return dim * kColumns; }
  static int64_t scratch(int64_t dim) {
    return (2 * kSplit * dim + kSplit * kColumns + 2 * kSplit) * static_cast<int64_t>(sizeof(float));
  }

  FmaAttention(int64_t dim, uint8_t* memory)
      : dim_(dim),
        scores_(reinterpret_cast<float*>(memory)),
        keys_(scores_ + kSplit * kColumns),
        values_(keys_ + kSplit * dim),
        key_scales_(values_ + kSplit * dim),
        value_scales_(key_scales_ + kSplit) {}

  // Columns [dim][registers * width] of the vectors at query[i], zeros where those are null.
  void pack(const T* const* query, int registers, Query* packed) const {
    pack_columns(query, registers * Vector::kWidth, packed);
  }

  // Makes keys [begin, end) ready, whose blocks are those from `table` on.
  void load(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end) {
    begin_ = begin;
    if (kScaled) gather_scales(cache, head, table, begin, end, key_scales_, value_scales_);
    for (int64_t key = begin; key < end; key += kBlock) {
      const int64_t index = (key - begin) / kBlock, tokens = std::min(kBlock, end - key);
      const int64_t place = cache.place(table[index], head);
      key_blocks_[index] = floats(cache.keys + place, cache.token_stride, tokens, keys_ + index * kBlock * dim_);
      value_blocks_[index] = floats(cache.values + place, cache.token_stride, tokens, values_ + index * kBlock * dim_);
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
    const KeyScales scales{key_scales_ + (begin - begin_), value_scales_ + (begin - begin_)};
    softmax<true, kScaled, registers>(
        scores_, begin, (end + 3) / 4 * 4, scale, visible, scales, exponent, total,
        [&](int64_t row, int r, Vector weight) { weight.store(scores_ + row * ld + r * kWidth); });
    multiply<registers>(&value_blocks_[first], kBlock, end - begin, dim_, 1, token_step_, scores_, sums);
  }

  // Columns [dim][few_width(columns)].
  void pack_few(const T* const* query, int columns, Query* packed) const {
    const T* vectors[kFew] = {};
    std::copy_n(query, columns, vectors);
    pack_columns(vectors, few_width(columns), packed);
  }

  // The same for `columns` columns, of which the i-th sees keys [oldest[i], newest[i]]: sums [columns][dim] over keys
  // [begin, end), whose blocks are those from `table` on.
  void attend_few(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
                  const Ahead& ahead, const Query* query, int columns, Scale scale, const int64_t* oldest,
                  const int64_t* newest, float* sums, float* exponent, float* total) {
    const auto run = [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      score_split<kCount>(cache, head, table, begin, end, query);
      if (kScaled) gather_scales(cache, head, table, begin, end, key_scales_, value_scales_);
      const int64_t last = (end + Vector::kWidth - 1) / Vector::kWidth * Vector::kWidth;
      for (int i = 0; i < columns; ++i) {
        float* column = scores_ + i * kSplit;
        softmax_of_column<true, kScaled>(column, begin, last, scale, oldest[i], newest[i], {key_scales_, value_scales_},
                                         exponent + i, total + i,
                                         [&](int64_t place, Vector weight) { weight.store(column + place); });
      }
      // Of the columns that fill up a width no sums are asked for, but there is room for them.
      for (int i = columns; i < kCount; ++i) std::fill_n(scores_ + i * kSplit, last - begin, 0.0f);
      std::fill_n(sums, kCount * dim_, 0.0f);
      for (int64_t key = begin; key < end; key += kBlock) {
        ahead.prefetch(cache, key - begin, dim_);
        const int64_t block = (key - begin) / kBlock;
        if (key + kAhead * kBlock < end) {
          prefetch_block<1>(cache.values + cache.place(table[block + kAhead], head), cache.token_stride, dim_);
        }
        add_values<kCount>(cache.values + cache.place(table[block], head), cache.token_stride, std::min(kBlock, end - key),
                           dim_, scores_ + (key - begin), kSplit, sums);
      }
    };
    switch (few_width(columns)) {
      case 1: return run(std::integral_constant<int, 1>{});
      case 2: return run(std::integral_constant<int, 2>{});
      case 4: return run(std::integral_constant<int, 4>{});
#if !defined(ROUNDHOUSE_AVX2)
      case 8: return run(std::integral_constant<int, 8>{});
#endif
    }
  }

  // Calls store(first dimension, a register of sums) for a column of `attend_few`.
  template <class Store>
  static void in_order(const float* sums, int64_t dim, const Store& store) {
    for (int64_t d = 0; d < dim; d += Vector::kWidth) store(d, Vector::load(sums + d));
  }

 private:
  static constexpr bool kScaled = std::is_same<C, int8_t>::value;
  static constexpr int64_t kAhead = 4;  // blocks that are asked for before they are needed

  static int few_width(int columns) { return columns <= 2 ? columns : columns <= 4 ? 4 : 8; }

  void pack_columns(const T* const* query, int columns, Query* packed) const {
    for (int column = 0; column < columns; ++column) {
      for (int64_t i = 0; i < dim_; ++i) {
        packed[i * columns + column] = query[column] == nullptr ? 0.0f : to_float(query[column][i]);
      }
    }
  }

  template <int columns>
  void score_split(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
                   const Query* query) {
    constexpr int64_t kWidth = Vector::kWidth;
    // Keys whose sums grow side by side, so that one addition need not wait for the one before.
    constexpr int kGroups = columns <= 2 ? kBlock / kWidth : 1;
    for (int64_t key = begin; key < end; key += kBlock, ++table) {
      const int64_t place = cache.place(*table, head);
      if (key + kAhead * kBlock < end) {
        prefetch_block<1>(cache.keys + cache.place(table[kAhead], head), cache.token_stride, dim_);
      }
      prefetch_block(cache.values + place, cache.token_stride, dim_);
      float* scores = scores_ + (key - begin);
      if constexpr (kWidensInRegisters<C>) {
        for (int64_t token = 0; token < kBlock; token += kGroups * kWidth) {
          score_keys<columns, kGroups>(cache.keys + place + token * cache.token_stride, cache.token_stride, dim_, query,
                              scores + token, kSplit);
        }
      } else {
        floats(cache.keys + place, cache.token_stride, kBlock, keys_);
        for (int64_t token = 0; token < kBlock; token += kGroups * kWidth) {
          score_keys<columns, kGroups>(keys_ + token * dim_, dim_, dim_, query, scores + token, kSplit);
        }
      }
    }
  }

  // A block as floats, which are made at `target` where it holds others.
  const float* floats(const C* source, int64_t stride, int64_t tokens, float* target) const {
    if constexpr (std::is_same<C, float>::value) {
      return source;
    } else {
      for (int64_t token = 0; token < tokens; ++token) widen(source + token * stride, dim_, 1.0f, target + token * dim_);
      return target;
    }
  }

  int64_t dim_;
  float* scores_;
  float* keys_;
  float* values_;
  float* key_scales_;
  float* value_scales_;
  int64_t begin_ = 0, token_step_ = 0;
  const float* key_blocks_[kSplit / kBlock];
  const float* value_blocks_[kSplit / kBlock];
};

}  // namespace roundhouse
