// Tiles of keys and values: from the cache to shared memory, and their products with queries on tensor cores.
//
// Eight-bit numbers stay so in shared memory and are widened in registers, between ldmatrix and mma. For that a product
// takes the dimensions of sixteen in another order: see `Columns`.
#pragma once

#include "roundhouse/attention/rows.cuh"
#include "roundhouse/ptx/cp_async.cuh"
#include "roundhouse/ptx/ldmatrix.cuh"
#include "roundhouse/ptx/mma.cuh"
#include "roundhouse/tile/softmax.cuh"
#include "roundhouse/tile/swizzle.cuh"

namespace roundhouse::cuda {

// Which dimensions a lane has of queries and outputs, for a cache of type C: in order for bf16, and for eight bits those
// whose numbers a register has after ldmatrix.
template <class C>
struct Columns {
  static constexpr bool kNarrow = sizeof(C) == 1;

  // The first of the two dimensions in registers `right` (0: 0 and 1; 1: 2 and 3) of the left side's piece k.
  static ROUNDHOUSE_DEVICE int of_query(int k, int right) {
    const int t = lane_of_thread() % 4;
    return k * 16 + (kNarrow ? t * 4 + right * 2 : right * 8 + t * 2);
  }
  // Outputs of two neighbouring dimensions of row `half`, of which the first is of_output(n).
  template <int kEights>
  static ROUNDHOUSE_DEVICE float2 outputs(const float (&outputs)[kEights][4], int n, int half) {
    if (kNarrow) return make_float2(outputs[n / 2 * 2][2 * half + n % 2], outputs[n / 2 * 2 + 1][2 * half + n % 2]);
    return make_float2(outputs[n][2 * half], outputs[n][2 * half + 1]);
  }
  static ROUNDHOUSE_DEVICE int of_output(int n) {
    const int t = lane_of_thread() % 4;
    return kNarrow ? n / 2 * 16 + t * 4 + n % 2 * 2 : n * 8 + t * 2;
  }
};

// The scales of a tile's keys and values, which only int8 has.
template <class C>
struct TileScales {
  template <int kThreads>
  ROUNDHOUSE_DEVICE void load(const PagedCache<const C>&, const int32_t*, int, int, const Visible&) {}
  ROUNDHOUSE_DEVICE void scale_keys(float (&)[kTile / 8][4]) const {}
  ROUNDHOUSE_DEVICE float2 of_pair(int) const { return make_float2(1.0f, 1.0f); }
};

template <>
struct TileScales<int8_t> {
  float of_keys[kTile], of_values[kTile];

  template <int kThreads>
  ROUNDHOUSE_DEVICE void load(const PagedCache<const int8_t>& cache, const int32_t* table, int kv_head, int first,
                              const Visible& visible) {
    static_assert(kThreads == 2 * kTile, "a thread for each number");
    const int at = static_cast<int>(threadIdx.x), row = at % kTile;
    const bool inside = visible.has(first + row);
    const int64_t from = inside ? scale_place(cache, table, first + row, kv_head) : 0;
    ptx::cp_async4((at < kTile ? of_keys : of_values) + row, (at < kTile ? cache.key_scales : cache.value_scales) + from, inside);
  }
  ROUNDHOUSE_DEVICE void scale_keys(float (&scores)[kTile / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      const float2 pair = *reinterpret_cast<const float2*>(of_keys + n * 8 + lane_of_thread() % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scores[n][2 * half] *= pair.x;
        scores[n][2 * half + 1] *= pair.y;
      }
    }
  }
  // Of this lane's two values in eight: their weights take them over.
  ROUNDHOUSE_DEVICE float2 of_pair(int n) const {
    return *reinterpret_cast<const float2*>(of_values + n * 8 + lane_of_thread() % 4 * 2);
  }
};

template <class C, int kDim>
struct KeyValueTile {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(C));  // of a piece
  static constexpr int kPieces = kDim / kElements;
  alignas(16) C keys[kTile * kDim];
  alignas(16) C values[kTile * kDim];
  TileScales<C> scales;

  static ROUNDHOUSE_DEVICE int at(int row, int piece) { return swizzle<kPieces>(row, piece) * kElements; }

  // Begins to copy positions [first, first + kTile). Those that are not visible become zeros: what the cache has there may
  // be NaN, which even a weight of 0 would let through.
  template <int kThreads>
  ROUNDHOUSE_DEVICE void load(const PagedCache<const C>& cache, const int32_t* table, int kv_head, int first,
                              const Visible& visible) {
#pragma unroll
    for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
      const int number = i * kThreads + static_cast<int>(threadIdx.x), row = number / kPieces, piece = number % kPieces;
      const bool inside = visible.has(first + row);
      const int64_t from = inside ? place(cache, table, first + row, kv_head) + piece * kElements : 0;
      ptx::cp_async16(keys + at(row, piece), cache.keys + from, inside);
      ptx::cp_async16(values + at(row, piece), cache.values + from, inside);
    }
    scales.template load<kThreads>(cache, table, kv_head, first, visible);
  }

  // Scores of a warp's 16 queries with 16 keys from key `first` on.
  ROUNDHOUSE_DEVICE void multiply_keys(float (&scores)[4], float (&next_scores)[4], const uint32_t (&queries)[kDim / 16][4],
                                       int first) const {
    const int lane = lane_of_thread();
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = next_scores[i] = 0.0f;
    if constexpr (sizeof(C) == 1) {
      const int row = first + lane / 8 % 2 * 8 + lane % 8, next = lane / 16;
#pragma unroll
      for (int k = 0; k < kDim / 16; k += 2) {
        uint32_t four[4];
        ptx::ldmatrix4<false>(four, keys + at(row, k + next));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          ptx::mma_bf16(scores, queries[k + j], {neighbours(four[2 * j]), neighbours(four[2 * j] >> 16)});
          ptx::mma_bf16(next_scores, queries[k + j], {neighbours(four[2 * j + 1]), neighbours(four[2 * j + 1] >> 16)});
        }
      }
    } else {
      const int row = first + lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        uint32_t b[4];
        ptx::ldmatrix4<false>(b, keys + at(row, 2 * k + half));
        ptx::mma_bf16(scores, queries[k], {b[0], b[1]});
        ptx::mma_bf16(next_scores, queries[k], {b[2], b[3]});
      }
    }
  }

  // Adds the products of a warp's 16 rows of weights with the values, of which the warp takes dimensions
  // [first, first + 8 kEights).
  template <int kEights>
  ROUNDHOUSE_DEVICE void multiply_values(float (&outputs)[kEights][4], const float (&weights)[kTile / 8][4], int first) const {
    const int lane = lane_of_thread();
    if constexpr (sizeof(C) == 1) {
#pragma unroll
      for (int k = 0; k < kTile / 16; k += 2) {
        uint32_t a[2][4];
        left_side(a[0], weights, k);
        left_side(a[1], weights, k + 1);
#pragma unroll
        for (int n = 0; n < kEights; n += 2) {
          // Transposed in pairs of bytes: a register has two dimensions of two keys.
          uint32_t four[4];
          ptx::ldmatrix4<true>(four, values + at(16 * k + lane, first / 16 + n / 2));
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t low = four[2 * j], high = four[2 * j + 1];
            ptx::mma_bf16(outputs[n], a[j], {ptx::widen_bf16<C>(low), ptx::widen_bf16<C>(high)});
            ptx::mma_bf16(outputs[n + 1], a[j], {ptx::widen_bf16<C>(low >> 8), ptx::widen_bf16<C>(high >> 8)});
          }
        }
      }
    } else {
      const int row = lane / 8 % 2 * 8 + lane % 8, half = lane / 16;
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) {
        uint32_t a[4];
        left_side(a, weights, k);
#pragma unroll
        for (int n = 0; n < kEights; n += 2) {
          uint32_t b[4];
          ptx::ldmatrix4<true>(b, values + at(16 * k + row, first / 8 + n + half));
          ptx::mma_bf16(outputs[n], a, {b[0], b[1]});
          ptx::mma_bf16(outputs[n + 1], a, {b[2], b[3]});
        }
      }
    }
  }

 private:
  // The lower two bytes of a word as bf16.
  static ROUNDHOUSE_DEVICE uint32_t neighbours(uint32_t word) { return ptx::widen_bf16<C>((word & 0xffu) | (word & 0xff00u) << 8); }

  // The weights of keys [16 k, 16 k + 16).
  ROUNDHOUSE_DEVICE void left_side(uint32_t (&a)[4], const float (&weights)[kTile / 8][4], int k) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&eight)[4] = weights[2 * k + n];
      const float2 scale = scales.of_pair(2 * k + n);
#pragma unroll
      for (int half = 0; half < 2; ++half) a[2 * n + half] = ptx::pack_bf16(eight[2 * half] * scale.x, eight[2 * half + 1] * scale.y);
    }
  }
};

// A warp's 16 queries from packed query `first` of a row on, as the left side of products; those beyond the row are 0.
template <int kDim, class C>
ROUNDHOUSE_DEVICE void load_queries(uint32_t (&queries)[kDim / 16][4], const PagedAttention<bfloat16, C>& p,
                                    const AttentionRow& row, int kv_head, int first) {
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
        const uint32_t* from = reinterpret_cast<const uint32_t*>(query + Columns<C>::of_query(k, right));
        queries[k][half + 2 * right] = inside ? *from : 0;
      }
    }
  }
}

// Scales the scores of the keys from `first` on to units of log 2, and hides keys that the queries do not see.
template <int kEights, class C>
ROUNDHOUSE_DEVICE void mask(float (&scores)[kEights][4], const PagedAttention<bfloat16, C>& p, const AttentionRow& row,
                            int first_query, int first) {
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
