// Which rows a block has where rows are sorted by expert.
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda {

// Rows [first, end) of an expert.
struct ExpertTile {
  int expert;
  int64_t first, end;
};

// Tiles that are enough for any numbers of rows of the experts.
inline unsigned most_tiles(int64_t rows, int64_t experts, int64_t rows_of_tile) {
  return static_cast<unsigned>(rows / rows_of_tile + (rows < experts ? rows : experts));
}

// The tile of block blockIdx.x, by one warp; one without rows if there are fewer. Experts, whose rows end at `ends`, have as
// many tiles of up to kRows rows as they need, in order.
template <int kRows>
ROUNDHOUSE_DEVICE void find_tile(const int64_t* ends, int64_t experts, ExpertTile& tile) {
  const int lane = lane_of_thread();
  if (lane == 0) tile = ExpertTile{0, 0, 0};
  __syncwarp();
  int64_t before = 0;
  for (int64_t base = 0; base < experts; base += kWarp) {
    const int64_t expert = base + lane;
    const int64_t end = expert < experts ? ends[expert] : 0, begin = expert < experts && expert > 0 ? ends[expert - 1] : 0;
    const int64_t own = (end - begin + kRows - 1) / kRows;
    int64_t tiles = own;  // a sum over the lanes up to this one
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int64_t more = __shfl_up_sync(kAllLanes, tiles, distance);
      if (lane >= distance) tiles += more;
    }
    const int64_t number = static_cast<int64_t>(blockIdx.x) - before - (tiles - own);
    if (number >= 0 && number < own) {
      const int64_t first = begin + number * kRows;
      tile = ExpertTile{static_cast<int>(expert), first, min(first + kRows, end)};
    }
    before += __shfl_sync(kAllLanes, tiles, kWarp - 1);
  }
}

}  // namespace roundhouse::cuda
