#include "cpu/rope.h"

#include <type_traits>

#include "cpu/narrow.h"
#include "cpu/parallel.h"

namespace roundhouse {
namespace {

// Rotates one head; source and target may be the same.
template <class T, class C>
void rotate(const T* x, const float* cos, const float* sin, int64_t half, C* out) {
  const auto part = [&](int64_t i, auto... count) {
    const Vector low = Vector::load(x + i, count...), high = Vector::load(x + half + i, count...);
    const Vector c = Vector::load(cos + i, count...), s = Vector::load(sin + i, count...);
    (low * c - high * s).store(out + i, count...);
    (high * c + low * s).store(out + half + i, count...);
  };
  int64_t i = 0;
  for (; i + Vector::kWidth <= half; i += Vector::kWidth) part(i);
  if (i < half) part(i, static_cast<int>(half - i));
}

// Tokens whose places in the cache are asked for before they are written: those of a decode lie far apart.
constexpr int64_t kAhead = 4;

template <class T, class C>
void prefetch(const RopeAndStore<T, C>& p, int64_t token) {
  const int64_t block = p.slots[token] / kBlock, offset = p.slots[token] % kBlock;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(C));
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    const int64_t place = p.cache.place(block, head) + offset * p.cache.token_stride;
    for (int64_t i = 0; i < p.dim + kLine - 1; i += kLine) {
      const int64_t within = place + std::min(i, p.dim - 1);
      _mm_prefetch(reinterpret_cast<const char*>(p.cache.keys + within), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p.cache.values + within), _MM_HINT_T0);
    }
  }
}

}  // namespace

template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p) {
  const int64_t half = p.rotated / 2, rest = p.dim - p.rotated;
  const int64_t bytes = 2 * p.tokens * (p.heads + 2 * p.kv_heads) * p.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(p.tokens, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < std::min(begin + kAhead, end); ++token) prefetch(p, token);
    for (int64_t token = begin; token < end; ++token) {
      if (token + kAhead < end) prefetch(p, token + kAhead);
      const float *cos = p.table + p.rotations[token] * p.rotated, *sin = cos + half;
      for (int64_t head = 0; head < p.heads; ++head) {
        T* query = p.query + token * p.query_stride + head * p.dim;
        rotate(query, cos, sin, half, query);
      }
      const int64_t slot = p.slots[token];
      for (int64_t head = 0; head < p.kv_heads; ++head) {
        const int64_t block = slot / kBlock, offset = slot % kBlock;
        const int64_t place = p.cache.place(block, head) + offset * p.cache.token_stride;
        const T* key = p.key + token * p.key_stride + head * p.dim;
        const T* value = p.value + token * p.value_stride + head * p.dim;
        if constexpr (std::is_same<T, C>::value) {
          rotate(key, cos, sin, half, p.cache.keys + place);
          std::memcpy(p.cache.keys + place + p.rotated, key + p.rotated, rest * sizeof(T));
          std::memcpy(p.cache.values + place, value, p.dim * sizeof(T));
        } else {
          const int64_t scale = p.cache.scale_place(block, head) + offset;
          alignas(64) float wide[kMostDimensions];
          rotate(key, cos, sin, half, wide);
          widen(key + p.rotated, rest, 1.0f, wide + p.rotated);
          narrow(wide, p.dim, p.cache.keys + place, p.cache.key_scales + scale);
          widen(value, p.dim, 1.0f, wide);
          narrow(wide, p.dim, p.cache.values + place, p.cache.value_scales + scale);
        }
      }
    }
  });
}

template void rope_and_store<float, float>(const RopeAndStore<float, float>&);
template void rope_and_store<float, bfloat16>(const RopeAndStore<float, bfloat16>&);
template void rope_and_store<float, float16>(const RopeAndStore<float, float16>&);
template void rope_and_store<float, float8>(const RopeAndStore<float, float8>&);
template void rope_and_store<float, int8_t>(const RopeAndStore<float, int8_t>&);
template void rope_and_store<bfloat16, bfloat16>(const RopeAndStore<bfloat16, bfloat16>&);
template void rope_and_store<bfloat16, float16>(const RopeAndStore<bfloat16, float16>&);
template void rope_and_store<bfloat16, float8>(const RopeAndStore<bfloat16, float8>&);
template void rope_and_store<bfloat16, int8_t>(const RopeAndStore<bfloat16, int8_t>&);

}  // namespace roundhouse
