// What all device code starts from: CUDA, or the emulator in its place.
#pragma once

#if defined(ROUNDHOUSE_EMULATOR)
#include "emulator/cuda.h"
#define ROUNDHOUSE_DEVICE inline
#define ROUNDHOUSE_HOST_DEVICE inline
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define ROUNDHOUSE_DEVICE __device__ __forceinline__
#define ROUNDHOUSE_HOST_DEVICE __host__ __device__ __forceinline__
#endif

#include <cstddef>
#include <cstdint>

#include "roundhouse/types.h"

namespace roundhouse::cuda {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = ~0u;

ROUNDHOUSE_DEVICE int warp_of_thread() { return static_cast<int>(threadIdx.x) / kWarp; }
ROUNDHOUSE_DEVICE int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }

ROUNDHOUSE_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace roundhouse::cuda
