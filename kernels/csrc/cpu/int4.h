// Groups of int4 weights (layout in linear.h) as tiles of bf16.
#pragma once

#include <immintrin.h>

#include "cpu/linear.h"
#include "cpu/vector.h"

namespace roundhouse {

#if defined(ROUNDHOUSE_AVX2)

// The sixteen weights of bf16 that an output has in a group, looked up by their level: low and high bytes of them.
struct Int4Table {
  __m256i low, high;  // 16 bytes twice

  // `pair`: the step and what level 0 stands for.
  explicit Int4Table(uint32_t pair) {
    const __m256i both = _mm256_set1_epi32(static_cast<int>(pair));
    const __m256 step = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    const __m256 zero = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    // Packing takes turns between its operands' halves.
    const auto rounded = [&](__m256 levels) {
      const __m256i word = _mm256_castps_si256(_mm256_fmadd_ps(step, levels, zero));
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
      return _mm256_srli_epi32(_mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    };
    const __m256i words = _mm256_packus_epi32(rounded(_mm256_setr_ps(0, 1, 2, 3, 8, 9, 10, 11)),
                                              rounded(_mm256_setr_ps(4, 5, 6, 7, 12, 13, 14, 15)));
    const __m256i bytes = _mm256_packus_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(words, 8));
    low = _mm256_permute4x64_epi64(bytes, 0x88);
    high = _mm256_permute4x64_epi64(bytes, 0xdd);
  }

  // Half of an output's words of 16 bits, the 16 from 16 `half` on -> four registers of pairs of weights. Of words k = 0
  // to 3 and 8 to 11, and of 4 to 7 and 12 to 15: inputs (k, 64 + k), then of both (32 + k, 96 + k), 16 `half` further.
  void weights(__m256i words, __m256i (&pairs)[4]) const {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i levels[2] = {_mm256_and_si256(words, mask), _mm256_and_si256(_mm256_srli_epi16(words, 4), mask)};
    for (int i = 0; i < 2; ++i) {
      const __m256i low_bytes = _mm256_shuffle_epi8(low, levels[i]), high_bytes = _mm256_shuffle_epi8(high, levels[i]);
      pairs[2 * i] = _mm256_unpacklo_epi8(low_bytes, high_bytes);
      pairs[2 * i + 1] = _mm256_unpackhi_epi8(low_bytes, high_bytes);
    }
  }
};

// A group of a row of x as fp32 in the order of Int4Table::weights: for each of its registers the numbers of the first, then
// of the second of all pairs.
inline void order_int4(float* to, const bfloat16* x) {
  const auto eight = [](const bfloat16* from) {
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m128i second = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8));
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_unpacklo_epi64(first, second));
    return Vector{_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  };
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i, to += 16) {
      const bfloat16* const from = x + 16 * half + i / 2 * 32 + i % 2 * 4;
      eight(from).store(to);
      eight(from + 64).store(to + 8);
    }
  }
}

// All of a group of one block as four tiles of [16 outputs][32 inputs], in that order.
inline void unpack_int4(bfloat16* tiles, const uint8_t* group) {
  const uint32_t* const pairs = reinterpret_cast<const uint32_t*>(group);
  const __m256i* const lines = reinterpret_cast<const __m256i*>(group + 4 * kBlock);
  for (int n = 0; n < kBlock; ++n) {
    const Int4Table table(pairs[n]);
    for (int half = 0; half < 2; ++half) {
      __m256i weights[4];
      table.weights(_mm256_loadu_si256(lines + 2 * n + half), weights);
      for (int i = 0; i < 4; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(tiles + 512 * (2 * half + i / 2) + 32 * n + i % 2 * 16), weights[i]);
      }
    }
  }
}

#else

// Lines (outputs) [first, first + count), both even, of one group of one block as four tiles of 32 inputs; lines and tiles are so many
// numbers apart.
inline void unpack_int4_lines(bfloat16* tiles, int64_t apart, int64_t tile, const uint8_t* group, int first, int count) {
  const uint32_t* pairs = reinterpret_cast<const uint32_t*>(group);
  const uint16_t* lines = reinterpret_cast<const uint16_t*>(group + 4 * kBlock);
#if defined(ROUNDHOUSE_AMX)
  // The sixteen weights that there can be are computed once per output and group, and looked up: with 1 beside each level,
  // a product of pairs is step * level + zero, rounded once. It takes denormals for zero, as the product with x will.
  const __m512i ones = _mm512_set1_epi32(0x3f800000);
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto levels =
      reinterpret_cast<__m512bh>(_mm512_or_si512(ones, _mm512_srli_epi32(_mm512_castps_si512(numbers), 16)));
  const auto weights = [&](int n) {
    const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(pairs[n])));
    return _mm512_dpbf16_ps(_mm512_setzero_ps(), levels, pair);
  };
  // High halves of products are shifts, at twice the rate of shifts.
  const __m512i by4 = _mm512_set1_epi16(1 << 12), by8 = _mm512_set1_epi16(1 << 8), by12 = _mm512_set1_epi16(1 << 4);
#pragma GCC unroll 4
  for (int n = first; n < first + count; n += 2) {
    const auto two = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(weights(n + 1), weights(n)));
    for (int i = 0; i < 2; ++i) {
      // Twice the sixteen: VPERMW looks at five bits.
      const __m512i table = i == 0 ? _mm512_shuffle_i64x2(two, two, 0x44) : _mm512_shuffle_i64x2(two, two, 0xee);
      const __m512i line = _mm512_loadu_si512(lines + 32 * (n + i));
      bfloat16* const to = tiles + apart * (n + i);
      _mm512_store_si512(to, _mm512_permutexvar_epi16(line, table));
      _mm512_store_si512(to + tile, _mm512_permutexvar_epi16(_mm512_mulhi_epu16(line, by4), table));
      _mm512_store_si512(to + 2 * tile, _mm512_permutexvar_epi16(_mm512_mulhi_epu16(line, by8), table));
      _mm512_store_si512(to + 3 * tile, _mm512_permutexvar_epi16(_mm512_mulhi_epu16(line, by12), table));
    }
  }
#else
  // The sixteen weights that there can be are computed once per output and group, and looked up.
  const __m512 levels = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
  for (int n = first; n < first + count; ++n) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(pairs[n]));
    const __m512 step = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    const __m512 zero = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    // Twice the sixteen: VPERMW looks at five bits.
    const __m512i table = _mm512_broadcast_i64x4(Vector{_mm512_fmadd_ps(step, levels, zero)}.narrow());
    const __m512i line = _mm512_loadu_si512(lines + 32 * n);
    bfloat16* const to = tiles + apart * n;
    _mm512_store_si512(to, _mm512_permutexvar_epi16(line, table));
    _mm512_store_si512(to + tile, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 4), table));
    _mm512_store_si512(to + 2 * tile, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 8), table));
    _mm512_store_si512(to + 3 * tile, _mm512_permutexvar_epi16(_mm512_srli_epi16(line, 12), table));
  }
#endif
}

// All of it, one tile of [16 outputs][32 inputs] after the other.
inline void unpack_int4(bfloat16* tiles, const uint8_t* group) { unpack_int4_lines(tiles, 32, 512, group, 0, kBlock); }

// A group of a row of x as fp32, numbers at even and at odd places of what two registers hold.
inline void order_int4(float* to, const bfloat16* x) {
  for (int i = 0; i < kInt4Group; i += 2 * Vector::kWidth) {
    Vector even, odd;
    Vector::load_even_odd(x + i, even, odd);
    even.store(to + i);
    odd.store(to + i + Vector::kWidth);
  }
}

#endif

}  // namespace roundhouse
