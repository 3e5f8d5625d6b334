// Which experts tokens go to, and in what order; and the way back.
#pragma once

#include "roundhouse/moe.h"
#include "roundhouse/ptx/trap.cuh"
#include "roundhouse/sampling/logits.cuh"
#include "roundhouse/tile/reduce.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// A warp chooses for a token; lane l looks at experts l, l + 32 and so on.
template <class T>
struct ChooseExpertsBody {
  using Params = RouteTokens<T>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp_of_thread();
    if (token >= p.count) return;
    const T* logits = p.logits + token * p.experts;
    float* weights = p.weights + token * p.k;
    uint32_t taken = 0;  // of this lane's experts
    float first = 0.0f, sum = 0.0f;
    for (int64_t j = 0; j < p.k; ++j) {
      uint64_t best = 0;
      for (int64_t expert = lane_of_thread(), i = 0; expert < p.experts; expert += kWarp, ++i) {
        if ((taken >> i & 1) != 0) continue;
        // One that is no number comes behind all others, but can be chosen.
        best = Max()(best, Max()(ranked(to_float(logits[expert]), expert), uint64_t{0xffffffffu} - expert));
      }
      best = reduce_warp(best, Max());
      const int64_t chosen = place(best);
      if (chosen % kWarp == lane_of_thread()) taken |= 1u << (chosen / kWarp);
      const float logit = to_float(logits[chosen]);
      if (j == 0) first = logit;
      const float weight = expf(logit - first);
      sum += weight;
      if (lane_of_thread() == 0) {
        weights[j] = weight;
        p.chosen[token * p.k + j] = chosen;
      }
    }
    if (lane_of_thread() != 0) return;
    for (int64_t j = 0; j < p.k; ++j) weights[j] /= sum;
  }
};

// A block puts the pairs of one expert where they belong: each of its warps has a part of all pairs, of which it first counts
// those of this expert and of those before.
template <class T>
struct SortPairsBody {
  using Params = RouteTokens<T>;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;

  struct Shared {
    int before[kWarps], own[kWarps];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int64_t expert = blockIdx.x, pairs = p.count * p.k;
    const int warp = warp_of_thread(), lane = lane_of_thread();
    const int64_t share = (pairs + kThreads - 1) / kThreads * kWarp;
    const int64_t begin = warp * share, end = min(begin + share, pairs);
    int before = 0, own = 0;
    for (int64_t pair = begin + lane; pair < end; pair += kWarp) {
      before += p.chosen[pair] < expert;
      own += p.chosen[pair] == expert;
    }
    before = reduce_warp(before, Sum());
    own = reduce_warp(own, Sum());
    if (lane == 0) {
      shared.before[warp] = before;
      shared.own[warp] = own;
    }
    __syncthreads();
    int64_t place = 0, all = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      place += shared.before[i] + (i < warp ? shared.own[i] : 0);
      all += shared.before[i] + shared.own[i];
    }
    if (threadIdx.x == 0) p.ends[expert] = all;
    for (int64_t first = begin; first < end; first += kWarp) {
      const int64_t pair = first + lane;
      const bool here = pair < end && p.chosen[pair] == expert;
      const unsigned votes = __ballot_sync(kAllLanes, here);
      if (here) {
        const int64_t to = place + __popc(votes & ((1u << lane) - 1));
        p.order[to] = pair;
        p.places[pair] = to;
        p.tokens[to] = pair / p.k;
      }
      place += __popc(votes);
    }
  }
};

// A thread has kPer neighbouring columns of a token, to which everything is aligned.
template <class T, int kPer>
struct CombineExpertsBody {
  using Params = CombineExperts<T>;
  using V = Vector<T, kPer>;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t token = blockIdx.x, at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kPer;
    if (at >= p.width) return;
    float sums[kPer] = {};
    for (int64_t pair = token * p.k; pair < (token + 1) * p.k; ++pair) {
      const int64_t place = p.places[pair];
      if (place < 0 || place >= p.count * p.k) ptx::trap();
      const V output = V::load(p.outputs + place * p.width + at);
#pragma unroll
      for (int i = 0; i < kPer; ++i) sums[i] = fmaf(p.weights[pair], output.get(i), sums[i]);
    }
    V out;
#pragma unroll
    for (int i = 0; i < kPer; ++i) out.set(i, sums[i]);
    out.store(p.out + token * p.width + at);
  }
};

}  // namespace roundhouse::cuda
