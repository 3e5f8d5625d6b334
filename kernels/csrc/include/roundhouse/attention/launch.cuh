// What a batch's attention on tensor cores launches.
#pragma once

#include "roundhouse/attention/decode.cuh"
#include "roundhouse/attention/merge.cuh"
#include "roundhouse/attention/prefill.cuh"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {

template <class C, int kDim>
void launch_attention(const PagedAttention<bfloat16, C>& p, Stream stream) {
  using Prefill = PrefillAttention<C, kDim>;
  const unsigned rows = static_cast<unsigned>(p.rows), kv_heads = static_cast<unsigned>(p.kv_heads);
  if (p.group() <= kFew) {
    launch<DecodeAttention<C, kDim>>(dim3(static_cast<unsigned>(p.splits), kv_heads, rows), p, stream);
    if (p.splits > 1) launch<MergeAttention<bfloat16, C, kDim>>(dim3(kv_heads, rows), p, stream);
  }
  if (p.most * p.group() > kFew) {
    launch<Prefill>(dim3(static_cast<unsigned>(blocks_of_queries<Prefill::kQueries>(p)), kv_heads), p, stream);
  }
}

template <class C>
void paged_attention(const PagedAttention<bfloat16, C>& p, Stream stream) {
  if (p.tokens == 0) return;
  p.dim == 64 ? launch_attention<C, 64>(p, stream) : launch_attention<C, 128>(p, stream);
}

}  // namespace roundhouse::cuda
