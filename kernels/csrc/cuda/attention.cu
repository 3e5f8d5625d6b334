#include "roundhouse/attention/decode.cuh"
#include "roundhouse/attention/merge.cuh"
#include "roundhouse/attention/prefill.cuh"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {
namespace {

template <int kDim>
void run(const PagedAttention& p, Stream stream) {
  const unsigned rows = static_cast<unsigned>(p.rows), kv_heads = static_cast<unsigned>(p.kv_heads);
  if (p.group() <= kFew) {
    launch<DecodeAttention<kDim>>(dim3(static_cast<unsigned>(p.splits), kv_heads, rows), p, stream);
    if (p.splits > 1) launch<MergeAttention<kDim>>(dim3(kv_heads, rows), p, stream);
  }
  if (p.most * p.group() > kFew) {
    launch<PrefillAttention<kDim>>(dim3(static_cast<unsigned>(PrefillAttention<kDim>::blocks(p)), kv_heads), p, stream);
  }
}

}  // namespace

void paged_attention(const PagedAttention& p, Stream stream) {
  if (p.tokens == 0) return;
  p.dim == 64 ? run<64>(p, stream) : run<128>(p, stream);
}

}  // namespace roundhouse::cuda
