// Which of a batch's tokens a block works on.
#pragma once

#include "roundhouse/attention.h"
#include "roundhouse/tile/reduce.cuh"

namespace roundhouse::cuda {

// A row of the batch.
struct AttentionRow {
  int row, start, count;
  int group;  // query heads per KV head
  int token;  // its first in the batch

  ROUNDHOUSE_DEVICE int packed() const { return count * group; }
  // Of packed query i: token i / group of the row, head i % group of the KV head's.
  ROUNDHOUSE_DEVICE int position(int i) const { return start + i / group; }
  ROUNDHOUSE_DEVICE int64_t query(int i, int kv_head, int64_t token_stride, int dim) const {
    return (token + i / group) * token_stride + static_cast<int64_t>(kv_head * group + i % group) * dim;
  }
};

// Keys [begin, end) are what any of the queries at positions [first, last] sees.
struct Visible {
  int begin, end;

  ROUNDHOUSE_DEVICE Visible(int first, int last, int window)
      : begin(window == 0 || first < window ? 0 : first - window + 1), end(last + 1) {}
  ROUNDHOUSE_DEVICE bool has(int key) const { return key >= begin && key < end; }
};

// Where the head of a token is in a cache, and where its scale is.
template <class C>
ROUNDHOUSE_DEVICE int64_t place(const PagedCache<C>& cache, const int32_t* table, int position, int kv_head) {
  return table[position / kBlock] * cache.block_stride + position % kBlock * cache.token_stride + kv_head * cache.head_stride;
}
template <class C>
ROUNDHOUSE_DEVICE int64_t scale_place(const PagedCache<C>& cache, const int32_t* table, int position, int kv_head) {
  return table[position / kBlock] * cache.scale_block_stride + kv_head * cache.scale_head_stride + position % kBlock;
}

// Tokens of the batch before row `row`, by all threads of a block of kThreads. `shared` has an int for each warp.
template <int kThreads>
ROUNDHOUSE_DEVICE int tokens_before(const int32_t* counts, int row, int* shared) {
  int before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < row; i += kThreads) before += counts[i];
  return reduce_block<kThreads / kWarp>(before, Sum(), shared);
}

// Blocks of kQueries packed queries that are enough for the rows of many queries.
template <int kQueries, class T, class C>
int64_t blocks_of_queries(const PagedAttention<T, C>& p) {
  return static_cast<int64_t>(p.tokens) * p.group() / kQueries + p.rows;
}

// The row, and of its packed queries the first, that block `block` of kQueries works on among the rows of many queries,
// by one warp; a row without tokens if there are fewer blocks. Both results are in shared memory.
template <int kQueries, class T, class C>
ROUNDHOUSE_DEVICE void find_queries(const PagedAttention<T, C>& p, int block, AttentionRow& row, int& first) {
  const int lane = lane_of_thread(), group = p.heads / p.kv_heads;
  int tokens_before = 0, blocks_before = 0;
  if (lane == 0) row = AttentionRow{0, 0, 0, group, 0};
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
      row = AttentionRow{base + lane, p.starts[base + lane], count, group, tokens_before + tokens - count};
      first = offset * kQueries;
    }
    tokens_before += __shfl_sync(kAllLanes, tokens, kWarp - 1);
    blocks_before += __shfl_sync(kAllLanes, blocks, kWarp - 1);
  }
}

// What a block of a row of few queries leaves for the merge: for each split of a packed query.
struct Partials {
  float2* sums;  // the maximum of the scores, and the sum of their exponentials
  float* outputs;
  int64_t first;
  int splits, dim;

  // Of the packed queries of a row with a KV head.
  template <class T, class C>
  ROUNDHOUSE_DEVICE Partials(const PagedAttention<T, C>& p, const AttentionRow& row, int kv_head)
      : sums(static_cast<float2*>(p.scratch)), splits(p.splits), dim(p.dim) {
    const int packed = min(p.most * row.group, kFew);
    outputs = reinterpret_cast<float*>(sums + static_cast<int64_t>(p.rows) * p.kv_heads * packed * p.splits);
    first = (static_cast<int64_t>(row.row) * p.kv_heads + kv_head) * packed * p.splits;
  }
  ROUNDHOUSE_DEVICE float* output(int i, int split) const { return outputs + (first + i * splits + split) * dim; }
  ROUNDHOUSE_DEVICE float2& sum(int i, int split) const { return sums[first + i * splits + split]; }
};

}  // namespace roundhouse::cuda
