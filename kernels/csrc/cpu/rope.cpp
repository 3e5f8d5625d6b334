#include "cpu/rope.h"

#include "cpu/parallel.h"
#include "cpu/vector.h"

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

}  // namespace

template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p) {
  const int64_t half = p.dim / 2;
  const int64_t bytes = 2 * p.tokens * (p.heads + 2 * p.kv_heads) * p.dim * static_cast<int64_t>(sizeof(T));
  parallel_for(p.tokens, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float *cos = p.table + p.rotations[token] * p.dim, *sin = cos + half;
      for (int64_t head = 0; head < p.heads; ++head) {
        T* query = p.query + token * p.query_stride + head * p.dim;
        rotate(query, cos, sin, half, query);
      }
      const int64_t slot = p.slots[token];
      for (int64_t head = 0; head < p.kv_heads; ++head) {
        const int64_t place = slot / kBlock * p.block_stride + head * p.head_stride + slot % kBlock * p.token_stride;
        rotate(p.key + token * p.key_stride + head * p.dim, cos, sin, half, p.keys + place);
        std::memcpy(p.values + place, p.value + token * p.value_stride + head * p.dim, p.dim * sizeof(T));
      }
    }
  });
}

template void rope_and_store<float, float>(const RopeAndStore<float, float>&);
template void rope_and_store<bfloat16, bfloat16>(const RopeAndStore<bfloat16, bfloat16>&);

}  // namespace roundhouse
