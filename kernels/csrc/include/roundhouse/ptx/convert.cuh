// Between number formats, two or four values a register.
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda::ptx {

template <class To, class From>
ROUNDHOUSE_DEVICE To bits(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &value, sizeof(To));
  return to;
}

// Two bf16 in a register, the first in the lower half, rounded to nearest even.
ROUNDHOUSE_DEVICE uint32_t pack_bf16(float low, float high) { return bits<uint32_t>(__floats2bfloat162_rn(low, high)); }

ROUNDHOUSE_DEVICE float low_bf16(uint32_t pair) { return bits<float>(pair << 16); }
ROUNDHOUSE_DEVICE float high_bf16(uint32_t pair) { return bits<float>(pair & 0xffff0000u); }

// Two to the x, to about two units in the last place; results below the smallest normal number are 0.
ROUNDHOUSE_DEVICE float exp2(float x) {
#if defined(ROUNDHOUSE_EMULATOR)
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace roundhouse::cuda::ptx
