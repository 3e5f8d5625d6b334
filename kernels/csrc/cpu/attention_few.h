// One split for few columns on AMX tiles: what a decode without shared KV heads has, where sixteen columns would be
// computed for one.
//
// The scores are keys * queries^T as for many columns, in tiles that are as narrow as there are columns, and turn round
// in the softmax, which runs along the keys. The weights are then the first operand of the second product, with a row
// per column, and the values the second one: two keys' numbers have to be interleaved instead of a transposition. All
// sums are added in the order of the other body, so that both give the same bits.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include "cpu/attention_softmax.h"

namespace roundhouse {

// Turns every `stride`-th of `scores`, those of keys [begin, end) of one column, into weights as `softmax` does, in the
// same order of additions, and rounds them to bf16. `end - begin` is a multiple of 32.
inline void softmax_of_column(const float* scores, int stride, int64_t begin, int64_t end, Scale scale, int64_t oldest,
                              int64_t newest, float* exponent, float* sum, bfloat16* weights) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride));
  const auto load = [&](int64_t key) {
    const float* from = scores + (key - begin) * stride;
    return Vector{stride == 1 ? _mm512_loadu_ps(from) : _mm512_i32gather_ps(places, from, 4)};
  };
  const auto seen = [&](int64_t key) {
    if (key >= oldest && key + 15 <= newest) return static_cast<__mmask16>(0xffff);
    const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(key)));
    const __mmask16 known = _mm512_cmple_epi32_mask(at, _mm512_set1_epi32(static_cast<int>(newest)));
    return _mm512_mask_cmple_epi32_mask(known, _mm512_set1_epi32(static_cast<int>(oldest)), at);
  };
  Vector largest[2] = {Vector::all(-INFINITY), Vector::all(-INFINITY)};
  for (int64_t key = begin; key < end; key += 32) {
    for (int i = 0; i < 2; ++i) {
      const int64_t at = key + 16 * i;
      largest[i].lanes = _mm512_mask_max_ps(largest[i].lanes, seen(at), largest[i].lanes, load(at).lanes);
    }
  }
  const Vector high = Vector::all(scale.high);
  const Vector shift = round(Vector::all(max(largest[0], largest[1]).max()) * high);
  *exponent = _mm512_cvtss_f32(shift.lanes);
  __m128 total = _mm_setzero_ps();
  for (int64_t key = begin; key < end; key += 32, weights += 32) {
    Vector part[2];
    for (int i = 0; i < 2; ++i) {
      const Vector power = load(key + 16 * i) * high, whole = round(power);
      const Vector weight = scale_down(exp2_fraction<false>(power - whole), whole - shift);
      part[i].lanes = _mm512_maskz_mov_ps(seen(key + 16 * i), weight.lanes);
      total = _mm_add_ps(total, _mm512_castps512_ps128(part[i].lanes));
      total = _mm_add_ps(total, _mm512_extractf32x4_ps(part[i].lanes, 1));
      total = _mm_add_ps(total, _mm512_extractf32x4_ps(part[i].lanes, 2));
      total = _mm_add_ps(total, _mm512_extractf32x4_ps(part[i].lanes, 3));
    }
    _mm512_storeu_si512(weights, (__m512i)_mm512_cvtne2ps_pbh(part[1].lanes, part[0].lanes));
  }
  const __m128 pairs = _mm_add_ps(total, _mm_movehdup_ps(total));
  *sum = _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
}

// The values of 32 keys, half of them at `low` and half at `high`, as second operands of TDPBF16PS: tiles [dim / 16]
// [16 pairs of keys][16 dimensions][2]. Dimensions are in the order in which unpacking leaves them: see `in_order`.
inline void interleave_pair(const bfloat16* low, const bfloat16* high, int64_t stride, int64_t dim, bfloat16* target) {
  for (int i = 0; i < 16; ++i) {
    const bfloat16* even = i < 8 ? low + 2 * i * stride : high + (2 * i - 16) * stride;
    const bfloat16* odd = even + stride;
    bfloat16* row = target + i * 32;
    int64_t d = 0;
    for (; d + 32 <= dim; d += 32, row += 1024) {
      const __m512i a = _mm512_loadu_si512(even + d), b = _mm512_loadu_si512(odd + d);
      _mm512_store_si512(row, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(row + 512, _mm512_unpackhi_epi16(a, b));
    }
    if (d == dim) continue;
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm256_unpacklo_epi16(a, b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row + 16), _mm256_unpackhi_epi16(a, b));
  }
}

// Calls store(first dimension, sixteen sums) for sums of values that `interleave_pair` has arranged.
template <class Store>
inline void in_order(const float* sums, int64_t dim, const Store& store) {
  int64_t d = 0;
  for (; d + 32 <= dim; d += 32) {
    const __m512 low = _mm512_loadu_ps(sums + d), high = _mm512_loadu_ps(sums + d + 16);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    store(d, Vector{_mm512_permutex2var_ps(low, first, high)});
    store(d + 16, Vector{_mm512_permutex2var_ps(low, second, high)});
  }
  if (d == dim) return;
  const __m512 rest = _mm512_loadu_ps(sums + d);
  store(d, Vector{_mm512_shuffle_f32x4(rest, rest, 0xd8)});
}

}  // namespace roundhouse

#endif
