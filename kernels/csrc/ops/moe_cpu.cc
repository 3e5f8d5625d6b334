#include "cpu/moe.h"

#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

void check_numbers(const TensorView& tensor, DLDataType type, int64_t size, const char* name) {
  check_cpu(tensor, name);
  check_type(tensor, type, name);
  check_dense(tensor, name);
  ROUNDHOUSE_CHECK(tensor.numel() == size) << name << " has " << tensor.numel() << " elements instead of " << size;
}

void check_rows(const TensorView& tensor, const char* name) {
  check_cpu(tensor, name);
  ROUNDHOUSE_CHECK(is(tensor, kFloat32) || is(tensor, kBfloat16)) << name << " must be float32 or bfloat16";
  check_dimensions(tensor, 2, name);
  check_dense(tensor, name);
}

template <class T>
void route(TensorView weights, TensorView chosen, TensorView order, TensorView places, TensorView tokens, TensorView ends,
           TensorView logits, int64_t k) {
  route_tokens(RouteTokens<T>{data<T>(logits), data<float>(weights), data<int64_t>(chosen), data<int64_t>(order),
                              data<int64_t>(places), data<int64_t>(tokens), data<int64_t>(ends), logits.size(0),
                              logits.size(1), k});
}

void route_tokens_op(TensorView weights, TensorView chosen, TensorView order, TensorView places, TensorView tokens,
                     TensorView ends, TensorView logits) {
  check_rows(logits, "logits");
  check_dimensions(weights, 2, "weights");
  const int64_t k = weights.size(1), pairs = logits.size(0) * k;
  ROUNDHOUSE_CHECK(k <= logits.size(1)) << "weights has more columns than there are experts";
  check_numbers(weights, kFloat32, pairs, "weights");
  check_numbers(chosen, kInt64, pairs, "chosen");
  check_numbers(order, kInt64, pairs, "order");
  check_numbers(places, kInt64, pairs, "places");
  check_numbers(tokens, kInt64, pairs, "tokens");
  check_numbers(ends, kInt64, logits.size(1), "ends");
  if (is(logits, kFloat32)) return route<float>(weights, chosen, order, places, tokens, ends, logits, k);
  route<bfloat16>(weights, chosen, order, places, tokens, ends, logits, k);
}

template <class T>
void combine(TensorView out, TensorView outputs, TensorView weights, TensorView places) {
  combine_experts(CombineExperts<T>{data<T>(out), data<T>(outputs), data<float>(weights), data<int64_t>(places), out.size(0),
                                    weights.size(1), out.size(1)});
}

void combine_experts_op(TensorView out, TensorView outputs, TensorView weights, TensorView places) {
  check_rows(out, "out");
  check_rows(outputs, "outputs");
  check_type(outputs, out.dtype(), "outputs");
  check_dimensions(weights, 2, "weights");
  const int64_t pairs = out.size(0) * weights.size(1);
  check_size(outputs, 0, pairs, "outputs");
  check_size(outputs, 1, out.size(1), "outputs");
  check_numbers(weights, kFloat32, pairs, "weights");
  check_numbers(places, kInt64, pairs, "places");
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t place = data<int64_t>(places)[i];
    ROUNDHOUSE_CHECK(place >= 0 && place < pairs) << "places has a row that outputs does not have";
  }
  if (is(out, kFloat32)) return combine<float>(out, outputs, weights, places);
  combine<bfloat16>(out, outputs, weights, places);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(route_tokens, roundhouse::route_tokens_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(combine_experts, roundhouse::combine_experts_op);
