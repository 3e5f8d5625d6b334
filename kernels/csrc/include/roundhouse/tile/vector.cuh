// Several neighbouring elements as one load or store, and as fp32.
#pragma once

#include "roundhouse/ptx/convert.cuh"

namespace roundhouse::cuda {

// Elements in 16 bytes, the widest access of a thread.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

ROUNDHOUSE_DEVICE float to_float(float x) { return x; }
ROUNDHOUSE_DEVICE float to_float(bfloat16 x) { return __bfloat162float(x); }
ROUNDHOUSE_DEVICE float to_float(int8_t x) { return static_cast<float>(x); }
ROUNDHOUSE_DEVICE float to_float(float8 x) {
  // Exponent and fraction in their places in fp32, whose exponent has 120 more to its bias; denormals are right too.
  const uint32_t word = x.__x, magnitude = word & 0x7fu;
  return magnitude == 0x7fu ? NAN : ptx::bits<float>((word & 0x80u) << 24 | magnitude << 20) * 0x1p120f;
}

template <class T>
ROUNDHOUSE_DEVICE T from_float(float x);
template <>
ROUNDHOUSE_DEVICE float from_float<float>(float x) { return x; }
template <>
ROUNDHOUSE_DEVICE bfloat16 from_float<bfloat16>(float x) { return __float2bfloat16_rn(x); }
// Of numbers within [-127, 127].
template <>
ROUNDHOUSE_DEVICE int8_t from_float<int8_t>(float x) { return static_cast<int8_t>(__float2int_rn(x)); }
// Numbers beyond 448 become 448.
template <>
ROUNDHOUSE_DEVICE float8 from_float<float8>(float x) {
  float8 y;
  y.__x = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  return y;
}

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
