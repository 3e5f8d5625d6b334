#include "ops/moe.h"

#include "cpu/moe.h"
#include "cpu/types.h"

namespace roundhouse {
namespace {

void route_tokens_op(TensorView weights, TensorView chosen, TensorView order, TensorView places, TensorView tokens,
                     TensorView ends, TensorView logits) {
  check_routing(weights, chosen, order, places, tokens, ends, logits, check_cpu);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    route_tokens(routing_params<RouteTokens<T>, T>(weights, chosen, order, places, tokens, ends, logits));
  };
  is(logits, kFloat32) ? run(float()) : run(bfloat16());
}

void combine_experts_op(TensorView out, TensorView outputs, TensorView weights, TensorView places) {
  check_combination(out, outputs, weights, places, check_cpu);
  for (int64_t i = 0; i < places.numel(); ++i) {
    const int64_t place = data<int64_t>(places)[i];
    ROUNDHOUSE_CHECK(place >= 0 && place < outputs.size(0)) << "places has a row that outputs does not have";
  }
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    combine_experts(combination_params<CombineExperts<T>, T>(out, outputs, weights, places));
  };
  is(out, kFloat32) ? run(float()) : run(bfloat16());
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(route_tokens, roundhouse::route_tokens_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(combine_experts, roundhouse::combine_experts_op);
