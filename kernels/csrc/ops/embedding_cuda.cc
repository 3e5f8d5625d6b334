#include "ops/embedding.h"

#include "ops/cuda.h"
#include "roundhouse/embedding.h"

namespace roundhouse::cuda {
namespace {

void embedding_op(TensorView out, TensorView tokens, TensorView weight) {
  check_embedding(out, tokens, weight, check_cuda);
  gather_rows(embedding_params<GatherRows>(out, tokens, weight), stream_of(weight));
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, roundhouse::cuda::embedding_op);
