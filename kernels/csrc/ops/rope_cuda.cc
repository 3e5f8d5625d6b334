#include "roundhouse/rope.h"

#include <type_traits>

#include "ops/cuda_cache.h"

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

void check_indices(const TensorView& tensor, int64_t tokens, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, kInt64, name);
  check_dimensions(tensor, 1, name);
  check_size(tensor, 0, tokens, name);
  check_dense(tensor, name);
}

template <class T>
void run(TensorView query, TensorView key, TensorView value, TensorView table, TensorView rotations,
         const CudaCacheArguments& arguments, TensorView slots) {
  arguments.visit<T>([&](const auto& cache) {
    const RopeAndStore<T, std::remove_pointer_t<decltype(cache.keys)>> p{data<T>(query),
                                                                         data<T>(key),
                                                                         data<T>(value),
                                                                         query.stride(0),
                                                                         key.stride(0),
                                                                         value.stride(0),
                                                                         data<float>(table),
                                                                         data<int64_t>(rotations),
                                                                         cache,
                                                                         data<int64_t>(slots),
                                                                         query.size(0),
                                                                         static_cast<int>(query.size(1)),
                                                                         static_cast<int>(key.size(1)),
                                                                         static_cast<int>(query.size(2)),
                                                                         static_cast<int>(table.size(1))};
    rope_and_store(p, stream_of(query));
  });
}

// What rotations and slots hold is not looked at: it is on the device.
void rope_and_store_op(TensorView query, TensorView key, TensorView value, TensorView table, TensorView rotations,
                       TensorView key_cache, TensorView value_cache, TensorView key_scales, TensorView value_scales,
                       TensorView slots) {
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
  ROUNDHOUSE_CHECK(table.size(1) % 2 == 0 && table.size(1) <= query.size(2))
      << "table must have an even number of columns, at most query's dimensions";
  const CudaCacheArguments cache{key_cache, value_cache, key_scales, value_scales};
  cache.check(key);
  check_size(key_cache, 2, key.size(1), "key_cache");
  ROUNDHOUSE_CHECK(is(key_cache, key.dtype()) || query.size(2) <= kMostDimensions)
      << "query must have at most " << kMostDimensions << " dimensions with this cache";
  check_indices(rotations, query.size(0), "rotations");
  check_indices(slots, query.size(0), "slots");
  if (is(query, kFloat32)) return run<float>(query, key, value, table, rotations, cache, slots);
  run<bfloat16>(query, key, value, table, rotations, cache, slots);
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rope_and_store, roundhouse::cuda::rope_and_store_op);
