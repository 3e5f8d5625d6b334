#include "roundhouse/rope.cuh"

#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {
namespace {

template <class T, int kPerLoad>
void run(const RopeAndStore<T, T>& p, Stream stream) {
  using Body = RopeAndStoreBody<T, kPerLoad>;
  const int threads = Body::threads_of_head(p) * (p.heads + 2 * p.kv_heads);
  launch<Body>(dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(ceil_div(threads, Body::kThreads))), p, stream);
}

template <class T>
bool whole(const RopeAndStore<T, T>& p) {
  // Powers of two divide all of them if they divide this.
  const int64_t strides = p.query_stride | p.key_stride | p.value_stride | p.cache.block_stride | p.cache.token_stride |
                          p.cache.head_stride;
  return (p.dim / 2 | p.rotated / 2) % kVector<T> == 0 && strides % kVector<T> == 0 && aligned(p.query) && aligned(p.key) &&
         aligned(p.value) && aligned(p.cache.keys) && aligned(p.cache.values);
}

}  // namespace

template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p, Stream stream) {
  if (p.tokens == 0) return;
  if constexpr (std::is_same_v<T, C>) {
    whole(p) ? run<T, kVector<T>>(p, stream) : run<T, 1>(p, stream);
  } else {
    using Body = NarrowRopeAndStoreBody<T, C>;
    const unsigned blocks = static_cast<unsigned>(ceil_div(p.heads + 2 * p.kv_heads, Body::kWarps));
    launch<Body>(dim3(static_cast<unsigned>(p.tokens), blocks), p, stream);
  }
}

template void rope_and_store(const RopeAndStore<float, float>&, Stream);
template void rope_and_store(const RopeAndStore<float, bfloat16>&, Stream);
template void rope_and_store(const RopeAndStore<float, float8>&, Stream);
template void rope_and_store(const RopeAndStore<float, int8_t>&, Stream);
template void rope_and_store(const RopeAndStore<bfloat16, bfloat16>&, Stream);
template void rope_and_store(const RopeAndStore<bfloat16, float8>&, Stream);
template void rope_and_store(const RopeAndStore<bfloat16, int8_t>&, Stream);

}  // namespace roundhouse::cuda
