#include "roundhouse/attention/launch.cuh"

namespace roundhouse::cuda {

template void paged_attention(const PagedAttention<bfloat16, float8>&, Stream);

}  // namespace roundhouse::cuda
