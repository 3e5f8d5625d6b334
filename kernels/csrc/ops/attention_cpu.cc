#include "cpu/attention.h"

#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

struct Arguments {
  TensorView out, query, key_cache, value_cache, tables, starts, counts, scratch;
};

template <class T>
void run(const Arguments& a, int64_t window) {
  const int64_t heads = a.query.size(1), dim = a.query.size(2);
  const PagedCache<T> cache{data<T>(a.key_cache), data<T>(a.value_cache), a.key_cache.stride(0), a.key_cache.stride(2),
                            a.key_cache.stride(1)};
  paged_attention(PagedAttention<T, T>{data<T>(a.out), data<T>(a.query), a.query.stride(0), cache, data<int32_t>(a.tables),
                                       a.tables.size(1), data<int32_t>(a.starts), data<int32_t>(a.counts),
                                       a.counts.size(0), heads, a.key_cache.size(2), dim, window,
                                       data<uint8_t>(a.scratch), a.scratch.numel()});
}

void check_cache(const TensorView& cache, const TensorView& query, const char* name) {
  check_cpu(cache, name);
  check_type(cache, query.dtype(), name);
  check_dimensions(cache, 4, name);
  check_size(cache, 1, kBlock, name);
  check_size(cache, 3, query.size(2), name);
  ROUNDHOUSE_CHECK(cache.size(2) > 0 && query.size(1) % cache.size(2) == 0)
      << name << " must have a number of heads that divides that of query";
  ROUNDHOUSE_CHECK(is_dense(cache, 1)) << name << " must have contiguous heads";
}

void check_indices(const TensorView& tensor, int dimensions, const char* name) {
  check_cpu(tensor, name);
  check_type(tensor, kInt32, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
}

void paged_attention_op(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache, TensorView tables,
                        TensorView starts, TensorView counts, int64_t window, TensorView scratch) {
  check_cpu(query, "query");
  ROUNDHOUSE_CHECK(is(query, kFloat32) || is(query, kBfloat16)) << "query must be float32 or bfloat16";
  check_dimensions(query, 3, "query");
  ROUNDHOUSE_CHECK(is_dense(query, 2)) << "query must be contiguous but for its tokens";
  check_cpu(out, "out");
  check_type(out, query.dtype(), "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(out.numel() == query.numel()) << "out must have the size of query";
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
  check_type(scratch, kUint8, "scratch");
  check_dense(scratch, "scratch");
  ROUNDHOUSE_CHECK(scratch.numel() >= paged_attention_scratch(query.size(1), key_cache.size(2), query.size(2), 1))
      << "scratch is too small";
  int64_t tokens = 0;
  for (int64_t row = 0; row < counts.size(0); ++row) {
    const int64_t start = data<int32_t>(starts)[row], count = data<int32_t>(counts)[row];
    ROUNDHOUSE_CHECK(start >= 0 && count >= 0) << "starts and counts must not be negative";
    ROUNDHOUSE_CHECK(start + count <= tables.size(1) * kBlock) << "tables is too narrow for row " << row;
    tokens += count;
  }
  ROUNDHOUSE_CHECK(tokens == query.size(0)) << "counts must add up to the tokens of query";
  const Arguments arguments{out, query, key_cache, value_cache, tables, starts, counts, scratch};
  if (is(query, kFloat32)) return run<float>(arguments, window);
  run<bfloat16>(arguments, window);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention, roundhouse::paged_attention_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention_scratch, roundhouse::paged_attention_scratch);
