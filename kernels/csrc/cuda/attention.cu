#include "roundhouse/attention/launch.cuh"

namespace roundhouse::cuda {

template void paged_attention(const PagedAttention<bfloat16, bfloat16>&, Stream);

}  // namespace roundhouse::cuda
