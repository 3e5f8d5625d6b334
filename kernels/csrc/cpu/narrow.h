// Formats of the KV cache: fp16, fp8 e4m3 (without infinities; OCP 8-bit floating point specification) and int8 with a scale
// per token and head.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/vector.h"

namespace roundhouse {

struct float8 {
  uint8_t bits;
};

#if defined(ROUNDHOUSE_AVX2)

inline Vector load(const float16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }

// Numbers beyond the largest become that; what is not a number stays so.
inline void store(Vector x, float16* p) {
  const __m256 most = _mm256_set1_ps(65504.0f), least = _mm256_set1_ps(-65504.0f);
  const __m256 value = _mm256_max_ps(least, _mm256_min_ps(most, x.lanes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline __m128i load_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

inline Vector load(const int8_t* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(p)))}; }

inline Vector load(const float8* p) {
  // As fp16 the exponent has eight more to its bias, and fp16's conversion knows its denormals.
  const __m128i word = _mm_slli_epi16(_mm_cvtepi8_epi16(load_bytes(p)), 7);
  const __m128i half = _mm_and_si128(word, _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
  const Vector value = Vector{_mm256_cvtph_ps(half)} * Vector::all(256.0f);
  const __m256i magnitude = _mm256_and_si256(_mm256_cvtepu8_epi32(load_bytes(p)), _mm256_set1_epi32(0x7f));
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  return {_mm256_blendv_ps(value.lanes, _mm256_set1_ps(NAN), _mm256_castsi256_ps(nan))};
}

inline void store_bytes(__m256i words, void* p) {
  const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi16(shorts, shorts));
}

// Of numbers within [-127, 127].
inline void store(Vector x, int8_t* p) { store_bytes(_mm256_cvtps_epi32(x.lanes), p); }

inline void store(Vector x, float8* p) {
  const __m256i word = _mm256_castps_si256(x.lanes), sign = _mm256_and_si256(_mm256_srai_epi32(word, 24), _mm256_set1_epi32(-128));
  const __m256 most = _mm256_set1_ps(448.0f), magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.lanes);
  const __m256 value = _mm256_min_ps(most, magnitude);
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7ffff));
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
  // Below 2^-6 the steps are 2^-9, as those of a float at 2^14 are.
  const __m256 step = _mm256_set1_ps(16384.0f);
  const __m256i denormal = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(value, step)), _mm256_castps_si256(step));
  const __m256 small = _mm256_cmp_ps(value, _mm256_set1_ps(0.015625f), _CMP_LT_OQ);
  __m256 found = _mm256_blendv_ps(_mm256_castsi256_ps(normal), _mm256_castsi256_ps(denormal), small);
  const __m256 nan = _mm256_cmp_ps(x.lanes, x.lanes, _CMP_UNORD_Q);
  found = _mm256_blendv_ps(found, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f)), nan);
  store_bytes(_mm256_or_si256(_mm256_castps_si256(found), sign), p);
}

inline Vector absolute(Vector x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.lanes)}; }

#else

inline Vector load(const float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }

// Numbers beyond the largest become that; what is not a number stays so.
inline void store(Vector x, float16* p) {
  const __m512 most = _mm512_set1_ps(65504.0f), least = _mm512_set1_ps(-65504.0f);
  const __m512 value = _mm512_max_ps(least, _mm512_min_ps(most, x.lanes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline __m128i load_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

inline Vector load(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(p)))}; }

inline Vector load(const float8* p) {
  // As fp16 the exponent has eight more to its bias, and fp16's conversion knows its denormals.
  const __m128i bytes = load_bytes(p);
  const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
  const Vector value = Vector{_mm512_cvtph_ps(half)} * Vector::all(256.0f);
  return {_mm512_mask_blend_ps(nan, value.lanes, _mm512_set1_ps(NAN))};
}

inline void store_bytes(__m512i words, void* p) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(words));
}

// Of numbers within [-127, 127].
inline void store(Vector x, int8_t* p) { store_bytes(_mm512_cvtps_epi32(x.lanes), p); }

inline void store(Vector x, float8* p) {
  const __m512i word = _mm512_castps_si512(x.lanes), sign = _mm512_and_si512(_mm512_srli_epi32(word, 24), _mm512_set1_epi32(0x80));
  const __m512 value = _mm512_min_ps(_mm512_set1_ps(448.0f), _mm512_abs_ps(x.lanes));
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7ffff));
  const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
  // Below 2^-6 the steps are 2^-9, as those of a float at 2^14 are.
  const __m512 step = _mm512_set1_ps(16384.0f);
  const __m512i denormal = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(value, step)), _mm512_castps_si512(step));
  const __mmask16 small = _mm512_cmp_ps_mask(value, _mm512_set1_ps(0.015625f), _CMP_LT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.lanes, x.lanes, _CMP_UNORD_Q);
  const __m512i found = _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(normal, small, denormal), nan, _mm512_set1_epi32(0x7f));
  store_bytes(_mm512_or_si512(found, sign), p);
}

inline Vector absolute(Vector x) { return {_mm512_abs_ps(x.lanes)}; }

#endif

inline Vector load(const float* p) { return Vector::load(p); }
inline Vector load(const bfloat16* p) { return Vector::load(p); }

// `count` numbers times `scale`, as floats or rounded to bf16.
template <class Source, class Target>
inline void widen(const Source* source, int64_t count, float scale, Target* target) {
  constexpr int kWidth = Vector::kWidth;
  const Vector factor = Vector::all(scale);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) (load(source + i) * factor).store(target + i);
  if (i == count) return;
  Source padded[kWidth] = {};
  std::memcpy(padded, source + i, (count - i) * sizeof(Source));
  (load(padded) * factor).store(target + i, static_cast<int>(count - i));
}

// `count` floats rounded to bf16.
inline void narrow(const float* source, int64_t count, bfloat16* target, float*) { widen(source, count, 1.0f, target); }

// `count` floats as fp16 or e4m3, saturating at 65504 or 448.
template <class C>
inline void narrow(const float* source, int64_t count, C* target, float*) {
  constexpr int kWidth = Vector::kWidth;
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(Vector::load(source + i), target + i);
  if (i == count) return;
  C padded[kWidth];
  store(Vector::load(source + i, static_cast<int>(count - i)), padded);
  std::memcpy(target + i, padded, (count - i) * sizeof(C));
}

// `count` floats as whole multiples of `scale`, the largest of them as 127 or -127.
inline void narrow(const float* source, int64_t count, int8_t* target, float* scale) {
  constexpr int kWidth = Vector::kWidth;
  const auto part = [&](int64_t i) {
    return i + kWidth <= count ? Vector::load(source + i) : Vector::load(source + i, static_cast<int>(count - i));
  };
  Vector most = Vector::zero();
  for (int64_t i = 0; i < count; i += kWidth) most = max(most, absolute(part(i)));
  *scale = most.max() / 127.0f;
  const Vector step = Vector::all(*scale == 0.0f ? 1.0f : *scale);
  for (int64_t i = 0; i < count; i += kWidth) {
    int8_t numbers[kWidth];
    store(part(i) / step, numbers);
    std::memcpy(target + i, numbers, std::min<int64_t>(kWidth, count - i));
  }
}

}  // namespace roundhouse
