// Several neighbouring elements as one load or store, and as fp32.
#pragma once

#include "roundhouse/ptx/convert.cuh"

namespace roundhouse::cuda {

// Elements in 16 bytes, the widest access of a thread.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

ROUNDHOUSE_DEVICE float to_float(float x) { return x; }
ROUNDHOUSE_DEVICE float to_float(bfloat16 x) { return __bfloat162float(x); }

template <class T>
ROUNDHOUSE_DEVICE T from_float(float x);
template <>
ROUNDHOUSE_DEVICE float from_float<float>(float x) { return x; }
template <>
ROUNDHOUSE_DEVICE bfloat16 from_float<bfloat16>(float x) { return __float2bfloat16_rn(x); }

// kCount elements from an address aligned to their size.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];

  static ROUNDHOUSE_DEVICE Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
  ROUNDHOUSE_DEVICE void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }

  ROUNDHOUSE_DEVICE float get(int i) const { return to_float(at[i]); }
  ROUNDHOUSE_DEVICE void set(int i, float x) { at[i] = from_float<T>(x); }
};

}  // namespace roundhouse::cuda
