// Eight-bit numbers as bf16, without rounding: all of e4m3 and all integers up to 127 are bf16 numbers too.
#pragma once

#include <type_traits>

#include "cpu/narrow.h"

#if !defined(ROUNDHOUSE_AVX2)

namespace roundhouse {

// The two bytes of each magnitude as bf16.
struct alignas(64) ByteTables {
  uint8_t low[128] = {}, high[128] = {};
};

// significand * 2^exponent, of up to eight significant bits.
constexpr uint16_t bfloat16_bits(int significand, int exponent) {
  if (significand == 0) return 0;
  int top = 0;
  while (significand >> (top + 1) != 0) ++top;
  return static_cast<uint16_t>(((127 + top + exponent) << 7) | ((significand << (7 - top)) & 0x7f));
}

constexpr uint16_t bfloat16_bits(float8, int magnitude) {
  const int exponent = magnitude >> 3, fraction = magnitude & 7;
  if (magnitude == 0x7f) return 0x7fc0;
  return exponent == 0 ? bfloat16_bits(fraction, -9) : bfloat16_bits(8 + fraction, exponent - 10);
}

constexpr uint16_t bfloat16_bits(int8_t, int magnitude) { return bfloat16_bits(magnitude, 0); }

template <class C>
constexpr ByteTables byte_tables() {
  ByteTables tables;
  for (int i = 0; i < 128; ++i) {
    tables.low[i] = static_cast<uint8_t>(bfloat16_bits(C{}, i) & 0xff);
    tables.high[i] = static_cast<uint8_t>(bfloat16_bits(C{}, i) >> 8);
  }
  return tables;
}

// Looks up 64 numbers at a time: the tables are in registers.
template <class C>
class ByteLookup {
 public:
  ByteLookup() {
    static constexpr ByteTables kTables = byte_tables<C>();
    for (int i = 0; i < 2; ++i) {
      low_[i] = _mm512_load_si512(kTables.low + 64 * i);
      high_[i] = _mm512_load_si512(kTables.high + 64 * i);
    }
  }

  // The low and the high byte of each.
  void operator()(__m512i numbers, __m512i& low, __m512i& high) const {
    __m512i magnitudes = numbers;  // VPERMI2B looks at seven bits
    if constexpr (std::is_same<C, int8_t>::value) magnitudes = _mm512_abs_epi8(numbers);
    low = _mm512_permutex2var_epi8(low_[0], magnitudes, low_[1]);
    high = _mm512_permutex2var_epi8(high_[0], magnitudes, high_[1]);
    high = _mm512_ternarylogic_epi32(high, numbers, _mm512_set1_epi8(-128), 0xf8);  // high | (numbers & sign)
  }

 private:
  __m512i low_[2], high_[2];
};

// `count` rows of `dim` numbers, `stride` apart, as bf16 in rows that are filled up with zeros to a multiple of 64. Of each
// 64, first come those that unpacking low halves gives and then the others.
template <class C>
inline void convert_keys(const C* source, int64_t stride, int64_t count, int64_t dim, bfloat16* target) {
  const ByteLookup<C> look_up;
  for (; count > 0; --count, source += stride) {
    for (int64_t d = 0; d < dim; d += 64, target += 64) {
      __m512i low, high;
      look_up(_mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, static_cast<unsigned>(dim - d)), source + d), low, high);
      _mm512_storeu_si512(target, _mm512_unpacklo_epi8(low, high));
      _mm512_storeu_si512(target + 32, _mm512_unpackhi_epi8(low, high));
    }
  }
}

// The same in their own order.
template <class C>
inline void convert_values(const C* source, int64_t stride, int64_t count, int64_t dim, bfloat16* target) {
  const ByteLookup<C> look_up;
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (; count > 0; --count, source += stride) {
    for (int64_t d = 0; d < dim; d += 64, target += 64) {
      const __m512i numbers = _mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, static_cast<unsigned>(dim - d)), source + d);
      __m512i low, high;
      look_up(_mm512_permutexvar_epi64(order, numbers), low, high);
      _mm512_storeu_si512(target, _mm512_unpacklo_epi8(low, high));
      _mm512_storeu_si512(target + 32, _mm512_unpackhi_epi8(low, high));
    }
  }
}

// bf16 as it is.
inline void convert_values(const bfloat16* source, int64_t stride, int64_t count, int64_t dim, bfloat16* target) {
  for (; count > 0; --count, source += stride, target += dim) std::copy_n(source, dim, target);
}

}  // namespace roundhouse

#endif
