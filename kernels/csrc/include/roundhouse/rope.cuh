// The bodies of rotary embedding with the writing of keys and values.
#pragma once

#include <type_traits>

#include "roundhouse/rope.h"
#include "roundhouse/tile/reduce.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// The pairs of a head, counted from 0 to dim / 2: the rotated ones first, then the other dimensions, as if half were paired
// with half.
template <class T, class C>
struct Pairs {
  int low, high;
  bool rotated;

  ROUNDHOUSE_DEVICE Pairs(const RopeAndStore<T, C>& p, int pair)
      : low(pair < p.rotated / 2 ? pair : pair + p.rotated / 2),
        high(pair + (pair < p.rotated / 2 ? p.rotated : p.dim) / 2),
        rotated(pair < p.rotated / 2) {}
};

// A block takes heads of one token, a thread kPerLoad neighbouring pairs of a head.
template <class T, int kPerLoad>
struct RopeAndStoreBody {
  using Params = RopeAndStore<T, T>;
  using V = Vector<T, kPerLoad>;
  static constexpr int kThreads = 128;
  static constexpr size_t kSharedBytes = 0;

  static int threads_of_head(const Params& p) { return p.dim / 2 / kPerLoad; }

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int threads = p.dim / 2 / kPerLoad;
    const int item = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
    const int head = item / threads;
    const Pairs<T, T> pairs(p, item % threads * kPerLoad);
    if (head >= p.heads + 2 * p.kv_heads) return;
    const int64_t token = blockIdx.x;
    const int64_t slot = p.slots[token];
    const auto cached = [&](int kv_head) {
      return slot / kBlock * p.cache.block_stride + slot % kBlock * p.cache.token_stride + kv_head * p.cache.head_stride;
    };
    if (head >= p.heads + p.kv_heads) {
      const int kv_head = head - p.heads - p.kv_heads;
      const T* value = p.value + token * p.value_stride + static_cast<int64_t>(kv_head) * p.dim;
      T* to = p.cache.values + cached(kv_head);
      V::load(value + pairs.low).store(to + pairs.low);
      V::load(value + pairs.high).store(to + pairs.high);
      return;
    }
    const float* table = p.table + p.rotations[token] * p.rotated;
    if (head < p.heads) {
      T* query = p.query + token * p.query_stride + static_cast<int64_t>(head) * p.dim;
      rotate(query, query, table, p.rotated / 2, pairs);
    } else {
      const int kv_head = head - p.heads;
      const T* key = p.key + token * p.key_stride + static_cast<int64_t>(kv_head) * p.dim;
      rotate(p.cache.keys + cached(kv_head), key, table, p.rotated / 2, pairs);
    }
  }

  static ROUNDHOUSE_DEVICE void rotate(T* to, const T* from, const float* table, int half, const Pairs<T, T>& pairs) {
    V low = V::load(from + pairs.low), high = V::load(from + pairs.high);
    if (pairs.rotated) {
      const float *cos = table + pairs.low, *sin = cos + half;
#pragma unroll
      for (int i = 0; i < kPerLoad; ++i) {
        const float x = low.get(i), y = high.get(i);
        low.set(i, x * cos[i] - y * sin[i]);
        high.set(i, y * cos[i] + x * sin[i]);
      }
    }
    low.store(to + pairs.low);
    high.store(to + pairs.high);
  }
};

// A cache of a narrower type: a warp takes a head of one token, so that it can find the largest magnitude.
template <class T, class C>
struct NarrowRopeAndStoreBody {
  using Params = RopeAndStore<T, C>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kPairs = kMostDimensions / 2 / kWarp;  // of a lane, kWarp apart
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t token = blockIdx.x;
    const int head = static_cast<int>(blockIdx.y) * kWarps + warp_of_thread();
    if (head >= p.heads + 2 * p.kv_heads) return;
    const int half = p.dim / 2, lane = lane_of_thread();
    const bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
    const int kv_head = is_value ? head - p.heads - p.kv_heads : head - p.heads;
    T* query = p.query + token * p.query_stride + static_cast<int64_t>(head) * p.dim;
    const T* from = is_query   ? query
                    : is_value ? p.value + token * p.value_stride + static_cast<int64_t>(kv_head) * p.dim
                               : p.key + token * p.key_stride + static_cast<int64_t>(kv_head) * p.dim;
    const float* table = p.table + p.rotations[token] * p.rotated;
    float low[kPairs] = {}, high[kPairs] = {};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = i * kWarp + lane;
      if (at >= half) break;
      const Pairs<T, C> pair(p, at);
      const float x = to_float(from[pair.low]), y = to_float(from[pair.high]);
      const bool turned = pair.rotated && !is_value;
      low[i] = turned ? x * table[at] - y * table[at + p.rotated / 2] : x;
      high[i] = turned ? y * table[at] + x * table[at + p.rotated / 2] : y;
    }
    if (is_query) return store(p, query, low, high, 1.0f);
    const int64_t slot = p.slots[token], block = slot / kBlock, place = slot % kBlock;
    const int64_t to = block * p.cache.block_stride + place * p.cache.token_stride + kv_head * p.cache.head_stride;
    float step = 1.0f;
    if constexpr (std::is_same_v<C, int8_t>) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) most = fmaxf(most, fmaxf(fabsf(low[i]), fabsf(high[i])));
      const float scale = reduce_warp(most, Max()) / 127.0f;
      const int64_t at = block * p.cache.scale_block_stride + kv_head * p.cache.scale_head_stride + place;
      if (lane == 0) (is_value ? p.cache.value_scales : p.cache.key_scales)[at] = scale;
      if (scale != 0.0f) step = scale;
    }
    store(p, (is_value ? p.cache.values : p.cache.keys) + to, low, high, step);
  }

  template <class To>
  static ROUNDHOUSE_DEVICE void store(const Params& p, To* to, const float (&low)[kPairs], const float (&high)[kPairs],
                                      float step) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = i * kWarp + lane_of_thread();
      if (at >= p.dim / 2) break;
      const Pairs<T, C> pair(p, at);
      to[pair.low] = from_float<To>(low[i] / step);
      to[pair.high] = from_float<To>(high[i] / step);
    }
  }
};

}  // namespace roundhouse::cuda
