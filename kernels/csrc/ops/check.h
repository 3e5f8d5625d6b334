// What every binding asks of its tensors. An error names the argument and what it should have been.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>

namespace roundhouse {

using tvm::ffi::TensorView;

constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kBfloat16{kDLBfloat, 16, 1};
constexpr DLDataType kFloat16{kDLFloat, 16, 1};
constexpr DLDataType kInt8{kDLInt, 8, 1};
constexpr DLDataType kUint8{kDLUInt, 8, 1};
constexpr DLDataType kInt32{kDLInt, 32, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};

inline bool is(const TensorView& tensor, DLDataType type) {
  const DLDataType found = tensor.dtype();
  return found.code == type.code && found.bits == type.bits && found.lanes == type.lanes;
}

#define ROUNDHOUSE_CHECK(condition) \
  if (!(condition)) TVM_FFI_THROW(ValueError)

// Refuses a tensor that is elsewhere; the name is the argument's.
using CheckDevice = void (*)(const TensorView& tensor, const char* name);

inline void check_cpu(const TensorView& tensor, const char* name) {
  ROUNDHOUSE_CHECK(tensor.device().device_type == kDLCPU) << name << " must be on the CPU";
  // A tensor without memory, as torch's fake ones are.
  ROUNDHOUSE_CHECK(tensor.data_ptr() != nullptr || tensor.numel() == 0) << name << " has no memory";
}

inline void check_type(const TensorView& tensor, DLDataType type, const char* name) {
  ROUNDHOUSE_CHECK(is(tensor, type)) << name << " has another type than it should";
}

inline void check_dimensions(const TensorView& tensor, int count, const char* name) {
  ROUNDHOUSE_CHECK(tensor.ndim() == count) << name << " has " << tensor.ndim() << " dimensions instead of " << count;
}

inline void check_size(const TensorView& tensor, int dimension, int64_t size, const char* name) {
  ROUNDHOUSE_CHECK(tensor.size(dimension) == size)
      << name << " has " << tensor.size(dimension) << " elements in dimension " << dimension << " instead of " << size;
}

// Whether the last `count` dimensions lie in memory without gaps, as those without elements do.
inline bool is_dense(const TensorView& tensor, int count) {
  if (tensor.numel() == 0) return true;
  int64_t expected = 1;
  for (int i = tensor.ndim() - 1; i >= tensor.ndim() - count; --i) {
    if (tensor.size(i) != 1 && tensor.stride(i) != expected) return false;
    expected *= tensor.size(i);
  }
  return true;
}

inline void check_dense(const TensorView& tensor, const char* name) {
  ROUNDHOUSE_CHECK(is_dense(tensor, tensor.ndim())) << name << " must be contiguous";
}

template <class T>
T* data(const TensorView& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace roundhouse
