// The end of a kernel that has found a fault.
#pragma once

#include "roundhouse/platform.cuh"
#if defined(ROUNDHOUSE_EMULATOR)
#include <stdexcept>
#endif

namespace roundhouse::cuda::ptx {

// Stops the kernel; the next call of CUDA's that waits for it reports an error.
ROUNDHOUSE_DEVICE void trap() {
#if defined(ROUNDHOUSE_EMULATOR)
  throw std::runtime_error("a kernel trapped");
#else
  asm volatile("trap;");
#endif
}

}  // namespace roundhouse::cuda::ptx
