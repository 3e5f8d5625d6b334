#include "roundhouse/alignment.h"
#include "roundhouse/attention/fp32.cuh"
#include "roundhouse/attention/merge.cuh"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {

template <class T, class C>
void paged_attention_fp32(const PagedAttention<T, C>& p, Stream stream) {
  if (p.tokens == 0) return;
  const unsigned rows = static_cast<unsigned>(p.rows), kv_heads = static_cast<unsigned>(p.kv_heads);
  // Four of any type divide what this divides.
  const int64_t strides = p.dim | p.cache.block_stride | p.cache.token_stride | p.cache.head_stride;
  const bool whole = strides % 4 == 0 && aligned(p.cache.keys) && aligned(p.cache.values);
  using Body = Fp32Attention<T, C>;
  if (p.group() <= kFew) {
    launch<Body>(dim3(static_cast<unsigned>(p.splits), kv_heads, rows), {p, true, whole}, stream);
    if (p.splits > 1) launch<MergeAttention<T, C, kMostDimensions>>(dim3(kv_heads, rows), p, stream);
  }
  if (p.most * p.group() > kFew) {
    launch<Body>(dim3(static_cast<unsigned>(blocks_of_queries<kFew>(p)), kv_heads), {p, false, whole}, stream);
  }
}

template void paged_attention_fp32(const PagedAttention<float, float>&, Stream);
template void paged_attention_fp32(const PagedAttention<float, bfloat16>&, Stream);
template void paged_attention_fp32(const PagedAttention<float, float8>&, Stream);
template void paged_attention_fp32(const PagedAttention<float, int8_t>&, Stream);
template void paged_attention_fp32(const PagedAttention<bfloat16, bfloat16>&, Stream);
template void paged_attention_fp32(const PagedAttention<bfloat16, float8>&, Stream);
template void paged_attention_fp32(const PagedAttention<bfloat16, int8_t>&, Stream);

}  // namespace roundhouse::cuda
