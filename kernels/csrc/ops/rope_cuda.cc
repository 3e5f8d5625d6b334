#include "roundhouse/rope.h"

#include "ops/cuda.h"

namespace roundhouse::cuda {
namespace {

void check_heads(const TensorView& x, const TensorView& query, const char* name) {
  check_cuda(x, name);
  check_type(x, query.dtype(), name);
  check_dimensions(x, 3, name);
  ROUNDHOUSE_CHECK(is_dense(x, 2)) << name << " must be contiguous but for its tokens";
  check_size(x, 0, query.size(0), name);
  check_size(x, 2, query.size(2), name);
}

void check_cache(const TensorView& cache, const TensorView& key, const char* name) {
  check_cuda(cache, name);
  check_type(cache, key.dtype(), name);
  check_dimensions(cache, 4, name);
  check_size(cache, 1, kBlock, name);
  check_size(cache, 2, key.size(1), name);
  check_size(cache, 3, key.size(2), name);
  ROUNDHOUSE_CHECK(is_dense(cache, 1)) << name << " must have contiguous heads";
}

void check_indices(const TensorView& tensor, int64_t tokens, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, kInt64, name);
  check_dimensions(tensor, 1, name);
  check_size(tensor, 0, tokens, name);
  check_dense(tensor, name);
}

template <class T>
void run(TensorView query, TensorView key, TensorView value, TensorView table, TensorView rotations, TensorView key_cache,
         TensorView value_cache, TensorView slots) {
  const RopeAndStore<T> p{data<T>(query),
                          data<T>(key),
                          data<T>(value),
                          query.stride(0),
                          key.stride(0),
                          value.stride(0),
                          data<float>(table),
                          data<int64_t>(rotations),
                          data<T>(key_cache),
                          data<T>(value_cache),
                          key_cache.stride(0),
                          key_cache.stride(1),
                          key_cache.stride(2),
                          data<int64_t>(slots),
                          query.size(0),
                          static_cast<int>(query.size(1)),
                          static_cast<int>(key.size(1)),
                          static_cast<int>(query.size(2))};
  rope_and_store(p, stream_of(query));
}

// What rotations and slots hold is not looked at: it is on the device.
void rope_and_store_op(TensorView query, TensorView key, TensorView value, TensorView table, TensorView rotations,
                       TensorView key_cache, TensorView value_cache, TensorView slots) {
  ROUNDHOUSE_CHECK(is(query, kFloat32) || is(query, kBfloat16)) << "query must be float32 or bfloat16";
  check_dimensions(query, 3, "query");
  ROUNDHOUSE_CHECK(query.size(2) % 2 == 0) << "query must have an even number of dimensions";
  check_heads(query, query, "query");
  check_heads(key, query, "key");
  check_heads(value, query, "value");
  check_size(value, 1, key.size(1), "value");
  check_cuda(table, "table");
  check_type(table, kFloat32, "table");
  check_dimensions(table, 2, "table");
  check_dense(table, "table");
  check_size(table, 1, query.size(2), "table");
  check_cache(key_cache, key, "key_cache");
  check_cache(value_cache, key, "value_cache");
  for (int i = 0; i < 4; ++i) {
    ROUNDHOUSE_CHECK(key_cache.stride(i) == value_cache.stride(i)) << "value_cache must be laid out as key_cache is";
  }
  check_indices(rotations, query.size(0), "rotations");
  check_indices(slots, query.size(0), "slots");
  if (is(query, kFloat32)) return run<float>(query, key, value, table, rotations, key_cache, value_cache, slots);
  run<bfloat16>(query, key, value, table, rotations, key_cache, value_cache, slots);
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rope_and_store, roundhouse::cuda::rope_and_store_op);
