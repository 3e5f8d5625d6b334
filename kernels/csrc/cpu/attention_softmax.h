// The softmax of one split: scores lie as [keys][columns], a column per query and head, so that all is vertical.
#pragma once

#include <cmath>

#include "cpu/attention.h"
#include "cpu/exp2.h"

namespace roundhouse {

// Columns that are worked on at a time: two registers of them, or one.
constexpr int kColumns = 2 * Vector::kWidth;
// So few that a body may have another way for them.
constexpr int kFew = 8;

// What the scores are multiplied with to be exponents of two: 1 / sqrt(dim) / ln 2 as the sum of two numbers.
struct Scale {
  float high, low;
};

// Which keys each column sees: [oldest, newest].
struct Visible {
  alignas(64) int32_t oldest[kColumns];
  alignas(64) int32_t newest[kColumns];
  int64_t all_begin, all_end;  // keys that every column sees

  // x where a column sees `key`, else `hidden`.
  Vector select(Vector x, int64_t key, int column, float hidden) const {
    const int at = static_cast<int>(key);
#if defined(ROUNDHOUSE_AVX2)
    const __m256i position = _mm256_set1_epi32(at);
    const __m256i old = _mm256_load_si256(reinterpret_cast<const __m256i*>(oldest + column));
    const __m256i young = _mm256_load_si256(reinterpret_cast<const __m256i*>(newest + column));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(position, young), _mm256_cmpgt_epi32(old, position));
    return {_mm256_blendv_ps(x.lanes, _mm256_set1_ps(hidden), _mm256_castsi256_ps(outside))};
#else
    const __m512i position = _mm512_set1_epi32(at);
    const __mmask16 known = _mm512_cmple_epi32_mask(position, _mm512_load_si512(newest + column));
    const __mmask16 seen = _mm512_mask_cmple_epi32_mask(known, _mm512_load_si512(oldest + column), position);
    return {_mm512_mask_blend_ps(seen, _mm512_set1_ps(hidden), x.lanes)};
#endif
  }
};

// The weight of a score, 2^(scale * score - shift).
template <bool exact>
inline Vector weigh(Vector score, Vector high, Vector low, Vector shift) {
  const Vector power = score * high, whole = round(power);
  const Vector fraction =
      exact ? multiply_add(score, low, multiply_add(score, high, Vector::zero() - whole)) : power - whole;
  return scale_down(exp2_fraction<exact>(fraction), whole - shift);
}

// What keys and values of int8 are to be multiplied with, one number for each key of a split. The products are taken with
// scores and with weights, which are fewer.
struct KeyScales {
  const float* keys;
  const float* values;
};

// Turns `scores` [end - begin][ld] of keys [begin, end) into weights and passes each register of them to
// `store(row, register of the row, weights)`. A weight is 2^(scale * score - exponent), or 0 for a key that is not seen;
// `exponent` is a column's largest scale * score as a whole number, minus infinity if it sees none of these keys, and
// `sum` that of its weights. Whole exponents make the merging of two splits exact, and leave of a score just what is
// behind its point to be rounded. `begin` and `end` are multiples of 4: four partial sums, of keys that are equal modulo
// 4, hide the latency of an addition. If `scaled`, keys and values have `scales`, and what is stored is for the values.
template <bool exact, bool scaled, int registers, class Store>
inline void softmax(const float* scores, int64_t begin, int64_t end, Scale scale, const Visible& visible,
                    KeyScales scales, float* exponent, float* sum, const Store& store) {
  constexpr int kWidth = Vector::kWidth, ld = registers * kWidth;
  const auto masked = [&](int64_t key) { return key < visible.all_begin || key + 3 >= visible.all_end; };
  const auto load = [&](int64_t row, int r) {
    const Vector score = Vector::load(scores + row * ld + r * kWidth);
    return scaled ? score * Vector::all(scales.keys[row]) : score;
  };
  Vector largest[4][registers], total[4][registers];
  for (int i = 0; i < 4; ++i) {
    for (int r = 0; r < registers; ++r) largest[i][r] = Vector::all(-INFINITY), total[i][r] = Vector::zero();
  }
  for (int64_t key = begin; key < end; key += 4) {
    const bool some = masked(key);
    for (int i = 0; i < 4; ++i) {
      for (int r = 0; r < registers; ++r) {
        Vector score = load(key + i - begin, r);
        if (some) score = visible.select(score, key + i, r * kWidth, -INFINITY);
        largest[i][r] = max(largest[i][r], score);
      }
    }
  }
  const Vector high = Vector::all(scale.high), low = Vector::all(scale.low);
  Vector shift[registers];
  for (int r = 0; r < registers; ++r) {
    shift[r] = round(max(max(largest[0][r], largest[1][r]), max(largest[2][r], largest[3][r])) * high);
    shift[r].store(exponent + r * kWidth);
  }
  for (int64_t key = begin; key < end; key += 4) {
    const bool some = masked(key);
    for (int i = 0; i < 4; ++i) {
      const int64_t row = key + i - begin;
      for (int r = 0; r < registers; ++r) {
        Vector weight = weigh<exact>(load(row, r), high, low, shift[r]);
        if (some) weight = visible.select(weight, key + i, r * kWidth, 0.0f);
        total[i][r] = total[i][r] + weight;
        if (scaled) {
          weight = weight * Vector::all(scales.values[row]);
          if (some) weight = visible.select(weight, key + i, r * kWidth, 0.0f);
        }
        store(row, r, weight);
      }
    }
  }
  for (int r = 0; r < registers; ++r) {
    ((total[0][r] + total[1][r]) + (total[2][r] + total[3][r])).store(sum + r * kWidth);
  }
}

}  // namespace roundhouse
