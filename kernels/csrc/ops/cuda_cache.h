// The arguments that say where a layer's keys and values are, for the CUDA ops that read or write them.
#pragma once

#include "ops/cuda.h"
#include "roundhouse/attention.h"

namespace roundhouse::cuda {

// torch.float8_e4m3fn.
constexpr DLDataType kFloat8{kDLFloat8_e4m3fn, 8, 1};

struct CacheArguments {
  TensorView keys, values, key_scales, value_scales;

  // Checks them against query or key [tokens, heads, dim].
  void check(const TensorView& query) const {
    check_one(keys, query, "key_cache");
    check_one(values, query, "value_cache");
    check_type(values, keys.dtype(), "value_cache");
    ROUNDHOUSE_CHECK(keys.size(2) > 0) << "key_cache must have heads";
    for (int i = 0; i < 4; ++i) {
      ROUNDHOUSE_CHECK(keys.stride(i) == values.stride(i) && keys.size(2) == values.size(2))
          << "value_cache must be laid out as key_cache is";
    }
    if (!is(keys, kInt8)) return;
    check_scales(key_scales, keys, "key_scales");
    check_scales(value_scales, values, "value_scales");
    ROUNDHOUSE_CHECK(key_scales.stride(0) == value_scales.stride(0) && key_scales.stride(2) == value_scales.stride(2))
        << "value_scales must be laid out as key_scales are";
  }

  // Calls run(PagedCache<C>) with the type of the cache, which is `T` or a smaller one.
  template <class T, class Run>
  void visit(const Run& run) const {
    if (is(keys, kInt8)) return run(cache<int8_t>());
    if (is(keys, kFloat8)) return run(cache<float8>());
    if (is(keys, kBfloat16)) return run(cache<bfloat16>());
    run(cache<T>());
  }

 private:
  static void check_one(const TensorView& cache, const TensorView& query, const char* name) {
    check_cuda(cache, name);
    ROUNDHOUSE_CHECK(is(cache, query.dtype()) || is(cache, kBfloat16) || is(cache, kFloat8) || is(cache, kInt8))
        << name << " has another type than query, bfloat16, float8_e4m3fn or int8";
    check_dimensions(cache, 4, name);
    check_size(cache, 1, kBlock, name);
    check_size(cache, 3, query.size(2), name);
    ROUNDHOUSE_CHECK(is_dense(cache, 1)) << name << " must have contiguous heads";
  }

  static void check_scales(const TensorView& scales, const TensorView& cache, const char* name) {
    check_cuda(scales, name);
    check_type(scales, kFloat32, name);
    check_dimensions(scales, 3, name);
    for (int i = 0; i < 3; ++i) check_size(scales, i, cache.size(i), name);
    ROUNDHOUSE_CHECK(scales.stride(1) == 1) << name << " must have contiguous tokens";
  }

  template <class C>
  PagedCache<C> cache() const {
    const bool scaled = is(keys, kInt8);
    return {data<C>(keys),
            data<C>(values),
            keys.stride(0),
            keys.stride(1),
            keys.stride(2),
            scaled ? data<float>(key_scales) : nullptr,
            scaled ? data<float>(value_scales) : nullptr,
            scaled ? key_scales.stride(0) : 0,
            scaled ? key_scales.stride(2) : 0};
  }
};

}  // namespace roundhouse::cuda
