#include "roundhouse/launch.cuh"
#include "roundhouse/sampling/logits.cuh"
#include "roundhouse/sampling/sample.cuh"

namespace roundhouse::cuda {
namespace {

unsigned blocks(int64_t elements, int threads) { return static_cast<unsigned>((elements + threads - 1) / threads); }

}  // namespace

template <class T>
void sample(const Sample<T>& p, Stream stream) {
  if (p.rows != 0) launch<SampleBody<T>>(dim3(static_cast<unsigned>(p.rows)), p, stream);
}

template <class T>
void reduce_logits(const ReduceLogits<T>& p, Stream stream) {
  if (p.rows != 0) launch<ReduceLogitsBody<T>>(dim3(static_cast<unsigned>(p.rows)), p, stream);
}

template <class T>
void apply_token_bitmask(const TokenBitmask<T>& p, Stream stream) {
  using Body = TokenBitmaskBody<T>;
  if (p.count == 0) return;
  launch<Body>(dim3(blocks(p.vocabulary, Body::kThreads), static_cast<unsigned>(p.count)), p, stream);
}

void apply_penalties(const TokenPenalties& p, Stream stream) {
  if (p.vocabulary != 0) launch<TokenPenaltiesBody>(dim3(blocks(p.vocabulary, TokenPenaltiesBody::kThreads)), p, stream);
}

template void sample<float>(const Sample<float>&, Stream);
template void sample<bfloat16>(const Sample<bfloat16>&, Stream);
template void reduce_logits<float>(const ReduceLogits<float>&, Stream);
template void reduce_logits<bfloat16>(const ReduceLogits<bfloat16>&, Stream);
template void apply_token_bitmask<float>(const TokenBitmask<float>&, Stream);
template void apply_token_bitmask<bfloat16>(const TokenBitmask<bfloat16>&, Stream);

}  // namespace roundhouse::cuda
