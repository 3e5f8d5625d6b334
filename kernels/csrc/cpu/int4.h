// Groups of int4 weights (layout in linear.h) as tiles of bf16.
#pragma once

#include <immintrin.h>

#include "cpu/linear.h"
#include "cpu/vector.h"

namespace roundhouse {

#if !defined(ROUNDHOUSE_AVX2)

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
