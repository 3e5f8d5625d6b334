#include "ops/embedding.h"

#include "cpu/embedding.h"

namespace roundhouse {
namespace {

void embedding_op(TensorView out, TensorView tokens, TensorView weight) {
  check_embedding(out, tokens, weight, check_cpu);
  const bool found = gather_rows(embedding_params<GatherRows>(out, tokens, weight));
  if (!found) TVM_FFI_THROW(IndexError) << "tokens has an index that weight, of " << weight.size(0) << " rows, has not";
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, roundhouse::embedding_op);
