// A layer's keys and values as the CPU ops take them.
#pragma once

#include "cpu/attention.h"
#include "cpu/narrow.h"
#include "ops/paged_cache.h"

namespace roundhouse {

struct CpuCaches {
  template <class C>
  using PagedCache = roundhouse::PagedCache<C>;
  using bfloat16 = roundhouse::bfloat16;
  using float16 = roundhouse::float16;
  using float8 = roundhouse::float8;
  static constexpr int64_t kBlock = roundhouse::kBlock;
  static void check(const TensorView& tensor, const char* name) { check_cpu(tensor, name); }
};

using CpuCacheArguments = CacheArguments<CpuCaches>;

}  // namespace roundhouse
