// One split for few columns on AMX tiles: what a decode has, where sixteen columns would be computed for one.
//
// The scores are keys * queries^T as for many columns, in tiles that are as narrow as there are columns. The weights are
// then the first operand of the second product, with a row per column, and the values the second one: two keys' numbers
// have to be interleaved instead of a transposition.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include "cpu/attention_few.h"
#include "cpu/eight_bits.h"

namespace roundhouse {

// Transposes 8 numbers of 32 rows, half of them at `low` and half at `high`: target [8][32].
inline void transpose_8x32(const bfloat16* low, const bfloat16* high, int64_t stride, bfloat16* target) {
  const auto load = [](const bfloat16* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  __m512i r[8], a[8], b[8];
  // 128 bits of r[k] are the numbers of rows k, k + 8, k + 16 and k + 24.
  for (int k = 0; k < 8; ++k) {
    __m512i row = _mm512_broadcast_i32x4(load(low + k * stride));
    row = _mm512_mask_broadcast_i32x4(row, 0x00f0, load(low + (k + 8) * stride));
    row = _mm512_mask_broadcast_i32x4(row, 0x0f00, load(high + k * stride));
    r[k] = _mm512_mask_broadcast_i32x4(row, 0xf000, load(high + (k + 8) * stride));
  }
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi32(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi32(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(target + 2 * i * 32, _mm512_unpacklo_epi64(b[i], b[i + 4]));
    _mm512_store_si512(target + (2 * i + 1) * 32, _mm512_unpackhi_epi64(b[i], b[i + 4]));
  }
}

// Four columns' weights of 32 keys in eight registers, four keys in each -> target [4][32].
inline void store_weights(const __m512 (&weights)[8], bfloat16* target, std::integral_constant<int, 4>) {
  const __m512i order = _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2, 29, 25, 21, 17, 13, 9,
                                         5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
  __m512i r[4];  // 128 bits for each column, of eight keys
  for (int i = 0; i < 4; ++i) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(weights[2 * i + 1], weights[2 * i]);
    r[i] = _mm512_permutexvar_epi16(order, both);
  }
  const __m512i a = _mm512_shuffle_i32x4(r[0], r[1], 0x44), b = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(r[0], r[1], 0xee), d = _mm512_shuffle_i32x4(r[2], r[3], 0xee);
  _mm512_store_si512(target, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_store_si512(target + 32, _mm512_shuffle_i32x4(a, b, 0xdd));
  _mm512_store_si512(target + 64, _mm512_shuffle_i32x4(c, d, 0x88));
  _mm512_store_si512(target + 96, _mm512_shuffle_i32x4(c, d, 0xdd));
}

// Eight columns' weights of 32 keys in sixteen registers, two keys in each -> target [8][32].
inline void store_weights(const __m512 (&weights)[16], bfloat16* target, std::integral_constant<int, 8>) {
  alignas(64) bfloat16 rows[32 * 8];
  for (int i = 0; i < 8; ++i) {
    _mm512_store_si512(rows + i * 32, (__m512i)_mm512_cvtne2ps_pbh(weights[2 * i + 1], weights[2 * i]));
  }
  transpose_8x32(rows, rows + 16 * 8, 8, target);
}

// `softmax` for four or eight columns, whose scores lie as [keys][columns]: weights as bf16 [32 keys][columns][32].
// Column i sees keys [oldest[i], newest[i]]. `begin` and `end` are multiples of 32. Scores are overwritten if `scaled`.
template <bool scaled, int columns>
inline void softmax_of_columns(float* scores, int64_t begin, int64_t end, Scale scale, const int64_t* oldest,
                               const int64_t* newest, KeyScales scales, float* exponent, float* sum, bfloat16* weights) {
  constexpr int kKeys = 16 / columns, kRegisters = 32 / kKeys;
  alignas(64) int32_t old[16], young[16];
  int64_t all_begin = oldest[0], all_end = newest[0] + 1;
  for (int lane = 0; lane < 16; ++lane) {
    const int column = lane % columns;
    old[lane] = static_cast<int32_t>(oldest[column]);
    young[lane] = static_cast<int32_t>(newest[column]);
    all_begin = std::max(all_begin, oldest[column]);
    all_end = std::min(all_end, newest[column] + 1);
  }
  const __m512i first = _mm512_load_si512(old), last = _mm512_load_si512(young);
  const __m512i lane_keys = _mm512_srli_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), columns == 8 ? 3 : 2);
  const auto seen = [&](int64_t key) {
    if (key >= all_begin && key + kKeys <= all_end) return static_cast<__mmask16>(0xffff);
    const __m512i at = _mm512_add_epi32(lane_keys, _mm512_set1_epi32(static_cast<int>(key)));
    return _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(at, last), first, at);
  };
  // Of the keys in the i-th of the registers with 32 keys.
  const auto spread = [&](const float* from, int i) {
    const __m512i places = _mm512_add_epi32(lane_keys, _mm512_set1_epi32(i % (kRegisters / 2) * kKeys));
    return _mm512_permutexvar_ps(places, _mm512_loadu_ps(from + i / (kRegisters / 2) * 16));
  };
  __m512 largest[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
  for (int64_t key = begin; key < end; key += 32) {
    float* from = scores + (key - begin) * columns;
    for (int i = 0; i < kRegisters; ++i, from += 16) {
      __m512 score = _mm512_loadu_ps(from);
      if (scaled) {
        score = _mm512_mul_ps(score, spread(scales.keys + (key - begin), i));
        _mm512_storeu_ps(from, score);
      }
      largest[i % 2] = _mm512_mask_max_ps(largest[i % 2], seen(key + i * kKeys), largest[i % 2], score);
    }
  }
  __m512 most = _mm512_max_ps(largest[0], largest[1]);
  most = _mm512_max_ps(most, _mm512_shuffle_f32x4(most, most, 0x4e));
  if (columns == 4) most = _mm512_max_ps(most, _mm512_shuffle_f32x4(most, most, 0xb1));
  const Vector high = Vector::all(scale.high), low = Vector::all(scale.low), shift = round(Vector{most} * high);
  shift.store(exponent, columns);
  // Lanes of total[0] and total[1] are keys 0 to 3 modulo 4; of four columns all are in total[0].
  __m512 total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t key = begin; key < end; key += 32, weights += 32 * columns) {
    const float* from = scores + (key - begin) * columns;
    __m512 part[kRegisters];
    for (int i = 0; i < kRegisters; ++i, from += 16) {
      const __mmask16 visible = seen(key + i * kKeys);
      part[i] = _mm512_maskz_mov_ps(visible, weigh<false>(Vector::load(from), high, low, shift).lanes);
      __m512& into = total[columns == 8 ? i % 2 : 0];
      into = _mm512_add_ps(into, part[i]);
      if (scaled) part[i] = _mm512_maskz_mul_ps(visible, part[i], spread(scales.values + (key - begin), i));
    }
    store_weights(part, weights, std::integral_constant<int, columns>{});
  }
  const auto add_halves = [](__m512 x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); };
  if (columns == 8) {
    _mm256_storeu_ps(sum, _mm256_add_ps(add_halves(total[0]), add_halves(total[1])));
  } else {
    const __m512 pairs = _mm512_add_ps(total[0], _mm512_shuffle_f32x4(total[0], total[0], 0xb1));
    _mm_storeu_ps(sum, _mm_add_ps(_mm512_castps512_ps128(pairs), _mm512_extractf32x4_ps(pairs, 2)));
  }
}

// How values become second operands of TDPBF16PS, for up to 64 of their dimensions: tiles of 16 pairs of keys, 16
// dimensions and the two keys. `put` does so with a pair of keys, to row `pair` of the tiles at `target`. The dimensions
// then are in another order: `in_order` undoes that and calls store(first dimension, sixteen sums).
template <class C>
class Interleave;

template <>
class Interleave<bfloat16> {
 public:
  void put(const bfloat16* even, const bfloat16* odd, int64_t dims, int64_t pair, bfloat16* target) const {
    bfloat16* row = target + pair * 32;
    int64_t d = 0;
    for (; d + 32 <= dims; d += 32, row += 1024) {
      const __m512i a = _mm512_loadu_si512(even + d), b = _mm512_loadu_si512(odd + d);
      _mm512_store_si512(row, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(row + 512, _mm512_unpackhi_epi16(a, b));
    }
    if (d == dims) return;
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm256_unpacklo_epi16(a, b));
    _mm256_store_si256(reinterpret_cast<__m256i*>(row + 16), _mm256_unpackhi_epi16(a, b));
  }

  template <class Store>
  static void in_order(const float* sums, int64_t dim, const Store& store) {
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
};

template <class C>
class Interleave {
 public:
  void put(const C* even, const C* odd, int64_t dims, int64_t pair, bfloat16* target) const {
    const __mmask64 mask = _bzhi_u64(~0ull, static_cast<unsigned>(dims));
    const __m512i a = _mm512_maskz_loadu_epi8(mask, even), b = _mm512_maskz_loadu_epi8(mask, odd);
    store(_mm512_unpacklo_epi8(a, b), target + pair * 32);
    store(_mm512_unpackhi_epi8(a, b), target + pair * 32 + 1024);
  }

  template <class Store>
  static void in_order(const float* sums, int64_t dim, const Store& store) {
    for (int64_t d = 0; d < dim; d += 64, sums += 64) {
      // 128 bits of sums + 16 * i are dimensions 4 * i to 4 * i + 3 of four times sixteen.
      __m512 s[4];
      for (int i = 0; i < 4; ++i) s[i] = _mm512_loadu_ps(sums + 16 * i);
      const __m512 a = _mm512_shuffle_f32x4(s[0], s[1], 0x44), b = _mm512_shuffle_f32x4(s[2], s[3], 0x44);
      const __m512 c = _mm512_shuffle_f32x4(s[0], s[1], 0xee), e = _mm512_shuffle_f32x4(s[2], s[3], 0xee);
      store(d, Vector{_mm512_shuffle_f32x4(a, b, 0x88)});
      if (d + 16 < dim) store(d + 16, Vector{_mm512_shuffle_f32x4(a, b, 0xdd)});
      if (d + 32 < dim) store(d + 32, Vector{_mm512_shuffle_f32x4(c, e, 0x88)});
      if (d + 48 < dim) store(d + 48, Vector{_mm512_shuffle_f32x4(c, e, 0xdd)});
    }
  }

 private:
  void store(__m512i numbers, bfloat16* target) const {
    __m512i low, high;
    look_up_(numbers, low, high);
    _mm512_store_si512(target, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(target + 512, _mm512_unpackhi_epi8(low, high));
  }

  ByteLookup<C> look_up_;
};

// Up to 64 dimensions of the values of two blocks as such tiles. `count` tokens count, and if those are no more than a
// block's, `high` may be null.
template <class C>
inline void interleave_blocks(const Interleave<C>& interleave, const C* low, const C* high, int64_t stride, int64_t count,
                              int64_t dims, bfloat16* target) {
  if (count >= 2 * kBlock) {
    for (int64_t i = 0; i < 8; ++i, low += 2 * stride) interleave.put(low, low + stride, dims, i, target);
    for (int64_t i = 8; i < 16; ++i, high += 2 * stride) interleave.put(high, high + stride, dims, i, target);
    return;
  }
  // What lies behind the last value is no number to calculate with.
  static constexpr C kZeros[64] = {};
  const auto value = [&](int64_t token) {
    if (token >= count) return &kZeros[0];
    return token < kBlock ? low + token * stride : high + (token - kBlock) * stride;
  };
  for (int64_t i = 0; i < 16; ++i) interleave.put(value(2 * i), value(2 * i + 1), dims, i, target);
}

}  // namespace roundhouse

#endif
