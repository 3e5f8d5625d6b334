// Attention in fp32 for what tensor cores do not take: fp32 queries, and heads of any size up to kMostDimensions.
//
// A block for up to kFew packed queries of a row and a KV head, of which a warp takes every fourth. Keys, then values, of
// a tile are widened to fp32 in shared memory; for the scores a lane has one key of the tile, for the outputs dimensions.
#pragma once

#include <type_traits>

#include "roundhouse/attention/rows.cuh"
#include "roundhouse/tile/softmax.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

template <class T, class C>
struct Fp32Params {
  PagedAttention<T, C> attention;
  bool few;      // rows of few queries, a block for each row, KV head and split; else those of many, a block for all splits
  bool aligned;  // whether keys and values can be read four at a time
};

template <class T, class C>
struct Fp32Attention {
  using Params = Fp32Params<T, C>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kKeys = kWarp;
  static constexpr int kEach = kFew / kWarps;                   // queries of a warp
  static constexpr int kColumns = kMostDimensions / kWarp;      // dimensions of a lane, kWarp apart
  static constexpr int kStride = kMostDimensions + 4;           // of a key, which spreads keys over the banks

  struct Shared {
    float queries[kFew][kMostDimensions];
    float tile[kKeys][kStride];
    float weights[kFew][kKeys];
    AttentionRow row;
    int first;
    int counts[kWarps];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  // The softmax and output of one query.
  struct State {
    float maximum = kNothing, sum = 0.0f;  // the sum is of this lane's keys
    float outputs[kColumns] = {};

    // Adds a later split, in which sums are of whole rows.
    ROUNDHOUSE_DEVICE void add(const State& split) {
      const Merge merge(maximum, sum, split.maximum, reduce_warp(split.sum, Sum()));
#pragma unroll
      for (int i = 0; i < kColumns; ++i) outputs[i] = merge.apply(outputs[i], split.outputs[i]);
      maximum = merge.maximum;
      sum = merge.sum;
    }
  };

  static ROUNDHOUSE_DEVICE void run(const Params& params, unsigned char* memory) {
    const PagedAttention<T, C>& p = params.attention;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int kv_head = static_cast<int>(blockIdx.y), warp = warp_of_thread();
    AttentionRow row;
    int first_query = 0;
    if (params.few) {
      const int number = static_cast<int>(blockIdx.z);
      row = AttentionRow{number, p.starts[number], p.counts[number], p.heads / p.kv_heads, 0};
      if (row.count == 0 || row.packed() > kFew) return;
      row.token = tokens_before<kThreads>(p.counts, number, shared.counts);
    } else {
      if (warp == 0) find_queries<kFew>(p, static_cast<int>(blockIdx.x), shared.row, shared.first);
      __syncthreads();
      row = shared.row;
      if (row.count == 0) return;
      first_query = shared.first;
    }
    const int queries = min(kFew, row.packed() - first_query), own = (queries - warp + kWarps - 1) / kWarps;
    Visible visible(row.position(first_query), row.position(first_query + queries - 1), p.window);
    if (params.few) {
      visible.begin = max(visible.begin, static_cast<int>(blockIdx.x) * kSplit);
      visible.end = min(visible.end, (static_cast<int>(blockIdx.x) + 1) * kSplit);
      if (visible.begin >= visible.end) return;
    }
    for (int i = warp; i < queries; i += kWarps) {
      const T* query = p.query + row.query(first_query + i, kv_head, p.query_stride, p.dim);
      for (int at = lane_of_thread(); at < (p.dim + 3) / 4 * 4; at += kWarp) {
        shared.queries[i][at] = at < p.dim ? to_float(query[at]) : 0.0f;
      }
    }

    State splits[kEach], merged[kEach];
    for (int key = visible.begin / kKeys * kKeys; key < visible.end; key += kKeys) {
      if (key % kSplit == 0) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          merged[i].add(splits[i]);
          splits[i] = State();
        }
      }
      __syncthreads();  // the queries are there, and everybody is done with the values before
      load(params, p.cache.keys, p.cache.key_scales, shared, row, kv_head, key, visible);
      __syncthreads();
      weigh(p, shared, row, first_query, own, key, splits);
      __syncthreads();
      load(params, p.cache.values, p.cache.value_scales, shared, row, kv_head, key, visible);
      __syncthreads();
      add_values(p.dim, shared, own, splits);
    }
    if (params.few && p.splits > 1) return leave(p, row, kv_head, own, splits);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= own) break;
      merged[i].add(splits[i]);
      T* out = p.out + row.query(first_query + warp + i * kWarps, kv_head, static_cast<int64_t>(p.heads) * p.dim, p.dim);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int at = j * kWarp + lane_of_thread();
        if (at < p.dim) out[at] = from_float<T>(merged[i].outputs[j] / merged[i].sum);
      }
    }
  }

  // Keys or values of positions [first, first + kKeys). Those that are not visible become zeros: what the cache has there
  // may be NaN.
  static ROUNDHOUSE_DEVICE void load(const Params& params, const C* numbers, const float* scales, Shared& shared,
                                     const AttentionRow& row, int kv_head, int first, const Visible& visible) {
    const PagedAttention<T, C>& p = params.attention;
    const int32_t* table = p.tables + row.row * p.width;
    const int lane = lane_of_thread();
#pragma unroll 4
    for (int i = warp_of_thread(); i < kKeys; i += kWarps) {
      const bool inside = visible.has(first + i);
      const C* from = inside ? numbers + place(p.cache, table, first + i, kv_head) : nullptr;
      float scale = 1.0f;
      if constexpr (std::is_same_v<C, int8_t>) {
        if (inside) scale = scales[scale_place(p.cache, table, first + i, kv_head)];
      }
      float* to = shared.tile[i];
      if (params.aligned) {
        for (int at = lane * 4; at < p.dim; at += kWarp * 4) {
          Vector<float, 4> four{};
          if (inside) {
            const auto found = Vector<C, 4>::load(from + at);
#pragma unroll
            for (int j = 0; j < 4; ++j) four.set(j, found.get(j) * scale);
          }
          four.store(to + at);
        }
      } else {
        for (int at = lane; at < (p.dim + 3) / 4 * 4; at += kWarp) to[at] = inside && at < p.dim ? to_float(from[at]) * scale : 0.0f;
      }
    }
  }

  // The weights of a tile's keys, which the maxima, sums and outputs so far are fitted to.
  static ROUNDHOUSE_DEVICE void weigh(const PagedAttention<T, C>& p, Shared& shared, const AttentionRow& row, int first_query,
                                      int own, int first, State (&states)[kEach]) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
    float scores[kEach] = {};
    for (int at = 0; at < p.dim; at += 4) {
      const float4 key = *reinterpret_cast<const float4*>(shared.tile[lane] + at);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i >= own) break;
        const float4 query = *reinterpret_cast<const float4*>(shared.queries[warp + i * kWarps] + at);
        scores[i] = fmaf(query.x, key.x, scores[i]);
        scores[i] = fmaf(query.y, key.y, scores[i]);
        scores[i] = fmaf(query.z, key.z, scores[i]);
        scores[i] = fmaf(query.w, key.w, scores[i]);
      }
    }
    const float scale = p.scale * 1.44269504f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= own) break;
      const int position = row.position(first_query + warp + i * kWarps);
      const float score = Visible(position, position, p.window).has(first + lane) ? scores[i] * scale : kNothing;
      State& state = states[i];
      const float highest = fmaxf(state.maximum, reduce_warp(score, Max()));
      const float factor = rescaling(state.maximum, highest);
      state.maximum = highest;
      // Finite, so that masked scores become 0 also where all are masked.
      const float weight = ptx::exp2(score - (highest == kNothing ? 0.0f : highest));
      state.sum = fmaf(state.sum, factor, weight);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) state.outputs[j] *= factor;
      shared.weights[warp + i * kWarps][lane] = weight;
    }
  }

  static ROUNDHOUSE_DEVICE void add_values(int dim, const Shared& shared, int own, State (&states)[kEach]) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
#pragma unroll 4
    for (int key = 0; key < kKeys; ++key) {
      float weights[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) weights[i] = i < own ? shared.weights[warp + i * kWarps][key] : 0.0f;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (j * kWarp >= dim) break;
        const float value = shared.tile[key][j * kWarp + lane];
#pragma unroll
        for (int i = 0; i < kEach; ++i) states[i].outputs[j] = fmaf(weights[i], value, states[i].outputs[j]);
      }
    }
  }

  // What there is to be merged.
  static ROUNDHOUSE_DEVICE void leave(const PagedAttention<T, C>& p, const AttentionRow& row, int kv_head, int own,
                                      const State (&states)[kEach]) {
    const int lane = lane_of_thread(), split = static_cast<int>(blockIdx.x);
    const Partials partials(p, row, kv_head);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i >= own) break;
      const int query = warp_of_thread() + i * kWarps;
      const float sum = reduce_warp(states[i].sum, Sum());
      if (lane == 0) partials.sum(query, split) = make_float2(states[i].maximum, sum);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int at = j * kWarp + lane;
        if (at < p.dim) partials.output(query, split)[at] = states[i].outputs[j];
      }
    }
  }
};

}  // namespace roundhouse::cuda
