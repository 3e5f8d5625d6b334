// A layer's keys and values as the CUDA ops take them.
#pragma once

#include "ops/cuda.h"
#include "ops/paged_cache.h"
#include "roundhouse/attention.h"

namespace roundhouse::cuda {

struct CudaCaches {
  template <class C>
  using PagedCache = cuda::PagedCache<C>;
  using bfloat16 = cuda::bfloat16;
  using float16 = void;
  using float8 = cuda::float8;
  static constexpr int64_t kBlock = cuda::kBlock;
  static void check(const TensorView& tensor, const char* name) { check_cuda(tensor, name); }
};

using CudaCacheArguments = CacheArguments<CudaCaches>;

}  // namespace roundhouse::cuda
