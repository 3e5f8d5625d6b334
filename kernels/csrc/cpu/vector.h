// A register of fp32 numbers, 8 or 16 by instruction set, that loads and stores tensors' number formats.
//
// Loops over a row take whole registers and one partial one at the end: lanes beyond `count` are zero when loaded and not
// touched when stored, so that nothing outside the row is read or written.
#pragma once

#include <immintrin.h>

#include "cpu/types.h"

namespace roundhouse {

#if defined(ROUNDHOUSE_AVX2)

struct Vector {
  static constexpr int kWidth = 8;
  __m256 lanes;

  static Vector zero() { return {_mm256_setzero_ps()}; }
  static Vector all(float x) { return {_mm256_set1_ps(x)}; }

  static __m256i mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vector load(const float* p, int count) { return {_mm256_maskload_ps(p, mask(count))}; }
  static Vector load(const bfloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  static Vector load(const bfloat16* p, int count) {
    alignas(16) bfloat16 padded[kWidth] = {};
    std::memcpy(padded, p, sizeof(bfloat16) * count);
    return load(padded);
  }
  // 16 numbers, those at even and those at odd places.
  static void load_even_odd(const bfloat16* p, Vector& even, Vector& odd) {
    split_pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), even, odd);
  }
  static void split_pairs(__m256i bits, Vector& even, Vector& odd) {
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, lanes); }
  void store(float* p, int count) const { _mm256_maskstore_ps(p, mask(count), lanes); }
  void store(bfloat16* p) const {
    const __m256i word = _mm256_castps_si256(lanes);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(word, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(word, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(lanes, lanes, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(word, _mm256_set1_epi32(0x400000));
    const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }
  void store(bfloat16* p, int count) const {
    if (count == kWidth) return store(p);
    bfloat16 padded[kWidth];
    store(padded);
    std::memcpy(p, padded, sizeof(bfloat16) * count);
  }
  // Whole numbers, to the nearest, ties to even.
  __m256i rounded() const { return _mm256_cvtps_epi32(lanes); }
  float sum() const {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  float max() const {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  friend Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
  friend Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
  friend Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
  friend Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
  friend Vector max(Vector a, Vector b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
  friend Vector min(Vector a, Vector b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
  // To the nearest whole number, ties to even.
  friend Vector round(Vector a) { return {_mm256_round_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  // a * b + c with one rounding.
  friend Vector multiply_add(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
};

#else

struct Vector {
  static constexpr int kWidth = 16;
  __m512 lanes;

  static Vector zero() { return {_mm512_setzero_ps()}; }
  static Vector all(float x) { return {_mm512_set1_ps(x)}; }

  static __mmask16 mask(int count) { return static_cast<__mmask16>(_bzhi_u32(0xffffu, count)); }
  static Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vector load(const float* p, int count) { return {_mm512_maskz_loadu_ps(mask(count), p)}; }
  static Vector widen(__m256i bits) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))}; }
  static Vector load(const bfloat16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vector load(const bfloat16* p, int count) { return widen(_mm256_maskz_loadu_epi16(mask(count), p)); }
  // 32 numbers, those at even and those at odd places.
  static void load_even_odd(const bfloat16* p, Vector& even, Vector& odd) {
    const __m512i bits = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  // Not VCVTNEPS2BF16: it flushes denormals, and all instruction sets should round alike.
  __m256i narrow() const {
    const __m512i word = _mm512_castps_si512(lanes);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(word, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(lanes, lanes, _CMP_UNORD_Q);
    const __m512i bits = _mm512_mask_or_epi32(rounded, nan, word, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
  }
  void store(float* p) const { _mm512_storeu_ps(p, lanes); }
  void store(float* p, int count) const { _mm512_mask_storeu_ps(p, mask(count), lanes); }
  void store(bfloat16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow()); }
  void store(bfloat16* p, int count) const { _mm256_mask_storeu_epi16(p, mask(count), narrow()); }
  // Whole numbers, to the nearest, ties to even.
  __m512i rounded() const { return _mm512_cvtps_epi32(lanes); }
  float sum() const { return _mm512_reduce_add_ps(lanes); }
  float max() const { return _mm512_reduce_max_ps(lanes); }

  friend Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
  friend Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
  friend Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
  friend Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
  friend Vector max(Vector a, Vector b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  friend Vector min(Vector a, Vector b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
  // To the nearest whole number, ties to even.
  friend Vector round(Vector a) {
    return {_mm512_roundscale_ps(a.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // a * b + c with one rounding.
  friend Vector multiply_add(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
};

#endif

}  // namespace roundhouse
