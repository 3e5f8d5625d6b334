// One split for few columns, as a decode has them: what the bodies for them share.
//
// A register of columns would be mostly empty. So lanes are keys, or several keys' columns, and the sums over the values
// lie as [columns][dim]. All numbers are added in the order in which the bodies for many columns add them, so that both
// give the same bits.
#pragma once

#include "cpu/attention_softmax.h"

namespace roundhouse {

// x for the keys from `key` on that a column sees, [oldest, newest], else `hidden`: a key per lane.
inline Vector select_keys(Vector x, int64_t key, int64_t oldest, int64_t newest, float hidden) {
  if (key >= oldest && key + Vector::kWidth - 1 <= newest) return x;
  const int first = static_cast<int>(oldest - key), last = static_cast<int>(newest - key);
#if defined(ROUNDHOUSE_AVX2)
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(last)),
                                          _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes));
  return {_mm256_blendv_ps(x.lanes, _mm256_set1_ps(hidden), _mm256_castsi256_ps(outside))};
#else
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 known = _mm512_cmple_epi32_mask(lanes, _mm512_set1_epi32(last));
  const __mmask16 seen = _mm512_mask_cmple_epi32_mask(known, _mm512_set1_epi32(first), lanes);
  return {_mm512_mask_blend_ps(seen, _mm512_set1_ps(hidden), x.lanes)};
#endif
}

// `softmax` for one column, whose scores lie one behind the other: registers of weights go to `store(first key's place,
// weights)`. `begin` is a multiple of 4, `end - begin` one of a register's width.
template <bool exact, bool scaled, class Store>
inline void softmax_of_column(const float* scores, int64_t begin, int64_t end, Scale scale, int64_t oldest,
                              int64_t newest, KeyScales scales, float* exponent, float* sum, const Store& store) {
  constexpr int kWidth = Vector::kWidth;
  const auto load = [&](int64_t place) {
    const Vector score = Vector::load(scores + place);
    return scaled ? score * Vector::load(scales.keys + place) : score;
  };
  Vector largest = Vector::all(-INFINITY);
  for (int64_t key = begin; key < end; key += kWidth) {
    largest = max(largest, select_keys(load(key - begin), key, oldest, newest, -INFINITY));
  }
  const Vector high = Vector::all(scale.high), low = Vector::all(scale.low);
  const Vector shift = round(Vector::all(largest.max()) * high);
  shift.store(exponent, 1);
  __m128 total = _mm_setzero_ps();
  for (int64_t key = begin; key < end; key += kWidth) {
    const int64_t place = key - begin;
    Vector weight = select_keys(weigh<exact>(load(place), high, low, shift), key, oldest, newest, 0.0f);
#if defined(ROUNDHOUSE_AVX2)
    total = _mm_add_ps(total, _mm256_castps256_ps128(weight.lanes));
    total = _mm_add_ps(total, _mm256_extractf128_ps(weight.lanes, 1));
#else
    total = _mm_add_ps(total, _mm512_castps512_ps128(weight.lanes));
    total = _mm_add_ps(total, _mm512_extractf32x4_ps(weight.lanes, 1));
    total = _mm_add_ps(total, _mm512_extractf32x4_ps(weight.lanes, 2));
    total = _mm_add_ps(total, _mm512_extractf32x4_ps(weight.lanes, 3));
#endif
    if (scaled) weight = select_keys(weight * Vector::load(scales.values + place), key, oldest, newest, 0.0f);
    store(place, weight);
  }
  const __m128 pairs = _mm_add_ps(total, _mm_movehdup_ps(total));
  *sum = _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}

// Asks for one head's keys or values of a block, to have them in the second-level cache, or in the first.
template <int level = 2, class C>
inline void prefetch_block(const C* block, int64_t stride, int64_t dim) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(C));
  // Tokens that lie one behind the other share lines.
  const bool together = stride == dim;
  const int64_t rows = together ? 1 : kBlock, length = together ? kBlock * dim : dim;
  for (int64_t row = 0; row < rows; ++row, block += stride) {
    for (int64_t i = 0; i < length; i += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(block + i), level == 1 ? _MM_HINT_T0 : _MM_HINT_T1);
    }
  }
}

// What will be read next: `count` keys of a head, whose blocks are those from `table` on.
struct Ahead {
  const int32_t* table = nullptr;
  int64_t head = 0, count = 0;

  // Asks for the block that begins with key `key`, if there is one.
  template <class C>
  void prefetch(const PagedCache<C>& cache, int64_t key, int64_t dim) const {
    if (key < count) prefetch_block(cache.keys + cache.place(table[key / kBlock], head), cache.token_stride, dim);
  }
};

// The scales of keys [begin, end) side by side, in whole blocks.
template <class C>
inline void gather_scales(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
                          float* keys, float* values) {
  for (int64_t key = begin; key < end; key += kBlock, keys += kBlock, values += kBlock) {
    const int64_t place = cache.scale_place(*table++, head);
    std::memcpy(keys, cache.key_scales + place, kBlock * sizeof(float));
    std::memcpy(values, cache.value_scales + place, kBlock * sizeof(float));
  }
}

}  // namespace roundhouse
