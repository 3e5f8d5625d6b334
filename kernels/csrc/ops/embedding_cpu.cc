#include "cpu/embedding.h"

#include "ops/check.h"

namespace roundhouse {
namespace {

void embedding_op(TensorView out, TensorView tokens, TensorView weight) {
  check_cpu(out, "out");
  check_cpu(tokens, "tokens");
  check_cpu(weight, "weight");
  check_type(tokens, kInt64, "tokens");
  check_type(out, weight.dtype(), "out");
  check_dimensions(tokens, 1, "tokens");
  check_dimensions(weight, 2, "weight");
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  check_dense(tokens, "tokens");
  ROUNDHOUSE_CHECK(is_dense(weight, 1)) << "weight must have rows without gaps";
  check_size(out, 0, tokens.size(0), "out");
  check_size(out, 1, weight.size(1), "out");
  const int64_t bytes = weight.dtype().bits / 8;
  const bool found = gather_rows({data<char>(out), data<char>(weight), data<int64_t>(tokens), tokens.size(0),
                                  weight.size(0), weight.size(1) * bytes, weight.stride(0) * bytes});
  if (!found) TVM_FFI_THROW(IndexError) << "tokens has an index that weight, of " << weight.size(0) << " rows, has not";
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(embedding, roundhouse::embedding_op);
