#include "roundhouse/attention.h"

#include <cmath>
#include <type_traits>

#include "ops/cuda_cache.h"
#include "roundhouse/alignment.h"

namespace roundhouse::cuda {
namespace {

void check_indices(const TensorView& tensor, int dimensions, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, kInt32, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
}

// What tensor cores take; everything else is computed in fp32.
template <class C>
bool fits_tensor_cores(const PagedAttention<bfloat16, C>& p) {
  constexpr int64_t kElements = 16 / sizeof(C);
  const int64_t strides = p.cache.block_stride | p.cache.token_stride | p.cache.head_stride;
  return (p.dim == 64 || p.dim == 128) && strides % kElements == 0 && p.query_stride % 8 == 0 && aligned(p.query) &&
         aligned(p.out) && aligned(p.cache.keys) && aligned(p.cache.values);
}

template <class T>
void run(TensorView out, TensorView query, const CudaCacheArguments& arguments, TensorView tables, TensorView starts,
         TensorView counts, int64_t window, TensorView scratch, int64_t most, int64_t splits) {
  arguments.visit<T>([&](const auto& cache) {
    using C = std::remove_pointer_t<decltype(cache.keys)>;
    const PagedAttention<T, C> p{data<T>(out),
                                 data<T>(query),
                                 query.stride(0),
                                 {cache.keys, cache.values, cache.block_stride, cache.token_stride, cache.head_stride,
                                  cache.key_scales, cache.value_scales, cache.scale_block_stride, cache.scale_head_stride},
                                 data<int32_t>(tables),
                                 tables.size(1),
                                 data<int32_t>(starts),
                                 data<int32_t>(counts),
                                 static_cast<int>(query.size(0)),
                                 static_cast<int>(counts.size(0)),
                                 static_cast<int>(query.size(1)),
                                 static_cast<int>(arguments.keys.size(2)),
                                 static_cast<int>(query.size(2)),
                                 static_cast<int>(most),
                                 static_cast<int>(splits),
                                 static_cast<int>(window),
                                 static_cast<float>(1.0 / std::sqrt(static_cast<double>(query.size(2)))),
                                 scratch.data_ptr()};
    ROUNDHOUSE_CHECK(scratch.numel() >= p.scratch_bytes())
        << "scratch has " << scratch.numel() << " bytes instead of " << p.scratch_bytes();
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (fits_tensor_cores(p)) return paged_attention(p, stream_of(query));
    }
    paged_attention_fp32(p, stream_of(query));
  });
}

// What starts, counts and tables hold is not looked at: it is on the device. No row may have more than `most` tokens,
// nor keys beyond `splits` splits.
void paged_attention_op(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache, TensorView key_scales,
                        TensorView value_scales, TensorView tables, TensorView starts, TensorView counts, int64_t window,
                        TensorView scratch, int64_t most, int64_t splits) {
  check_cuda(query, "query");
  ROUNDHOUSE_CHECK(is(query, kFloat32) || is(query, kBfloat16)) << "query must be float32 or bfloat16";
  check_dimensions(query, 3, "query");
  ROUNDHOUSE_CHECK(is_dense(query, 2)) << "query must be contiguous but for its tokens";
  ROUNDHOUSE_CHECK(query.size(2) >= 1 && query.size(2) <= kMostDimensions)
      << "query must have at most " << kMostDimensions << " dimensions";
  check_cuda(out, "out");
  check_type(out, query.dtype(), "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(out.numel() == query.numel()) << "out must have the size of query";
  const CudaCacheArguments cache{key_cache, value_cache, key_scales, value_scales};
  cache.check(query);
  ROUNDHOUSE_CHECK(query.size(1) % key_cache.size(2) == 0) << "key_cache must have a number of heads that divides query's";
  check_indices(tables, 2, "tables");
  check_indices(starts, 1, "starts");
  check_indices(counts, 1, "counts");
  check_size(tables, 0, counts.size(0), "tables");
  check_size(starts, 0, counts.size(0), "starts");
  ROUNDHOUSE_CHECK(window >= 0) << "window must not be negative";
  ROUNDHOUSE_CHECK(most >= 1 && splits >= 1) << "most and splits must be positive";
  check_cuda(scratch, "scratch");
  check_type(scratch, kUint8, "scratch");
  ROUNDHOUSE_CHECK(aligned(scratch.data_ptr())) << "scratch must be aligned to 16 bytes";
  if (is(query, kFloat32)) return run<float>(out, query, cache, tables, starts, counts, window, scratch, most, splits);
  run<bfloat16>(out, query, cache, tables, starts, counts, window, scratch, most, splits);
}

// Bytes that `scratch` must have.
int64_t paged_attention_scratch(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim, int64_t most, int64_t splits) {
  PagedAttention<float, float> p{};
  p.rows = static_cast<int>(rows);
  p.heads = static_cast<int>(heads);
  p.kv_heads = static_cast<int>(kv_heads);
  p.dim = static_cast<int>(dim);
  p.most = static_cast<int>(most);
  p.splits = static_cast<int>(splits);
  return p.scratch_bytes();
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention, roundhouse::cuda::paged_attention_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention_scratch, roundhouse::cuda::paged_attention_scratch);
