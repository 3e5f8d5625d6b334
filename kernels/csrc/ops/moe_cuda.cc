#include "ops/moe.h"

#include "ops/cuda.h"
#include "roundhouse/alignment.h"
#include "roundhouse/moe.h"

namespace roundhouse::cuda {
namespace {

void route_tokens_op(TensorView weights, TensorView chosen, TensorView order, TensorView places, TensorView tokens,
                     TensorView ends, TensorView logits) {
  check_routing(weights, chosen, order, places, tokens, ends, logits, check_cuda);
  ROUNDHOUSE_CHECK(logits.size(1) <= kMostExperts) << "logits must be of at most " << kMostExperts << " experts";
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    route_tokens(routing_params<RouteTokens<T>, T>(weights, chosen, order, places, tokens, ends, logits), stream_of(logits));
  };
  is(logits, kFloat32) ? run(float()) : run(bfloat16());
}

void check_bf16(const TensorView& tensor, int dimensions, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, kBfloat16, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
  ROUNDHOUSE_CHECK(aligned(tensor.data_ptr())) << name << " must be aligned to 16 bytes";
}

void grouped_linear_op(TensorView out, TensorView x, TensorView weights, TensorView ends) {
  check_bf16(out, 2, "out");
  check_bf16(x, 2, "x");
  check_bf16(weights, 3, "weights");
  const int64_t experts = weights.size(0), outputs = weights.size(1), inputs = weights.size(2);
  ROUNDHOUSE_CHECK(outputs % 2 == 0 && inputs % 8 == 0) << "weights must have rows of 16 bytes, and an even number of them";
  check_size(x, 1, inputs, "x");
  check_size(out, 0, x.size(0), "out");
  check_size(out, 1, outputs, "out");
  check_numbers(ends, kInt64, experts, "ends", check_cuda);
  grouped_linear({data<bfloat16>(out), data<bfloat16>(x), data<bfloat16>(weights), data<int64_t>(ends), x.size(0), experts,
                  static_cast<int>(outputs), static_cast<int>(inputs)},
                 stream_of(x));
}

void combine_experts_op(TensorView out, TensorView outputs, TensorView weights, TensorView places) {
  check_combination(out, outputs, weights, places, check_cuda);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    combine_experts(combination_params<CombineExperts<T>, T>(out, outputs, weights, places), stream_of(out));
  };
  is(out, kFloat32) ? run(float()) : run(bfloat16());
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(route_tokens, roundhouse::cuda::route_tokens_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_linear, roundhouse::cuda::grouped_linear_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(combine_experts, roundhouse::cuda::combine_experts_op);
