// The number formats of tensors, as their bits, and their conversions to and from fp32.
#pragma once

#include <cstdint>
#include <cstring>

namespace roundhouse {

struct bfloat16 {
  uint16_t bits;
};

struct float16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bfloat16 x) {
  const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

// To the nearest, ties to even; what is not a number stays so.
inline bfloat16 to_bfloat16(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof(word));
  if ((word & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((word >> 16) | 0x40u)};
  return {static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16)};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bfloat16 from_float<bfloat16>(float x) {
  return to_bfloat16(x);
}

}  // namespace roundhouse
