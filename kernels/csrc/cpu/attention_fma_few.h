// The two products of a split for few columns by fused multiply-additions: whatever is loaded of a key or a value serves
// all columns. Scores have a key per lane, after a transposition in registers; sums have a dimension per lane.
#pragma once

#include "cpu/attention_few.h"
#include "cpu/eight_bits.h"
#include "cpu/narrow.h"

namespace roundhouse {

// Whether keys of this type can be read where they lie; others are made floats first.
template <class C>
constexpr bool kWidensInRegisters =
#if defined(ROUNDHOUSE_AVX2)
    !std::is_same<C, float8>::value;
#else
    true;
#endif

// 16 bytes each of as many keys as a register has lanes, `stride` bytes apart: words[i] is the i-th 32 bits of all.
inline void transpose_words(const char* from, int64_t stride, Vector (&words)[4]) {
  Vector rows[4];
  const auto load = [&](int64_t key) { return _mm_loadu_ps(reinterpret_cast<const float*>(from + key * stride)); };
#if defined(ROUNDHOUSE_AVX2)
  for (int k = 0; k < 4; ++k) rows[k].lanes = _mm256_insertf128_ps(_mm256_castps128_ps256(load(k)), load(k + 4), 1);
  const auto low = [](Vector a, Vector b) { return _mm256_unpacklo_ps(a.lanes, b.lanes); };
  const auto high = [](Vector a, Vector b) { return _mm256_unpackhi_ps(a.lanes, b.lanes); };
  const __m256 a = low(rows[0], rows[1]), b = high(rows[0], rows[1]);
  const __m256 c = low(rows[2], rows[3]), d = high(rows[2], rows[3]);
  words[0].lanes = _mm256_shuffle_ps(a, c, 0x44);
  words[1].lanes = _mm256_shuffle_ps(a, c, 0xee);
  words[2].lanes = _mm256_shuffle_ps(b, d, 0x44);
  words[3].lanes = _mm256_shuffle_ps(b, d, 0xee);
#else
  for (int k = 0; k < 4; ++k) {
    // A broadcast under a mask needs no shuffle, being a load.
    __m512 row = _mm512_broadcast_f32x4(load(k));
    row = _mm512_mask_broadcast_f32x4(row, 0x00f0, load(k + 4));
    row = _mm512_mask_broadcast_f32x4(row, 0x0f00, load(k + 8));
    rows[k].lanes = _mm512_mask_broadcast_f32x4(row, 0xf000, load(k + 12));
  }
  const auto low = [](Vector a, Vector b) { return _mm512_unpacklo_ps(a.lanes, b.lanes); };
  const auto high = [](Vector a, Vector b) { return _mm512_unpackhi_ps(a.lanes, b.lanes); };
  const __m512 a = low(rows[0], rows[1]), b = high(rows[0], rows[1]);
  const __m512 c = low(rows[2], rows[3]), d = high(rows[2], rows[3]);
  words[0].lanes = _mm512_shuffle_ps(a, c, 0x44);
  words[1].lanes = _mm512_shuffle_ps(a, c, 0xee);
  words[2].lanes = _mm512_shuffle_ps(b, d, 0x44);
  words[3].lanes = _mm512_shuffle_ps(b, d, 0xee);
#endif
}

// The numbers that lie side by side in each lane, as floats.
template <class C>
class Widening;

template <>
class Widening<float> {
 public:
  void operator()(Vector word, Vector (&numbers)[1]) const { numbers[0] = word; }
};

template <>
class Widening<float16> {
 public:
  void operator()(Vector word, Vector (&numbers)[2]) const {
#if defined(ROUNDHOUSE_AVX2)
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_castps_si256(word.lanes), order), 0xd8);
    numbers[0].lanes = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    numbers[1].lanes = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
#else
    const __m512i bits = _mm512_castps_si512(word.lanes);
    numbers[0].lanes = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
    numbers[1].lanes = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
#endif
  }
};

#if defined(ROUNDHOUSE_AVX2)

template <>
class Widening<bfloat16> {
 public:
  void operator()(Vector word, Vector (&numbers)[2]) const {
    const __m256i bits = _mm256_castps_si256(word.lanes);
    numbers[0].lanes = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    numbers[1].lanes = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

template <>
class Widening<int8_t> {
 public:
  void operator()(Vector word, Vector (&numbers)[4]) const {
    const __m256i bits = _mm256_castps_si256(word.lanes);
    for (int i = 0; i < 4; ++i) {
      numbers[i].lanes = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bits, 24 - 8 * i), 24));
    }
  }
};

#else

template <>
class Widening<bfloat16> {
 public:
  void operator()(Vector word, Vector (&numbers)[2]) const {
    const __m512i bits = _mm512_castps_si512(word.lanes);
    numbers[0].lanes = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    numbers[1].lanes = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

template <>
class Widening<int8_t> {
 public:
  void operator()(Vector word, Vector (&numbers)[4]) const {
    const __m512i bits = _mm512_castps_si512(word.lanes);
    for (unsigned i = 0; i < 4; ++i) {
      numbers[i].lanes = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(bits, 24 - 8 * i), 24));
    }
  }
};

template <>
class Widening<float8> {
 public:
  void operator()(Vector word, Vector (&numbers)[4]) const {
    __m512i low, high;
    look_up_(_mm512_castps_si512(word.lanes), low, high);
    // Numbers 0 and 2, then 1 and 3, as pairs of bf16.
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xff00ff00u));
    const __m512i first = _mm512_ternarylogic_epi32(_mm512_slli_epi16(high, 8), low, odd, 0xf4);    // a | (b & ~c)
    const __m512i second = _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, odd, 0xf8);   // a | (b & c)
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    numbers[0].lanes = _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
    numbers[1].lanes = _mm512_castsi512_ps(_mm512_slli_epi32(second, 16));
    numbers[2].lanes = _mm512_castsi512_ps(_mm512_and_si512(first, upper));
    numbers[3].lanes = _mm512_castsi512_ps(_mm512_and_si512(second, upper));
  }

 private:
  ByteLookup<float8> look_up_;
};

#endif

// Scores of the keys at `keys`, `groups` times as many as a register has lanes, for columns [dim][columns]: column i's at
// scores + i * ld. `dim` is a multiple of 16.
template <int columns, int groups, class C>
inline void score_keys(const C* keys, int64_t stride, int64_t dim, const float* query, float* scores, int64_t ld) {
  constexpr int kNumbers = 4 / sizeof(C), kWidth = Vector::kWidth;
  const Widening<C> widening;
  Vector sum[groups][columns];
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < columns; ++i) sum[g][i] = Vector::zero();
  }
  for (int64_t d = 0; d < dim; d += 4 * kNumbers) {
    Vector words[groups][4];
    for (int g = 0; g < groups; ++g) {
      const C* const from = keys + g * kWidth * stride + d;
      transpose_words(reinterpret_cast<const char*>(from), stride * static_cast<int64_t>(sizeof(C)), words[g]);
    }
    for (int word = 0; word < 4; ++word) {
      Vector numbers[groups][kNumbers];
      for (int g = 0; g < groups; ++g) widening(words[g][word], numbers[g]);
      for (int k = 0; k < kNumbers; ++k, query += columns) {
        for (int i = 0; i < columns; ++i) {
          const Vector of_query = Vector::all(query[i]);
          for (int g = 0; g < groups; ++g) sum[g][i] = multiply_add(numbers[g][k], of_query, sum[g][i]);
        }
      }
    }
  }
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < columns; ++i) sum[g][i].store(scores + i * ld + g * kWidth);
  }
}

// Adds to sums [columns][dim] the values of a block's first `tokens` times the weights of each column, at weights + i *
// ld. `dim` is a multiple of 16.
template <int columns, class C>
inline void add_values(const C* values, int64_t stride, int64_t tokens, int64_t dim, const float* weights, int64_t ld,
                       float* sums) {
  constexpr int kWidth = Vector::kWidth;
#if defined(ROUNDHOUSE_AVX2)
  constexpr int kRegisters = columns == 1 ? 8 : columns == 2 ? 4 : 2;
#else
  constexpr int kRegisters = columns <= 4 ? 4 : 2;
#endif
  const auto add = [&](int64_t d, auto registers) {
    constexpr int kCount = decltype(registers)::value;
    Vector sum[columns][kCount];
    for (int i = 0; i < columns; ++i) {
      for (int r = 0; r < kCount; ++r) sum[i][r] = Vector::zero();
    }
    const C* from = values + d;
    for (int64_t token = 0; token < tokens; ++token, from += stride) {
      Vector numbers[kCount];
      for (int r = 0; r < kCount; ++r) numbers[r] = load(from + r * kWidth);
      for (int i = 0; i < columns; ++i) {
        const Vector weight = Vector::all(weights[i * ld + token]);
        for (int r = 0; r < kCount; ++r) sum[i][r] = multiply_add(numbers[r], weight, sum[i][r]);
      }
    }
    for (int i = 0; i < columns; ++i) {
      for (int r = 0; r < kCount; ++r) {
        float* target = sums + i * dim + d + r * kWidth;
        (Vector::load(target) + sum[i][r]).store(target);
      }
    }
  };
  int64_t d = 0;
  for (; d + kRegisters * kWidth <= dim; d += kRegisters * kWidth) add(d, std::integral_constant<int, kRegisters>{});
  if constexpr (kRegisters == 8) {
    for (; d + 6 * kWidth <= dim; d += 6 * kWidth) add(d, std::integral_constant<int, 6>{});
    for (; d + 2 * kWidth <= dim; d += 2 * kWidth) add(d, std::integral_constant<int, 2>{});
  }
  for (; d < dim; d += kWidth) add(d, std::integral_constant<int, 1>{});
}

}  // namespace roundhouse
