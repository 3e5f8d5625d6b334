// Squares of 32-bit numbers in registers, rows and columns exchanged, and the steps that lead there.
#pragma once

#include "cpu/vector.h"

namespace roundhouse {

#if defined(ROUNDHOUSE_AVX2)

// Of each 128 bits, the lower or upper two numbers of both, in turns; the lower or upper two of one, then of the other.
inline Vector unpack_low(Vector a, Vector b) { return {_mm256_unpacklo_ps(a.lanes, b.lanes)}; }
inline Vector unpack_high(Vector a, Vector b) { return {_mm256_unpackhi_ps(a.lanes, b.lanes)}; }
inline Vector unpack_low_pairs(Vector a, Vector b) { return {_mm256_shuffle_ps(a.lanes, b.lanes, 0x44)}; }
inline Vector unpack_high_pairs(Vector a, Vector b) { return {_mm256_shuffle_ps(a.lanes, b.lanes, 0xee)}; }
// 128 bits at even or odd places of one, then of the other.
inline Vector even_quarters(Vector a, Vector b) { return {_mm256_permute2f128_ps(a.lanes, b.lanes, 0x20)}; }
inline Vector odd_quarters(Vector a, Vector b) { return {_mm256_permute2f128_ps(a.lanes, b.lanes, 0x31)}; }

inline void transpose(Vector (&x)[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(x[i].lanes, x[i + 1].lanes);
    a[i + 1] = _mm256_unpackhi_ps(x[i].lanes, x[i + 1].lanes);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; ++i) {
    x[i].lanes = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    x[i + 4].lanes = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

#else

inline Vector unpack_low(Vector a, Vector b) { return {_mm512_unpacklo_ps(a.lanes, b.lanes)}; }
inline Vector unpack_high(Vector a, Vector b) { return {_mm512_unpackhi_ps(a.lanes, b.lanes)}; }
inline Vector unpack_low_pairs(Vector a, Vector b) { return {_mm512_shuffle_ps(a.lanes, b.lanes, 0x44)}; }
inline Vector unpack_high_pairs(Vector a, Vector b) { return {_mm512_shuffle_ps(a.lanes, b.lanes, 0xee)}; }
inline Vector even_quarters(Vector a, Vector b) { return {_mm512_shuffle_f32x4(a.lanes, b.lanes, 0x88)}; }
inline Vector odd_quarters(Vector a, Vector b) { return {_mm512_shuffle_f32x4(a.lanes, b.lanes, 0xdd)}; }

inline void transpose(Vector (&x)[16]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(x[i].lanes, x[i + 1].lanes);
    a[i + 1] = _mm512_unpackhi_ps(x[i].lanes, x[i + 1].lanes);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm512_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  }
  // Now 128 bits of b[4 i + j] are rows 4 i to 4 i + 3 of columns j, j + 4, j + 8 and j + 12.
  for (int j = 0; j < 4; ++j) {
    a[j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);
    a[4 + j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
    a[8 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);
    a[12 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
  }
  for (int j = 0; j < 4; ++j) {
    x[j].lanes = _mm512_shuffle_f32x4(a[j], a[8 + j], 0x88);
    x[8 + j].lanes = _mm512_shuffle_f32x4(a[j], a[8 + j], 0xdd);
    x[4 + j].lanes = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0x88);
    x[12 + j].lanes = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0xdd);
  }
}

#endif

}  // namespace roundhouse
