// The first half of LoRA: x A^T, of few ranks and many inputs.
//
// A block has kRows rows, up to kRanks ranks and the inputs of a split, of which each of its eight warps has a slice. Lanes
// load what they multiply straight into registers: of a row of x and of A the same inputs, 16 bytes, in whatever order the
// matrix products take them. Slices are added in order.
#pragma once

#include "roundhouse/lora/tables.cuh"
#include "roundhouse/ptx/mma.cuh"

namespace roundhouse::cuda {

// sums += rows of x times ranks of A, 16 by 8, laid out as ptx/mma.cuh says. With g = lane / 4 and t = lane % 4 a lane has
// 16 bytes of rows g and g + 8 and of kLoads ranks.
template <class T>
struct ShrinkProduct;

template <>
struct ShrinkProduct<bfloat16> {
  static constexpr int kInputs = 32, kLoads = 1;

  static ROUNDHOUSE_DEVICE int rank(int) { return lane_of_thread() / 4; }
  static ROUNDHOUSE_DEVICE int input() { return lane_of_thread() % 4 * 8; }

  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[4], const uint4 (&x)[2], const uint4 (&a)[kLoads]) {
    ptx::mma_bf16(sums, {x[0].x, x[1].x, x[0].y, x[1].y}, {a[0].x, a[0].y});
    ptx::mma_bf16(sums, {x[0].z, x[1].z, x[0].w, x[1].w}, {a[0].z, a[0].w});
  }
};

template <>
struct ShrinkProduct<float> {
  static constexpr int kInputs = 4, kLoads = 2;

  static ROUNDHOUSE_DEVICE int rank(int load) { return lane_of_thread() % 4 * 2 + load; }
  static ROUNDHOUSE_DEVICE int input() { return 0; }

  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[4], const uint4 (&x)[2], const uint4 (&a)[kLoads]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 row = ptx::bits<float4>(x[i / 2]), rank = ptx::bits<float4>(a[i % 2]);
      sums[i] = fmaf(row.x, rank.x, sums[i]);
      sums[i] = fmaf(row.y, rank.y, sums[i]);
      sums[i] = fmaf(row.z, rank.z, sums[i]);
      sums[i] = fmaf(row.w, rank.w, sums[i]);
    }
  }
};

template <class T, int kGroups>
struct ShrinkBody {
  using Params = AdaptRows<T>;
  using Product = ShrinkProduct<T>;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp, kRows = 16 * kGroups;
  static constexpr int kChunks = 4, kRanks = kChunks * static_cast<int>(kLoraChunk), kSlice = kLoraSplit / kWarps;

  struct Shared {
    float sums[kWarps][kRows][kRanks + 8];  // rows begin in other banks
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const LoraTile tile(p, blockIdx.x);
    if (tile.site == nullptr) return;
    const int splits = p.splits, split = static_cast<int>(blockIdx.y) % splits;
    const int first = static_cast<int>(blockIdx.y) / splits * kRanks, ranks = min(kRanks, static_cast<int>(tile.site->ranks) - first);
    if (ranks <= 0) return;
    float sums[kGroups][kChunks][4] = {};
    if (p.aligned && p.width % kVector<T> == 0) {
      multiply<true>(sums, p, tile, split, first, ranks);
    } else {
      multiply<false>(sums, p, tile, split, first, ranks);
    }
    leave(shared, sums);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kRanks; i += kThreads) {
      const int64_t row = tile.row(p, i / kRanks);
      if (row < 0 || i % kRanks >= ranks) continue;
      float sum = 0.0f;
#pragma unroll
      for (int slice = 0; slice < kWarps; ++slice) sum += shared.sums[slice][i / kRanks][i % kRanks];
      p.scratch[row * p.room + split * tile.site->ranks + first + i % kRanks] = sum;
    }
  }

  // Of this warp's slice of the inputs.
  template <bool kWhole>
  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[kGroups][kChunks][4], const Params& p, const LoraTile& tile, int split,
                                         int first, int ranks) {
    const LoraImage<T> image(p, tile.adapter);
    int64_t begins[kChunks];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) begins[chunk] = begin_of(tile, first + min(chunk * 8, ranks - 8));
    int64_t rows[kGroups][2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) rows[group][half] = tile.row(p, group * 16 + half * 8 + lane_of_thread() / 4);
    }
    const int64_t begin = static_cast<int64_t>(split) * kLoraSplit + warp_of_thread() * kSlice;
    if (begin >= p.width) return;
#pragma unroll 4
    for (int i = 0; i < kSlice; i += Product::kInputs) {
      const int64_t at = begin + i + Product::input();
      uint4 a[kChunks][Product::kLoads];
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int load = 0; load < Product::kLoads; ++load) {
          a[chunk][load] = load_weights<kWhole>(image, begins[chunk] + Product::rank(load) * p.width, at, p.width);
        }
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (kGroups > 1 && group * 16 >= tile.count) continue;
        const uint4 x[2] = {load_row<kWhole>(p, tile, rows[group][0], at), load_row<kWhole>(p, tile, rows[group][1], at)};
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) Product::multiply(sums[group][chunk], x, a[chunk]);
      }
    }
  }

  // From input `at` on of the row of A that begins at an element of the image; zeros beyond its end.
  template <bool kWhole>
  static ROUNDHOUSE_DEVICE uint4 load_weights(const LoraImage<T>& image, int64_t row, int64_t at, int64_t width) {
    if constexpr (kWhole) {
      return keep_if(at < width, image.load(row + (at < width ? at : 0)));
    } else {
      return image.load_some(row + at, 0, width - at);
    }
  }

  // The same of a row of x, and zeros for row -1.
  template <bool kWhole>
  static ROUNDHOUSE_DEVICE uint4 load_row(const Params& p, const LoraTile& tile, int64_t row, int64_t at) {
    if constexpr (kWhole) {
      const bool inside = row >= 0 && at < p.width;
      return keep_if(inside, *reinterpret_cast<const uint4*>(p.x + (inside ? row * p.width + at : tile.rows[0] * p.width)));
    } else {
      Vector<T, kVector<T>> values;
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) {
        values.at[i] = row >= 0 && at + i < p.width ? p.x[row * p.width + at + i] : from_float<T>(0.0f);
      }
      return ptx::bits<uint4>(values);
    }
  }

  // Where the image has the rows of A from a rank of the site on.
  static ROUNDHOUSE_DEVICE int64_t begin_of(const LoraTile& tile, int64_t rank) {
    const LoraSpan* span = tile.site->spans;
    while (rank >= span->rank) rank -= (span++)->rank;
    return span->down + (tile.expert * span->rank + rank) * tile.site->width;
  }

  static ROUNDHOUSE_DEVICE void leave(Shared& shared, const float (&sums)[kGroups][kChunks][4]) {
    const int lane = lane_of_thread();
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* to = &shared.sums[warp_of_thread()][group * 16 + half * 8 + lane / 4][chunk * 8 + lane % 4 * 2];
          *reinterpret_cast<float2*>(to) = make_float2(sums[group][chunk][2 * half], sums[group][chunk][2 * half + 1]);
        }
      }
    }
  }
};

// The same for the embedding: rows of A^T, as many numbers as there are ranks. A block for a tile.
template <class T>
struct LookUpBody {
  using Params = AdaptRows<T>;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const LoraTile tile(p, blockIdx.x);
    if (tile.site == nullptr) return;
    const LoraImage<T> image(p, tile.adapter);
    const int64_t ranks = tile.site->ranks;
    for (int64_t i = threadIdx.x; i < tile.count * ranks; i += kThreads) {
      const int64_t row = tile.row(p, static_cast<int>(i / ranks));
      p.scratch[row * p.room + i % ranks] = to_float(*image.find(tile.site->rows + p.tokens[row] * ranks + i % ranks));
    }
  }
};

}  // namespace roundhouse::cuda
