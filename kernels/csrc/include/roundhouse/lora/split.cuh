// Tiles of tokens become tiles of rows for every expert.
#pragma once

#include "roundhouse/lora.h"
#include "roundhouse/ptx/trap.cuh"

namespace roundhouse::cuda {

// A warp for a tile and an expert.
struct SplitByExpertBody {
  using Params = SplitByExpert;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t number = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread(), expert = number % p.number_of_experts;
    if (number >= p.tiles.count * p.number_of_experts) return;
    const int size = kTileHeader + p.tiles.rows, lane = lane_of_thread();
    const int32_t* tile = p.tiles.numbers + number / p.number_of_experts * size;
    int32_t* out = p.out + number * size;
    const int64_t pairs = tile[1] * p.k;
    int found = 0;
    for (int64_t first = 0; first < pairs; first += kWarp) {
      int64_t pair = 0;
      bool chosen = false;
      if (first + lane < pairs) {
        const int64_t token = tile[kTileHeader + (first + lane) / p.k];
        if (token < 0 || token >= p.tokens) ptx::trap();
        pair = token * p.k + (first + lane) % p.k;
        chosen = p.experts[pair] == expert;
      }
      const unsigned votes = __ballot_sync(kAllLanes, chosen);
      const int at = found + __popc(votes & ((1u << lane) - 1));
      found += __popc(votes);
      if (found > p.tiles.rows) ptx::trap();
      if (chosen) out[kTileHeader + at] = static_cast<int32_t>(p.places[pair]);
    }
    if (lane < kTileHeader) out[lane] = lane == 0 ? tile[0] : lane == 1 ? found : lane == 2 ? static_cast<int32_t>(expert) : 0;
  }
};

}  // namespace roundhouse::cuda
