#include "roundhouse/attention.h"

#include <cmath>

#include "ops/cuda.h"
#include "roundhouse/alignment.h"

namespace roundhouse::cuda {
namespace {

void check_aligned(const TensorView& tensor, const char* name) {
  ROUNDHOUSE_CHECK(aligned(tensor.data_ptr())) << name << " must be aligned to 16 bytes";
  for (int i = 0; i + 1 < tensor.ndim(); ++i) {
    ROUNDHOUSE_CHECK(tensor.stride(i) % 8 == 0) << name << " must have rows aligned to 16 bytes";
  }
}

void check_cache(const TensorView& cache, const TensorView& query, const char* name) {
  check_cuda(cache, name);
  check_type(cache, kBfloat16, name);
  check_dimensions(cache, 4, name);
  check_size(cache, 1, kBlock, name);
  check_size(cache, 3, query.size(2), name);
  ROUNDHOUSE_CHECK(cache.size(2) > 0 && query.size(1) % cache.size(2) == 0)
      << name << " must have a number of heads that divides that of query";
  ROUNDHOUSE_CHECK(is_dense(cache, 1)) << name << " must have contiguous heads";
  check_aligned(cache, name);
}

void check_indices(const TensorView& tensor, int dimensions, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, kInt32, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
}

// What starts, counts and tables hold is not looked at: it is on the device. No row may have more than `most` tokens,
// nor keys beyond `splits` splits.
void paged_attention_op(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache, TensorView tables,
                        TensorView starts, TensorView counts, int64_t window, TensorView scratch, int64_t most,
                        int64_t splits) {
  check_cuda(query, "query");
  check_type(query, kBfloat16, "query");
  check_dimensions(query, 3, "query");
  ROUNDHOUSE_CHECK(is_dense(query, 2)) << "query must be contiguous but for its tokens";
  ROUNDHOUSE_CHECK(query.size(2) == 64 || query.size(2) == 128) << "query must have 64 or 128 dimensions";
  check_aligned(query, "query");
  check_cuda(out, "out");
  check_type(out, kBfloat16, "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(out.numel() == query.numel()) << "out must have the size of query";
  check_aligned(out, "out");
  check_cache(key_cache, query, "key_cache");
  check_cache(value_cache, query, "value_cache");
  for (int i = 0; i < 4; ++i) {
    ROUNDHOUSE_CHECK(key_cache.stride(i) == value_cache.stride(i) && key_cache.size(2) == value_cache.size(2))
        << "value_cache must be laid out as key_cache is";
  }
  check_indices(tables, 2, "tables");
  check_indices(starts, 1, "starts");
  check_indices(counts, 1, "counts");
  check_size(tables, 0, counts.size(0), "tables");
  check_size(starts, 0, counts.size(0), "starts");
  ROUNDHOUSE_CHECK(window >= 0) << "window must not be negative";
  ROUNDHOUSE_CHECK(most >= 1 && splits >= 1) << "most and splits must be positive";
  check_cuda(scratch, "scratch");
  check_type(scratch, kUint8, "scratch");
  check_aligned(scratch, "scratch");
  const int64_t heads = query.size(1), dim = query.size(2);
  const PagedAttention p{data<bfloat16>(out),
                         data<bfloat16>(query),
                         query.stride(0),
                         data<bfloat16>(key_cache),
                         data<bfloat16>(value_cache),
                         key_cache.stride(0),
                         key_cache.stride(1),
                         key_cache.stride(2),
                         data<int32_t>(tables),
                         tables.size(1),
                         data<int32_t>(starts),
                         data<int32_t>(counts),
                         static_cast<int>(query.size(0)),
                         static_cast<int>(counts.size(0)),
                         static_cast<int>(heads),
                         static_cast<int>(key_cache.size(2)),
                         static_cast<int>(dim),
                         static_cast<int>(most),
                         static_cast<int>(splits),
                         static_cast<int>(window),
                         static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))),
                         scratch.data_ptr()};
  ROUNDHOUSE_CHECK(scratch.numel() >= p.scratch_bytes())
      << "scratch has " << scratch.numel() << " bytes instead of " << p.scratch_bytes();
  paged_attention(p, stream_of(query));
}

// Bytes that `scratch` must have.
int64_t paged_attention_scratch(int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim, int64_t most, int64_t splits) {
  PagedAttention p{};
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
