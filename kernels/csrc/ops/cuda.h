// What the CUDA bindings share. In the emulator's library their tensors are on the CPU.
#pragma once

#include <tvm/ffi/extra/c_env_api.h>

#include "ops/check.h"
#include "roundhouse/types.h"

namespace roundhouse::cuda {

#if defined(ROUNDHOUSE_EMULATOR)

inline void check_cuda(const TensorView& tensor, const char* name) { check_cpu(tensor, name); }
inline Stream stream_of(const TensorView&) { return {nullptr, 0}; }

#else

inline void check_cuda(const TensorView& tensor, const char* name) {
  ROUNDHOUSE_CHECK(tensor.device().device_type == kDLCUDA) << name << " must be on CUDA";
  ROUNDHOUSE_CHECK(tensor.data_ptr() != nullptr || tensor.numel() == 0) << name << " has no memory";
}

// torch's current stream on the device of `tensor`. tvm-ffi takes it over from torch with every call.
inline Stream stream_of(const TensorView& tensor) {
  const DLDevice device = tensor.device();
  return {TVMFFIEnvGetStream(device.device_type, device.device_id), device.device_id};
}

#endif

}  // namespace roundhouse::cuda
