// The splits of rows of few queries become one result, in order.
#pragma once

#include "roundhouse/attention/rows.cuh"
#include "roundhouse/tile/softmax.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// A block for each row and KV head, in which a warp takes every fourth query; for heads of kMost dimensions or fewer.
template <class T, class C, int kMost>
struct MergeAttention {
  using Params = PagedAttention<T, C>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kElements = kMost / kWarp;  // of a lane, kWarp apart
  static constexpr size_t kSharedBytes = kWarps * sizeof(int);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* shared) {
    const int kv_head = static_cast<int>(blockIdx.x), lane = lane_of_thread();
    const int number = static_cast<int>(blockIdx.y);
    AttentionRow row{number, p.starts[number], p.counts[number], p.heads / p.kv_heads, 0};
    if (row.count == 0 || row.packed() > kFew) return;
    row.token = tokens_before<kThreads>(p.counts, number, reinterpret_cast<int*>(shared));
    // All splits of which any of the row's queries sees a key: what the others do not see in them weighs nothing.
    const Visible visible(row.start, row.start + row.count - 1, p.window);
    const int begin = visible.begin / kSplit, end = ceil_div(visible.end, kSplit);
    const Partials partials(p, row, kv_head);
    for (int i = warp_of_thread(); i < row.packed(); i += kWarps) {
      float maximum = kNothing, sum = 0.0f, outputs[kElements] = {};
#pragma unroll 4
      for (int split = begin; split < end; ++split) {
        const float* added = partials.output(i, split);
        const float2 sums = partials.sum(i, split);
        const Merge merge(maximum, sum, sums.x, sums.y);
#pragma unroll
        for (int j = 0; j < kElements; ++j) {
          const int at = j * kWarp + lane;
          if (at < p.dim) outputs[j] = merge.apply(outputs[j], added[at]);
        }
        maximum = merge.maximum;
        sum = merge.sum;
      }
      T* out = p.out + row.query(i, kv_head, static_cast<int64_t>(p.heads) * p.dim, p.dim);
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const int at = j * kWarp + lane;
        if (at < p.dim) out[at] = from_float<T>(outputs[j] / sum);
      }
    }
  }
};

}  // namespace roundhouse::cuda
