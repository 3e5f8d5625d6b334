// Tiles of keys and values: from the cache to shared memory, and their products with queries.
#pragma once

#include "roundhouse/attention/rows.cuh"
#include "roundhouse/ptx/cp_async.cuh"
#include "roundhouse/ptx/ldmatrix.cuh"
#include "roundhouse/ptx/mma.cuh"
#include "roundhouse/tile/softmax.cuh"
#include "roundhouse/tile/swizzle.cuh"

namespace roundhouse::cuda {

template <int kDim>
struct KeyValueTile {
  static constexpr int kPieces = kDim / 8;
  bfloat16 keys[kTile * kDim], values[kTile * kDim];

  // Begins to copy positions [first, first + kTile). Those that are not visible become zeros: what the cache has there may
  // be NaN, which even a weight of 0 would let through.
  template <int kThreads>
  ROUNDHOUSE_DEVICE void load(const PagedAttention& p, const int32_t* table, int kv_head, int first, const Visible& visible) {
#pragma unroll
    for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x), row = at / kPieces, piece = at % kPieces;
      const int position = first + row;
      const bool inside = position >= visible.begin && position < visible.end;
      int64_t from = 0;
      if (inside) {
        from = table[position / kBlock] * p.block_stride + position % kBlock * p.token_stride + kv_head * p.head_stride + piece * 8;
      }
      ptx::cp_async16(keys + swizzle<kPieces>(row, piece), p.keys + from, inside);
      ptx::cp_async16(values + swizzle<kPieces>(row, piece), p.values + from, inside);
    }
  }

  // Scores of a warp's 16 queries with 16 keys from key `first` on.
  ROUNDHOUSE_DEVICE void multiply_keys(float (&scores)[4], float (&next_scores)[4], const uint32_t (&queries)[kDim / 16][4],
                                       int first) const {
    const int lane = lane_of_thread(), row = first + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = next_scores[i] = 0.0f;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t b[4];
      ptx::ldmatrix4<false>(b, keys + swizzle<kPieces>(row, 2 * k + half));
      ptx::mma_bf16(scores, queries[k], {b[0], b[1]});
      ptx::mma_bf16(next_scores, queries[k], {b[2], b[3]});
    }
  }

  // Adds the products of a warp's 16 rows of weights with the values, of which the warp takes dimensions
  // [first, first + 8 kEights).
  template <int kEights>
  ROUNDHOUSE_DEVICE void multiply_values(float (&outputs)[kEights][4], const float (&weights)[kTile / 8][4], int first) const {
    const int lane = lane_of_thread(), row = lane / 8 % 2 * 8 + lane % 8, half = lane / 16;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      const uint32_t a[4] = {
          ptx::pack_bf16(weights[2 * k][0], weights[2 * k][1]), ptx::pack_bf16(weights[2 * k][2], weights[2 * k][3]),
          ptx::pack_bf16(weights[2 * k + 1][0], weights[2 * k + 1][1]), ptx::pack_bf16(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kEights; n += 2) {
        uint32_t b[4];
        ptx::ldmatrix4<true>(b, values + swizzle<kPieces>(16 * k + row, first / 8 + n + half));
        ptx::mma_bf16(outputs[n], a, {b[0], b[1]});
        ptx::mma_bf16(outputs[n + 1], a, {b[2], b[3]});
      }
    }
  }
};

// A warp's 16 queries from packed query `first` of a row on, as the left side of products; those beyond the row are 0.
template <int kDim>
ROUNDHOUSE_DEVICE void load_queries(uint32_t (&queries)[kDim / 16][4], const PagedAttention& p, const AttentionRow& row,
                                    int kv_head, int first) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + lane / 4 + half * 8;
    const bool inside = i < row.packed();
    const bfloat16* query = p.query + (inside ? row.query(i, kv_head, p.query_stride, kDim) : 0);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int column = k * 16 + right * 8 + lane % 4 * 2;
        queries[k][half + 2 * right] = inside ? *reinterpret_cast<const uint32_t*>(query + column) : 0;
      }
    }
  }
}

// Scales the scores of the keys from `first` on to units of log 2, and hides keys that the queries do not see.
template <int kEights>
ROUNDHOUSE_DEVICE void mask(float (&scores)[kEights][4], const PagedAttention& p, const AttentionRow& row, int first_query,
                            int first) {
  const int lane = lane_of_thread();
  const float scale = p.scale * 1.44269504f;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = row.position(first_query + lane / 4 + half * 8);
    const Visible visible(position, position, p.window);
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = first + n * 8 + lane % 4 * 2 + i;
        float& score = scores[n][2 * half + i];
        score = key >= visible.begin && key < visible.end ? score * scale : kNothing;
      }
    }
  }
}

}  // namespace roundhouse::cuda
