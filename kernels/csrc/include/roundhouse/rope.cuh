// The body of rotary embedding with the writing of keys and values.
#pragma once

#include "roundhouse/rope.h"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// A block takes heads of one token, a thread kPerLoad neighbouring dimensions of a head's lower half and their partners.
template <class T, int kPerLoad>
struct RopeAndStoreBody {
  using Params = RopeAndStore<T>;
  using V = Vector<T, kPerLoad>;
  static constexpr int kThreads = 128;
  static constexpr size_t kSharedBytes = 0;

  static int threads_of_head(const Params& p) { return p.dim / 2 / kPerLoad; }

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int half = p.dim / 2, threads = half / kPerLoad;
    const int item = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
    const int head = item / threads, at = item % threads * kPerLoad;
    if (head >= p.heads + 2 * p.kv_heads) return;
    const int64_t token = blockIdx.x;
    const int64_t slot = p.slots[token];
    const auto cached = [&](int kv_head) {
      return slot / kBlock * p.block_stride + slot % kBlock * p.token_stride + kv_head * p.head_stride + at;
    };
    if (head >= p.heads + p.kv_heads) {
      const int kv_head = head - p.heads - p.kv_heads;
      const T* value = p.value + token * p.value_stride + static_cast<int64_t>(kv_head) * p.dim + at;
      T* to = p.values + cached(kv_head);
      V::load(value).store(to);
      V::load(value + half).store(to + half);
      return;
    }
    const float *cos = p.table + p.rotations[token] * p.dim + at, *sin = cos + half;
    if (head < p.heads) {
      T* query = p.query + token * p.query_stride + static_cast<int64_t>(head) * p.dim + at;
      rotate(query, query, cos, sin, half);
    } else {
      const int kv_head = head - p.heads;
      const T* key = p.key + token * p.key_stride + static_cast<int64_t>(kv_head) * p.dim + at;
      rotate(p.keys + cached(kv_head), key, cos, sin, half);
    }
  }

  static ROUNDHOUSE_DEVICE void rotate(T* to, const T* from, const float* cos, const float* sin, int half) {
    V low = V::load(from), high = V::load(from + half);
#pragma unroll
    for (int i = 0; i < kPerLoad; ++i) {
      const float x = low.get(i), y = high.get(i);
      low.set(i, x * cos[i] - y * sin[i]);
      high.set(i, y * cos[i] + x * sin[i]);
    }
    low.store(to);
    high.store(to + half);
  }
};

}  // namespace roundhouse::cuda
