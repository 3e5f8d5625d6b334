// What the launchers' declarations use; plain C++.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace roundhouse::cuda {

using bfloat16 = __nv_bfloat16;
using float8 = __nv_fp8_e4m3;

// Where to launch: a CUDA stream and its device.
struct Stream {
  void* handle;
  int device;
};

}  // namespace roundhouse::cuda
