// Rows by expert times their experts' weights.
//
// A block has up to kRows rows of one expert and kOutputs outputs. Pieces of kDepth inputs of both are copied to shared
// memory several stages ahead. Blocks of the same outputs are neighbours, so that weights are read from memory once.
#pragma once

#include "roundhouse/moe.h"
#include "roundhouse/moe/tile.cuh"
#include "roundhouse/ptx/cp_async.cuh"
#include "roundhouse/ptx/ldmatrix.cuh"
#include "roundhouse/ptx/mma.cuh"
#include "roundhouse/tile/swizzle.cuh"

namespace roundhouse::cuda {

// kRowWarps warps share the rows, and so many times the others the outputs.
template <int kRows, int kOutputs, int kRowWarps, int kOutputWarps, int kStages>
struct GroupedLinearBody {
  using Params = GroupedLinear;
  static constexpr int kWarps = kRowWarps * kOutputWarps, kThreads = kWarps * kWarp;
  static constexpr int kDepth = 64, kPieces = kDepth / 8;
  static constexpr int kSixteens = kRows / kRowWarps / 16, kEights = kOutputs / kOutputWarps / 8;  // of a warp
  static_assert(kEights % 2 == 0, "ldmatrix4 loads two");

  struct Stage {
    bfloat16 x[kRows * kDepth], weights[kOutputs * kDepth];
  };
  struct Shared {
    Stage stages[kStages];
    ExpertTile tile;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (warp_of_thread() == 0) find_tile<kRows>(p.ends, p.experts, shared.tile);
    __syncthreads();
    const ExpertTile tile = shared.tile;
    if (tile.first == tile.end) return;
    const int first_output = static_cast<int>(blockIdx.y) * kOutputs, steps = (p.inputs + kDepth - 1) / kDepth;
    const auto load = [&](int step) {
      if (step < steps) copy(shared.stages[step % kStages], p, tile, first_output, step * kDepth);
      ptx::cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) load(step);
    float sums[kSixteens][kEights][4] = {};
    for (int step = 0; step < steps; ++step) {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();  // the stage is there, and everybody is done with the one that is overwritten next
      load(step + kStages - 1);
      multiply(sums, shared.stages[step % kStages]);
    }
    store(p, tile, first_output, sums);
  }

  // Begins to copy inputs from `first` on; rows, outputs and inputs that are not there become zeros.
  static ROUNDHOUSE_DEVICE void copy(Stage& stage, const Params& p, const ExpertTile& tile, int first_output, int first) {
    const int thread = static_cast<int>(threadIdx.x);
    const bfloat16* weights = p.weights + static_cast<int64_t>(tile.expert) * p.outputs * p.inputs;
#pragma unroll
    for (int i = thread; i < kRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces, input = first + piece * 8;
      const bool inside = tile.first + row < tile.end && input < p.inputs;
      ptx::cp_async16(stage.x + 8 * swizzle<kPieces>(row, piece), p.x + (inside ? (tile.first + row) * p.inputs + input : 0), inside);
    }
#pragma unroll
    for (int i = thread; i < kOutputs * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces, input = first + piece * 8;
      const bool inside = first_output + row < p.outputs && input < p.inputs;
      const int64_t from = inside ? static_cast<int64_t>(first_output + row) * p.inputs + input : 0;
      ptx::cp_async16(stage.weights + 8 * swizzle<kPieces>(row, piece), weights + from, inside);
    }
  }

  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[kSixteens][kEights][4], const Stage& stage) {
    const int lane = lane_of_thread();
    const int first_row = warp_of_thread() % kRowWarps * kSixteens * 16, first_output = warp_of_thread() / kRowWarps * kEights * 8;
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t a[kSixteens][4];
#pragma unroll
      for (int m = 0; m < kSixteens; ++m) {
        ptx::ldmatrix4<false>(a[m], stage.x + 8 * swizzle<kPieces>(first_row + m * 16 + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < kEights; n += 2) {
        uint32_t b[4];
        const int row = first_output + n * 8 + lane / 16 * 8 + lane % 8;
        ptx::ldmatrix4<false>(b, stage.weights + 8 * swizzle<kPieces>(row, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kSixteens; ++m) {
          ptx::mma_bf16(sums[m][n], a[m], {b[0], b[1]});
          ptx::mma_bf16(sums[m][n + 1], a[m], {b[2], b[3]});
        }
      }
    }
  }

  static ROUNDHOUSE_DEVICE void store(const Params& p, const ExpertTile& tile, int first_output,
                                      const float (&sums)[kSixteens][kEights][4]) {
    const int lane = lane_of_thread();
    const int first_row = warp_of_thread() % kRowWarps * kSixteens * 16;
    const int first = first_output + warp_of_thread() / kRowWarps * kEights * 8 + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < kSixteens; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = tile.first + first_row + m * 16 + half * 8 + lane / 4;
        if (row >= tile.end) continue;
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          if (first + n * 8 >= p.outputs) continue;
          const uint32_t pair = ptx::pack_bf16(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
          *reinterpret_cast<uint32_t*>(p.out + row * p.outputs + first + n * 8) = pair;
        }
      }
    }
  }
};

}  // namespace roundhouse::cuda
