// The arguments that say where a layer's keys and values are, for the ops that read or write them.
#pragma once

#include <type_traits>

#include "ops/check.h"

namespace roundhouse {

// torch.float8_e4m3fn.
constexpr DLDataType kFloat8{kDLFloat8_e4m3fn, 8, 1};

// `Device` has a PagedCache<C>, the types bfloat16, float8 and float16, which is void if it keeps none, kBlock, and
// check(tensor, name): that a tensor is on it.
template <class Device>
struct CacheArguments {
  static constexpr bool kHasFloat16 = !std::is_void<typename Device::float16>::value;
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

  // Calls run(PagedCache<C>) with the type C of the cache, which is `T` or a smaller one.
  template <class T, class Run>
  void visit(const Run& run) const {
    if (is(keys, kInt8)) return run(cache<int8_t>());
    if constexpr (kHasFloat16) {
      if (is(keys, kFloat16)) return run(cache<typename Device::float16>());
    }
    if (is(keys, kFloat8)) return run(cache<typename Device::float8>());
    if (is(keys, kBfloat16)) return run(cache<typename Device::bfloat16>());
    run(cache<T>());
  }

 private:
  static void check_one(const TensorView& cache, const TensorView& query, const char* name) {
    Device::check(cache, name);
    ROUNDHOUSE_CHECK(is(cache, query.dtype()) || is(cache, kBfloat16) || is(cache, kFloat8) || is(cache, kInt8) ||
                     (kHasFloat16 && is(cache, kFloat16)))
        << name << " has another type than query, bfloat16, " << (kHasFloat16 ? "float16, " : "") << "float8_e4m3fn or int8";
    check_dimensions(cache, 4, name);
    check_size(cache, 1, Device::kBlock, name);
    check_size(cache, 3, query.size(2), name);
    ROUNDHOUSE_CHECK(is_dense(cache, 1)) << name << " must have contiguous heads";
  }

  static void check_scales(const TensorView& scales, const TensorView& cache, const char* name) {
    Device::check(scales, name);
    check_type(scales, kFloat32, name);
    check_dimensions(scales, 3, name);
    for (int i = 0; i < 3; ++i) check_size(scales, i, cache.size(i), name);
    ROUNDHOUSE_CHECK(scales.stride(1) == 1) << name << " must have contiguous tokens";
  }

  template <class C>
  typename Device::template PagedCache<C> cache() const {
    typename Device::template PagedCache<C> found{};
    found.keys = data<C>(keys);
    found.values = data<C>(values);
    found.block_stride = keys.stride(0);
    found.token_stride = keys.stride(1);
    found.head_stride = keys.stride(2);
    if (is(keys, kInt8)) {
      found.key_scales = data<float>(key_scales);
      found.value_scales = data<float>(value_scales);
      found.scale_block_stride = key_scales.stride(0);
      found.scale_head_stride = key_scales.stride(2);
    }
    return found;
  }
};

}  // namespace roundhouse
