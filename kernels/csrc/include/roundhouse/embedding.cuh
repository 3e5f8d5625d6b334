// Bodies of the gathering of rows.
#pragma once

#include "roundhouse/embedding.h"
#include "roundhouse/ptx/trap.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// A block copies a piece of one row, kBytes at a time, to which everything is aligned.
template <int kBytes>
struct GatherRowsBody {
  using Params = GatherRows;
  using V = Vector<char, kBytes>;
  static constexpr int kThreads = 128, kLoads = 2;
  static constexpr int kPiece = kThreads * kBytes * kLoads;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t row = p.rows[blockIdx.x];
    if (row < 0 || row >= p.height) ptx::trap();
    V values[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (position(load) < p.bytes) values[load] = V::load(p.table + row * p.stride + position(load));
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (position(load) < p.bytes) values[load].store(p.out + static_cast<int64_t>(blockIdx.x) * p.bytes + position(load));
    }
  }

  static ROUNDHOUSE_DEVICE int64_t position(int load) {
    return static_cast<int64_t>(blockIdx.y) * kPiece + (load * kThreads + threadIdx.x) * kBytes;
  }
};

}  // namespace roundhouse::cuda
