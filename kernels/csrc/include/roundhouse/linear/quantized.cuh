// Products with quantised weights, for few rows: what the weights' bytes cost decides.
//
// A block has kTiles tiles of outputs, and each of its eight warps a slice of the inputs. The weights are the left side of
// the products, so that 8 rows of x are enough to fill one. Lanes copy the very bytes that they will use into shared memory
// several groups ahead, and so wait for nobody until the slices are added. What the lanes of a warp take of x is 16 inputs
// in a row each, which the order of the weights makes up for.
#pragma once

#include "roundhouse/linear/formats.cuh"
#include "roundhouse/moe/tile.cuh"

namespace roundhouse::cuda {

template <class Format, int kTiles, int kColumns>
struct QuantizedLinearBody {
  using Params = QuantizedLinear;
  using Sum = typename Format::Sum;
  using Columns = typename Format::Columns;
  using Scales = typename Format::Scales;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp, kStages = 4, kEights = kColumns / 8;
  static constexpr int kDigits = Format::kDigits, kRows = kColumns / kDigits;
  static constexpr int kChunks = kGroup / kChunk;
  static constexpr int kTileBytes = Format::kTileBytes * kWarp;

  // Of one lane, the lanes' pieces side by side.
  struct Stage {
    alignas(16) unsigned char tiles[kChunks][kTiles][Format::kTileBytes / 16][kThreads][16];
    Scales scales[kTiles][kThreads];
  };
  // [slice][digit of a row of x][output]
  using Sums = Sum[kWarps][kColumns][kTiles * kTileOutputs + 4];
  union Shared {
    Stage stages[kStages];
    Sums sums;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    multiply(p, *reinterpret_cast<Shared*>(memory), static_cast<int64_t>(blockIdx.y) * kRows, static_cast<int>(blockIdx.x) * kTiles);
  }

  // kRows rows from `first_row` on times kTiles tiles.
  static ROUNDHOUSE_DEVICE void multiply(const Params& p, Shared& shared, int64_t first_row, int first_tile) {
    const int slice = warp_of_thread();
    const int groups = static_cast<int>((p.inputs + kGroup - 1) / kGroup);
    const int own = (groups - slice + kWarps - 1) / kWarps;  // of this slice

    const auto load = [&](int i) {
      if (i < own) copy(shared.stages[i % kStages], p, first_tile, groups, slice + i * kWarps);
      ptx::cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load(i);
    Sum sums[kTiles][kEights][4] = {};
    for (int i = 0; i < own; ++i) {
      load(i + kStages - 1);
      const Stage& stage = shared.stages[i % kStages];
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        Columns columns[kEights];
        load_columns(columns, p, first_row, (slice + i * kWarps) * kGroup + chunk * kChunk);
        if (chunk == 0) ptx::cp_async_wait<kStages - 1>();
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          alignas(16) unsigned char bytes[Format::kTileBytes];
#pragma unroll
          for (int part = 0; part < Format::kTileBytes / 16; ++part) {
            reinterpret_cast<uint4*>(bytes)[part] =
                *reinterpret_cast<const uint4*>(stage.tiles[chunk][tile][part][threadIdx.x]);
          }
          Format::multiply(sums[tile], bytes, stage.scales[tile][threadIdx.x], columns);
        }
      }
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // the stages are used no more
    leave(shared.sums, sums);
    __syncthreads();
    add_and_store(p, shared.sums, first_row, first_tile);
  }

  // Begins to copy this lane's part of a group.
  static ROUNDHOUSE_DEVICE void copy(Stage& stage, const Params& p, int first_tile, int groups, int group) {
    const int lane = lane_of_thread(), tiles = static_cast<int>((p.outputs + kTileOutputs - 1) / kTileOutputs);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const bool inside = first_tile + tile < tiles;
      const int64_t at = inside ? static_cast<int64_t>(first_tile + tile) * groups + group : 0;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
        for (int part = 0; part < Format::kTileBytes / 16; ++part) {
          const uint8_t* from = p.tiles + (at * kChunks + chunk) * kTileBytes + lane * Format::kTileBytes + part * 16;
          ptx::cp_async16(stage.tiles[chunk][tile][part][threadIdx.x], from, inside);
        }
      }
      if constexpr (Format::kGroupScales) {
        ptx::cp_async8(&stage.scales[tile][threadIdx.x], static_cast<const Scales*>(p.scales) + at * 8 + lane / 4, inside);
      }
    }
  }

  // Of 64 inputs from `first` on; rows and inputs that are not there are zero.
  static ROUNDHOUSE_DEVICE void load_columns(Columns (&columns)[kEights], const Params& p, int64_t first_row, int first) {
    constexpr int kPerLoad = kVector<typename Format::X>, kLoads = 16 / kPerLoad;
    const int lane = lane_of_thread();
    const auto* x = static_cast<const typename Format::X*>(p.x);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
      const int64_t row = first_row * kDigits + n * 8 + lane / 4;
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const int at = first + lane % 4 * 16 + load * kPerLoad;
        uint4 words = make_uint4(0, 0, 0, 0);
        if (row < p.rows * kDigits && at < p.inputs) words = *reinterpret_cast<const uint4*>(x + row * p.x_stride + at);
        columns[n].words[4 * load] = words.x;
        columns[n].words[4 * load + 1] = words.y;
        columns[n].words[4 * load + 2] = words.z;
        columns[n].words[4 * load + 3] = words.w;
      }
    }
  }

  static ROUNDHOUSE_DEVICE void leave(Sums& shared, const Sum (&sums)[kTiles][kEights][4]) {
    const int lane = lane_of_thread();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = n * 8 + lane % 4 * 2 + i % 2, output = tile * kTileOutputs + lane / 4 + i / 2 * 8;
          shared[warp_of_thread()][row][output] = sums[tile][n][i];
        }
      }
    }
  }

  static ROUNDHOUSE_DEVICE void add_and_store(const Params& p, const Sums& shared, int64_t first_row, int first_tile) {
    constexpr int kOutputs = kTiles * kTileOutputs;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kOutputs; i += kThreads) {
      const int64_t row = first_row + i / kOutputs, output = static_cast<int64_t>(first_tile) * kTileOutputs + i % kOutputs;
      if (row >= p.rows || output >= p.outputs) continue;
      Sum sum = 0;
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) {
        if (digit != 0) sum *= 128;
#pragma unroll
        for (int slice = 0; slice < kWarps; ++slice) sum += shared[slice][i / kOutputs * kDigits + digit][i % kOutputs];
      }
      float value = static_cast<float>(sum);
      if constexpr (Format::kRowScales) value *= p.x_scales[row];
      if constexpr (!Format::kGroupScales) value *= static_cast<const float*>(p.scales)[output];
      if (p.bias != nullptr) value += to_float(p.bias[output]);
      if (p.exact != nullptr) {
        p.exact[row * p.outputs + output] = value;
      } else {
        p.out[row * p.outputs + output] = from_float<bfloat16>(value);
      }
    }
  }
};

// The same for rows by expert. Blocks of the same outputs are neighbours.
template <class Format, int kTiles, int kColumns>
struct GroupedQuantizedLinearBody {
  using Params = GroupedQuantizedLinear;
  using Body = QuantizedLinearBody<Format, kTiles, kColumns>;
  static constexpr int kThreads = Body::kThreads;

  struct Shared {
    typename Body::Shared body;
    ExpertTile tile;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (warp_of_thread() == 0) find_tile<Body::kRows>(p.ends, p.experts, shared.tile);
    __syncthreads();
    const ExpertTile tile = shared.tile;
    if (tile.first == tile.end) return;
    QuantizedLinear own = p.linear;
    own.tiles += tile.expert * p.tiles_stride;
    own.scales = static_cast<const unsigned char*>(own.scales) + tile.expert * p.scales_stride;
    own.rows = tile.end;
    Body::multiply(own, shared.body, tile.first, static_cast<int>(blockIdx.y) * kTiles);
  }
};

}  // namespace roundhouse::cuda
