#include "roundhouse/attention/launch.cuh"

namespace roundhouse::cuda {

template void paged_attention(const PagedAttention<bfloat16, int8_t>&, Stream);

}  // namespace roundhouse::cuda
