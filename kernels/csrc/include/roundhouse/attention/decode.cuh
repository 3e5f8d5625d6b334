// Attention of rows of few queries: a block for each row, KV head and split.
//
// Four warps share a tile: each takes the scores of 16 keys, then all keys for a quarter of the values' dimensions. So
// the work is shared without another order of sums than a warp alone would have.
#pragma once

#include "roundhouse/attention/tile.cuh"

namespace roundhouse::cuda {

template <class C, int kDim>
struct DecodeAttention {
  using Params = PagedAttention<bfloat16, C>;
  using Tile = KeyValueTile<C, kDim>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kStages = 3;
  static constexpr int kEights = kDim / 8 / kWarps;  // of a warp's dimensions
  static constexpr int kStride = kTile + 8;          // of a row of scores, which spreads rows over the banks

  struct Shared {
    Tile stages[kStages];
    float scores[16 * kStride];
    int counts[kWarps];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int split = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
    const int number = static_cast<int>(blockIdx.z);
    AttentionRow row{number, p.starts[number], p.counts[number], p.heads / p.kv_heads, 0};
    if (row.count == 0 || row.packed() > kFew) return;
    Visible visible(row.start, row.start + row.count - 1, p.window);
    visible.begin = max(visible.begin, split * kSplit);
    visible.end = min(visible.end, (split + 1) * kSplit);
    if (visible.begin >= visible.end) return;
    const int32_t* table = p.tables + row.row * p.width;
    const int first = visible.begin / kTile * kTile, tiles = ceil_div(visible.end - first, kTile);

    const auto load = [&](int tile) {
      if (tile < tiles) {
        shared.stages[tile % kStages].template load<kThreads>(p.cache, table, kv_head, first + tile * kTile, visible);
      }
      ptx::cp_async_commit();
    };
#pragma unroll
    for (int tile = 0; tile < kStages - 1; ++tile) load(tile);
    row.token = tokens_before<kThreads>(p.counts, number, shared.counts);
    uint32_t queries[kDim / 16][4];
    load_queries<kDim>(queries, p, row, kv_head, 0);

    RunningSoftmax softmax;
    float outputs[kEights][4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
      ptx::cp_async_wait<kStages - 2>();
      __syncthreads();  // the tile is there, and everybody is done with the one that is overwritten next
      load(tile + kStages - 1);
      const Tile& stage = shared.stages[tile % kStages];
      float scores[kTile / 8][4];
      multiply_keys(shared, stage, queries, scores);
      stage.scales.scale_keys(scores);
      mask(scores, p, row, 0, first + tile * kTile);
      softmax.add(scores, [&](int half, float factor) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          outputs[n][2 * half] *= factor;
          outputs[n][2 * half + 1] *= factor;
        }
      });
      stage.multiply_values(outputs, scores, warp_of_thread() * kDim / kWarps);
    }
    softmax.finish();
    store(p, row, kv_head, split, softmax, outputs);
  }

  // The scores of all 16 queries with all keys of a tile, in every warp.
  static ROUNDHOUSE_DEVICE void multiply_keys(Shared& shared, const Tile& stage,
                                              const uint32_t (&queries)[kDim / 16][4], float (&scores)[kTile / 8][4]) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
    float own[2][4];
    stage.multiply_keys(own[0], own[1], queries, warp * 16);
    const auto at = [&](int half, int eight) {
      return reinterpret_cast<float2*>(shared.scores + (lane / 4 + half * 8) * kStride + eight * 8 + lane % 4 * 2);
    };
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) *at(half, warp * 2 + n) = make_float2(own[n][2 * half], own[n][2 * half + 1]);
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = *at(half, n);
        scores[n][2 * half] = pair.x;
        scores[n][2 * half + 1] = pair.y;
      }
    }
  }

  // The result if there can be but one split, what there is to be merged otherwise.
  static ROUNDHOUSE_DEVICE void store(const Params& p, const AttentionRow& row, int kv_head, int split,
                                      const RunningSoftmax& softmax, const float (&outputs)[kEights][4]) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
    const Partials partials(p, row, kv_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane / 4 + half * 8;
      if (i >= row.packed()) continue;
      if (p.splits > 1 && warp == 0 && lane % 4 == 0) {
        partials.sum(i, split) = make_float2(softmax.maximum[half], softmax.sum[half]);
      }
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const int column = warp * kDim / kWarps + Columns<C>::of_output(n);
        const float2 pair = Columns<C>::outputs(outputs, n, half);
        if (p.splits > 1) {
          *reinterpret_cast<float2*>(partials.output(i, split) + column) = pair;
        } else {
          bfloat16* out = p.out + row.query(i, kv_head, static_cast<int64_t>(p.heads) * kDim, kDim) + column;
          *reinterpret_cast<uint32_t*>(out) = ptx::pack_bf16(pair.x / softmax.sum[half], pair.y / softmax.sum[half]);
        }
      }
    }
  }
};

}  // namespace roundhouse::cuda
