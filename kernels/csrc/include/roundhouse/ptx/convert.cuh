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

#if defined(ROUNDHOUSE_EMULATOR)
// Exactly rounded: through fp32 rounded to odd, from which bf16 rounds as if from the number itself.
inline uint32_t round_bf16(double x) {
  float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) != x) {
    uint32_t word = bits<uint32_t>(nearest);
    if (std::fabs(static_cast<double>(nearest)) > std::fabs(x)) --word;
    nearest = bits<float>(word | 1);
  }
  return bits<uint16_t>(__float2bfloat16_rn(nearest));
}
#endif

// a * b + c of two bf16 each, with one rounding.
ROUNDHOUSE_DEVICE uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
#if defined(ROUNDHOUSE_EMULATOR)
  const auto of = [](float x, float y, float z) { return round_bf16(static_cast<double>(x) * y + z); };
  return of(low_bf16(a), low_bf16(b), low_bf16(c)) | of(high_bf16(a), high_bf16(b), high_bf16(c)) << 16;
#else
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#endif
}

// Levels (0 to 15) of int4 in bits 0 to 3 and 16 to 19 of a word as two bf16, exactly.
ROUNDHOUSE_DEVICE uint32_t levels_bf16(uint32_t word) {
  // 128 + level has the level as the lowest bits of its fraction. Times 1, less 128.
  return fma_bf16((word & 0x000f000fu) | 0x43004300u, 0x3f803f80u, 0xc300c300u);
}

// The two eight-bit numbers in bits 0 to 7 and 16 to 23 of a word as two bf16, exactly; other bits may be anything.
template <class T>
ROUNDHOUSE_DEVICE uint32_t widen_bf16(uint32_t word);
template <>
ROUNDHOUSE_DEVICE uint32_t widen_bf16<int8_t>(uint32_t word) {
  // 128 + the lower seven bits, less 128, or less 256 where the number is negative.
  return fma_bf16((word & 0x007f007fu) | 0x43004300u, 0x3f803f80u, (word & 0x00800080u) | 0xc300c300u);
}
template <>
ROUNDHOUSE_DEVICE uint32_t widen_bf16<float8>(uint32_t word) {
  // Exponent and fraction in their places in bf16, whose exponent has 120 more to its bias; denormals are right too. The
  // format's NaN becomes 480.
  return fma_bf16((word & 0x007f007fu) << 4 | (word & 0x00800080u) << 8, 0x7b807b80u, 0x80008000u);
}

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
