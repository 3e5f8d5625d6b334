// The names of CUDA that device code uses, for the emulator.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/emulator.h"

#define threadIdx (::roundhouse::emulator::position().thread)
#define blockIdx (::roundhouse::emulator::position().block)
#define blockDim (::roundhouse::emulator::position().threads)
#define gridDim (::roundhouse::emulator::position().blocks)

inline void __syncthreads() { roundhouse::emulator::barrier(); }

inline void __syncwarp(uint32_t mask = ~0u) {
  roundhouse::emulator::together(mask, nullptr, [](void* const*, uint32_t) {});
}

namespace roundhouse::emulator {

// Every lane of `mask` gets what another passed: lane `from(lane)`, or itself where that is not in the mask.
template <class T>
struct Exchange {
  T passed, received;
  unsigned from;
};

template <class T>
T exchange(uint32_t mask, T value, unsigned from) {
  Exchange<T> own{value, value, from};
  together(mask, &own, [](void* const* all, uint32_t lanes) {
    for (unsigned i = 0; i < 32; ++i) {
      if (!(lanes >> i & 1)) continue;
      auto* lane = static_cast<Exchange<T>*>(all[i]);
      if (lane->from < 32 && (lanes >> lane->from & 1)) lane->received = static_cast<Exchange<T>*>(all[lane->from])->passed;
    }
  });
  return own.received;
}

}  // namespace roundhouse::emulator

template <class T>
T __shfl_sync(uint32_t mask, T value, int lane) {
  return roundhouse::emulator::exchange(mask, value, static_cast<unsigned>(lane) % 32);
}

template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits) {
  return roundhouse::emulator::exchange(mask, value, roundhouse::emulator::position().lane ^ static_cast<unsigned>(bits));
}

template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned distance) {
  return roundhouse::emulator::exchange(mask, value, roundhouse::emulator::position().lane - distance);
}

template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned distance) {
  return roundhouse::emulator::exchange(mask, value, roundhouse::emulator::position().lane + distance);
}

inline unsigned __ballot_sync(uint32_t mask, bool vote) {
  struct Lane {
    bool vote;
    unsigned votes;
  } own{vote, 0};
  roundhouse::emulator::together(mask, &own, [](void* const* all, uint32_t lanes) {
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i) {
      if (lanes >> i & 1) votes |= static_cast<unsigned>(static_cast<Lane*>(all[i])->vote) << i;
    }
    for (unsigned i = 0; i < 32; ++i) {
      if (lanes >> i & 1) static_cast<Lane*>(all[i])->votes = votes;
    }
  });
  return own.votes;
}

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

using std::max;
using std::min;

// Fibers do not interrupt each other.
template <class T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
