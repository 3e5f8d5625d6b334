#include "cpu/attention.h"

#include <type_traits>

#include "ops/cpu_cache.h"

namespace roundhouse {
namespace {

template <class T>
void run(TensorView out, TensorView query, const CpuCacheArguments& arguments, TensorView tables, TensorView starts,
         TensorView counts, int64_t window, TensorView scratch) {
  arguments.visit<T>([&](const auto& cache) {
    paged_attention(PagedAttention<T, std::remove_pointer_t<decltype(cache.keys)>>{
        data<T>(out), data<T>(query), query.stride(0), cache, data<int32_t>(tables), tables.size(1), data<int32_t>(starts),
        data<int32_t>(counts), counts.size(0), query.size(1), arguments.keys.size(2), query.size(2), window,
        data<uint8_t>(scratch), scratch.numel()});
  });
}

void check_indices(const TensorView& tensor, int dimensions, const char* name) {
  check_cpu(tensor, name);
  check_type(tensor, kInt32, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
}

void paged_attention_op(TensorView out, TensorView query, TensorView key_cache, TensorView value_cache, TensorView key_scales,
                        TensorView value_scales, TensorView tables, TensorView starts, TensorView counts, int64_t window,
                        TensorView scratch) {
  check_cpu(query, "query");
  ROUNDHOUSE_CHECK(is(query, kFloat32) || is(query, kBfloat16)) << "query must be float32 or bfloat16";
  check_dimensions(query, 3, "query");
  ROUNDHOUSE_CHECK(is_dense(query, 2)) << "query must be contiguous but for its tokens";
  check_cpu(out, "out");
  check_type(out, query.dtype(), "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(out.numel() == query.numel()) << "out must have the size of query";
  const CpuCacheArguments cache{key_cache, value_cache, key_scales, value_scales};
  cache.check(query);
  ROUNDHOUSE_CHECK(query.size(1) % key_cache.size(2) == 0) << "key_cache must have a number of heads that divides query's";
  check_indices(tables, 2, "tables");
  check_indices(starts, 1, "starts");
  check_indices(counts, 1, "counts");
  check_size(tables, 0, counts.size(0), "tables");
  check_size(starts, 0, counts.size(0), "starts");
  ROUNDHOUSE_CHECK(window >= 0) << "window must not be negative";
  check_type(scratch, kUint8, "scratch");
  check_dense(scratch, "scratch");
  ROUNDHOUSE_CHECK(scratch.numel() >= paged_attention_scratch(query.size(1), key_cache.size(2), query.size(2), 1, 0, 0))
      << "scratch is too small";
  int64_t tokens = 0;
  for (int64_t row = 0; row < counts.size(0); ++row) {
    const int64_t start = data<int32_t>(starts)[row], count = data<int32_t>(counts)[row];
    ROUNDHOUSE_CHECK(start >= 0 && count >= 0) << "starts and counts must not be negative";
    ROUNDHOUSE_CHECK(start + count <= tables.size(1) * kBlock) << "tables is too narrow for row " << row;
    tokens += count;
  }
  ROUNDHOUSE_CHECK(tokens == query.size(0)) << "counts must add up to the tokens of query";
  if (is(query, kFloat32)) return run<float>(out, query, cache, tables, starts, counts, window, scratch);
  run<bfloat16>(out, query, cache, tables, starts, counts, window, scratch);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention, roundhouse::paged_attention_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(paged_attention_scratch, roundhouse::paged_attention_scratch);
