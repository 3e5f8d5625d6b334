// Sums and maxima over the threads of a warp or a block, in an order that is always the same. Every thread receives them.
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda {

struct Sum {
  template <class T>
  ROUNDHOUSE_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  ROUNDHOUSE_DEVICE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Over kLanes neighbouring lanes, a power of two.
template <int kLanes = kWarp, class T, class Operation>
ROUNDHOUSE_DEVICE T reduce_warp(T value, Operation operation) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = operation(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Over kWarps warps that are all of the block's. `shared` has a T for each; it must not be in use, and may be used again
// after the next barrier.
template <int kWarps, class T, class Operation>
ROUNDHOUSE_DEVICE T reduce_block(T value, Operation operation, T* shared) {
  static_assert(kWarps >= 1 && kWarps <= kWarp && (kWarps & (kWarps - 1)) == 0, "a power of two");
  value = reduce_warp(value, operation);
  if constexpr (kWarps == 1) return value;
  if (lane_of_thread() == 0) shared[warp_of_thread()] = value;
  __syncthreads();
  return reduce_warp<kWarps>(shared[lane_of_thread() % kWarps], operation);
}

}  // namespace roundhouse::cuda
