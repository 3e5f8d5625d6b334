// Attention of rows of many queries: a block for kQueries packed queries of a row and a KV head, a warp for 16 of them.
#pragma once

#include "roundhouse/attention/tile.cuh"

namespace roundhouse::cuda {

template <int kDim>
struct PrefillAttention {
  using Params = PagedAttention;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kQueries = kWarps * 16, kStages = 2;
  static constexpr int kEights = kDim / 8;

  // A lane's own numbers of all lanes lie side by side.
  struct Merged {
    float outputs[kEights * 4][kThreads];
    float maximum[2][kThreads], sum[2][kThreads];
  };
  struct Shared {
    KeyValueTile<kDim> stages[kStages];
    Merged merged;  // the splits so far
    AttentionRow row;
    int first;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  // Blocks that are enough for any rows of so many tokens.
  static int64_t blocks(const Params& p) {
    return static_cast<int64_t>(p.tokens) * (p.heads / p.kv_heads) / kQueries + p.rows;
  }

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (warp_of_thread() == 0) find(p, static_cast<int>(blockIdx.x), shared);
    __syncthreads();
    const AttentionRow row = shared.row;
    if (row.count == 0) return;
    const int kv_head = static_cast<int>(blockIdx.y), first_query = shared.first, own = first_query + warp_of_thread() * 16;
    const int last_query = min(first_query + kQueries, row.packed()) - 1;
    const Visible visible(row.position(first_query), row.position(last_query), p.window);
    const int32_t* table = p.tables + row.row * p.width;
    const int first = visible.begin / kTile * kTile, tiles = ceil_div(visible.end - first, kTile);

    const auto load = [&](int tile) {
      if (tile < tiles) {
        shared.stages[tile % kStages].template load<kThreads>(p, table, kv_head, first + tile * kTile, visible);
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
      const KeyValueTile<kDim>& stage = shared.stages[tile % kStages];
      float scores[kTile / 8][4];
#pragma unroll
      for (int n = 0; n < kTile / 8; n += 2) stage.multiply_keys(scores[n], scores[n + 1], queries, n * 8);
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

  // The row and first query of this block among the rows of many queries, by one warp; a row without tokens if there are
  // fewer blocks of queries.
  static ROUNDHOUSE_DEVICE void find(const Params& p, int block, Shared& shared) {
    const int lane = lane_of_thread(), group = p.heads / p.kv_heads;
    int tokens_before = 0, blocks_before = 0;
    if (lane == 0) shared.row = AttentionRow{0, 0, 0, group, 0};
    __syncwarp();
    for (int base = 0; base < p.rows && blocks_before <= block; base += kWarp) {
      const int count = base + lane < p.rows ? p.counts[base + lane] : 0;
      const int own = count * group > kFew ? ceil_div(count * group, kQueries) : 0;
      int tokens = count, blocks = own;  // sums over the lanes up to this one
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int more_tokens = __shfl_up_sync(kAllLanes, tokens, distance), more_blocks = __shfl_up_sync(kAllLanes, blocks, distance);
        if (lane >= distance) {
          tokens += more_tokens;
          blocks += more_blocks;
        }
      }
      const int offset = block - blocks_before - (blocks - own);
      if (offset >= 0 && offset < own) {
        shared.row = AttentionRow{base + lane, p.starts[base + lane], count, group, tokens_before + tokens - count};
        shared.first = offset * kQueries;
      }
      tokens_before += __shfl_sync(kAllLanes, tokens, kWarp - 1);
      blocks_before += __shfl_sync(kAllLanes, blocks, kWarp - 1);
    }
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
      bfloat16* out = p.out + row.query(i, kv_head, static_cast<int64_t>(p.heads) * kDim, kDim) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const float x = outputs[n][2 * half] / softmax.sum[half], y = outputs[n][2 * half + 1] / softmax.sum[half];
        *reinterpret_cast<uint32_t*>(out + n * 8) = ptx::pack_bf16(x, y);
      }
    }
  }
};

}  // namespace roundhouse::cuda
