#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"
#include "roundhouse/moe/grouped.cuh"
#include "roundhouse/moe/route.cuh"

namespace roundhouse::cuda {
namespace {

template <int kRows, int kOutputs, int kRowWarps, int kOutputWarps, int kStages>
void run(const GroupedLinear& p, Stream stream) {
  const dim3 blocks(most_tiles(p.rows, p.experts, kRows), static_cast<unsigned>((p.outputs + kOutputs - 1) / kOutputs));
  launch<GroupedLinearBody<kRows, kOutputs, kRowWarps, kOutputWarps, kStages>>(blocks, p, stream);
}

template <class T, int kPer>
void run(const CombineExperts<T>& p, Stream stream) {
  using Body = CombineExpertsBody<T, kPer>;
  const int64_t columns = Body::kThreads * kPer;
  launch<Body>(dim3(static_cast<unsigned>(p.count), static_cast<unsigned>((p.width + columns - 1) / columns)), p, stream);
}

}  // namespace

template <class T>
void route_tokens(const RouteTokens<T>& p, Stream stream) {
  constexpr int64_t kWarps = ChooseExpertsBody<T>::kWarps;
  if (p.experts == 0) return;
  if (p.count != 0) launch<ChooseExpertsBody<T>>(dim3(static_cast<unsigned>((p.count + kWarps - 1) / kWarps)), p, stream);
  launch<SortPairsBody<T>>(dim3(static_cast<unsigned>(p.experts)), p, stream);
}

void grouped_linear(const GroupedLinear& p, Stream stream) {
  if (p.rows == 0 || p.outputs == 0 || p.experts == 0) return;
  if (p.rows <= 16 * p.experts) return run<16, 64, 1, 4, 6>(p, stream);
  run<64, 128, 2, 2, 4>(p, stream);
}

template <class T>
void combine_experts(const CombineExperts<T>& p, Stream stream) {
  if (p.count == 0 || p.width == 0) return;
  const bool whole = p.width % kVector<T> == 0 && aligned(p.out) && aligned(p.outputs);
  whole ? run<T, kVector<T>>(p, stream) : run<T, 1>(p, stream);
}

template void route_tokens<float>(const RouteTokens<float>&, Stream);
template void route_tokens<bfloat16>(const RouteTokens<bfloat16>&, Stream);
template void combine_experts<float>(const CombineExperts<float>&, Stream);
template void combine_experts<bfloat16>(const CombineExperts<bfloat16>&, Stream);

}  // namespace roundhouse::cuda
