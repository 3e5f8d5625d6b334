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
};

// Tokens of the batch before row `row`, by all threads of a block of kThreads. `shared` has an int for each warp.
template <int kThreads>
ROUNDHOUSE_DEVICE int tokens_before(const PagedAttention& p, int row, int* shared) {
  int before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < row; i += kThreads) before += p.counts[i];
  return reduce_block<kThreads / kWarp>(before, Sum(), shared);
}

// What a block of a row of few queries leaves for the merge: for each split of a packed query.
template <int kDim>
struct Partials {
  float* outputs;
  float2* sums;  // the maximum of the scores, and the sum of their exponentials
  int64_t first;
  int splits;

  // Of the packed queries of a row with a KV head.
  ROUNDHOUSE_DEVICE Partials(const PagedAttention& p, const AttentionRow& row, int kv_head)
      : outputs(static_cast<float*>(p.scratch)), splits(p.splits) {
    const int packed = min(p.most * row.group, kFew);
    const int64_t all = static_cast<int64_t>(p.rows) * p.kv_heads * packed * p.splits;
    sums = reinterpret_cast<float2*>(outputs + all * kDim);
    first = (static_cast<int64_t>(row.row) * p.kv_heads + kv_head) * packed * p.splits;
  }
  ROUNDHOUSE_DEVICE float* output(int i, int split) const { return outputs + (first + i * splits + split) * kDim; }
  ROUNDHOUSE_DEVICE float2& sum(int i, int split) const { return sums[first + i * splits + split]; }
};

}  // namespace roundhouse::cuda
