#include "roundhouse/rope.cuh"

#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {
namespace {

template <class T, int kPerLoad>
void run(const RopeAndStore<T>& p, Stream stream) {
  using Body = RopeAndStoreBody<T, kPerLoad>;
  const int threads = Body::threads_of_head(p) * (p.heads + 2 * p.kv_heads);
  launch<Body>(dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(ceil_div(threads, Body::kThreads))), p, stream);
}

template <class T>
bool whole(const RopeAndStore<T>& p) {
  // Powers of two divide all of them if they divide this.
  const int64_t strides = p.query_stride | p.key_stride | p.value_stride | p.block_stride | p.token_stride | p.head_stride;
  return p.dim / 2 % kVector<T> == 0 && strides % kVector<T> == 0 && aligned(p.query) && aligned(p.key) &&
         aligned(p.value) && aligned(p.keys) && aligned(p.values);
}

}  // namespace

template <class T>
void rope_and_store(const RopeAndStore<T>& p, Stream stream) {
  if (p.tokens == 0) return;
  whole(p) ? run<T, kVector<T>>(p, stream) : run<T, 1>(p, stream);
}

template void rope_and_store<float>(const RopeAndStore<float>&, Stream);
template void rope_and_store<bfloat16>(const RopeAndStore<bfloat16>&, Stream);

}  // namespace roundhouse::cuda
