// Attention of rows of many queries: a block for kQueries packed queries of a row and a KV head, a warp for 16 of them.
#pragma once

#include "roundhouse/attention/tile.cuh"

namespace roundhouse::cuda {

template <class C, int kDim>
struct PrefillAttention {
  using Params = PagedAttention<bfloat16, C>;
  using Tile = KeyValueTile<C, kDim>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kQueries = kWarps * 16, kStages = 2;
  static constexpr int kEights = kDim / 8;

  // A lane's own numbers of all lanes lie side by side.
  struct Merged {
    float outputs[kEights * 4][kThreads];
    float maximum[2][kThreads], sum[2][kThreads];
  };
  struct Shared {
    Tile stages[kStages];
    Merged merged;  // the splits so far
    AttentionRow row;
    int first;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (warp_of_thread() == 0) find_queries<kQueries>(p, static_cast<int>(blockIdx.x), shared.row, shared.first);
    __syncthreads();
    const AttentionRow& row = shared.row;  // no copy: registers are scarce here
    if (row.count == 0) return;
    const int kv_head = static_cast<int>(blockIdx.y), first_query = shared.first, own = first_query + warp_of_thread() * 16;
    const int last_query = min(first_query + kQueries, row.packed()) - 1;
    const Visible visible(row.position(first_query), row.position(last_query), p.window);
    const int32_t* table = p.tables + row.row * p.width;
    const int first = visible.begin / kTile * kTile, tiles = ceil_div(visible.end - first, kTile);

    const auto load = [&](int tile) {
      if (tile < tiles) {
        shared.stages[tile % kStages].template load<kThreads>(p.cache, table, kv_head, first + tile * kTile, visible);
      }
      ptx::cp_async_commit();
    };
    load(0);
    uint32_t queries[kDim / 16][4];
    load_queries<kDim>(queries, p, row, kv_head, own);

    RunningSoftmax softmax;
    float outputs[kEights][4] = {};
    bool merged = false;
    for (int tile = 0; tile < tiles; ++tile) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // the tile is there, and everybody is done with the one that is overwritten next
      load(tile + 1);
      const int key = first + tile * kTile;
      if (tile != 0 && key % kSplit == 0) {
        merge(shared.merged, softmax, outputs, merged);
        merged = true;
      }
      const Tile& stage = shared.stages[tile % kStages];
      float scores[kTile / 8][4];
#pragma unroll
      for (int n = 0; n < kTile / 8; n += 2) stage.multiply_keys(scores[n], scores[n + 1], queries, n * 8);
      stage.scales.scale_keys(scores);
      mask(scores, p, row, own, key);
      softmax.add(scores, [&](int half, float factor) {
#pragma unroll
        for (int n = 0; n < kEights; ++n) {
          outputs[n][2 * half] *= factor;
          outputs[n][2 * half + 1] *= factor;
        }
      });
      stage.multiply_values(outputs, scores, 0);
    }
    softmax.finish();
    if (merged) take_merged(shared.merged, softmax, outputs);
    store(p, row, kv_head, own, softmax, outputs);
  }

  // Adds the split that ends here to those before, and begins another.
  static ROUNDHOUSE_DEVICE void merge(Merged& merged, RunningSoftmax& softmax, float (&outputs)[kEights][4], bool any) {
    softmax.finish();
    if (any) take_merged(merged, softmax, outputs);
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      merged.maximum[half][thread] = softmax.maximum[half];
      merged.sum[half][thread] = softmax.sum[half];
    }
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        merged.outputs[n * 4 + i][thread] = outputs[n][i];
        outputs[n][i] = 0.0f;
      }
    }
    softmax = RunningSoftmax();
  }

  // The splits before, then the last one.
  static ROUNDHOUSE_DEVICE void take_merged(const Merged& merged, RunningSoftmax& softmax, float (&outputs)[kEights][4]) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Merge both(merged.maximum[half][thread], merged.sum[half][thread], softmax.maximum[half], softmax.sum[half]);
      softmax.maximum[half] = both.maximum;
      softmax.sum[half] = both.sum;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          outputs[n][i] = both.apply(merged.outputs[n * 4 + i][thread], outputs[n][i]);
        }
      }
    }
  }

  static ROUNDHOUSE_DEVICE void store(const Params& p, const AttentionRow& row, int kv_head, int first,
                                      const RunningSoftmax& softmax, const float (&outputs)[kEights][4]) {
    const int lane = lane_of_thread();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = first + lane / 4 + half * 8;
      if (i >= row.packed()) continue;
      bfloat16* out = p.out + row.query(i, kv_head, static_cast<int64_t>(p.heads) * kDim, kDim);
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const float2 pair = Columns<C>::outputs(outputs, n, half);
        *reinterpret_cast<uint32_t*>(out + Columns<C>::of_output(n)) =
            ptx::pack_bf16(pair.x / softmax.sum[half], pair.y / softmax.sum[half]);
      }
    }
  }
};

}  // namespace roundhouse::cuda
