// Bodies of the gated activations.
#pragma once

#include "roundhouse/activation.h"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

template <Activation kActivation>
ROUNDHOUSE_DEVICE float activate(float x) {
  // Without the difference of two numbers close to 1 that the formulas have for a negative x.
  if constexpr (kActivation == Activation::kSilu) {
    return x / (1.0f + expf(-x));
  } else if constexpr (kActivation == Activation::kGelu) {
    return 0.5f * x * erfcf(-0.70710678f * x);
  } else {
    return x / (1.0f + expf(-1.5957691f * fmaf(0.044715f * x * x, x, x)));
  }
}

// Each thread takes kPerLoad neighbouring elements, kLoads times; a block, a piece of one row.
template <class T, Activation kActivation, int kPerLoad>
struct ActivateAndMultiplyBody {
  using Params = ActivateAndMultiply<T>;
  using V = Vector<T, kPerLoad>;
  static constexpr int kThreads = 128, kLoads = 2;
  static constexpr int kPiece = kThreads * kPerLoad * kLoads;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t row = blockIdx.x;
    const T *gate = p.x + row * p.stride, *up = gate + p.width;
    V gates[kLoads], ups[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t at = position(load);
      if (at >= p.width) continue;
      gates[load] = V::load(gate + at);
      ups[load] = V::load(up + at);
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int64_t at = position(load);
      if (at >= p.width) continue;
#pragma unroll
      for (int i = 0; i < kPerLoad; ++i) gates[load].set(i, activate<kActivation>(gates[load].get(i)) * ups[load].get(i));
      gates[load].store(p.out + row * p.width + at);
    }
  }

  static ROUNDHOUSE_DEVICE int64_t position(int load) {
    return static_cast<int64_t>(blockIdx.y) * kPiece + (load * kThreads + threadIdx.x) * kPerLoad;
  }
};

}  // namespace roundhouse::cuda
