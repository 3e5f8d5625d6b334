// Draws of tokens. What depends on an order of the logits asks for one number of it (the k-th largest; the last one before
// the sum of the larger ones reaches p), which a radix select on the bits of the scores finds: a histogram for eight bits
// at a time. Scores and weights are computed from the logits each time they are wanted, which the cache holds.
#pragma once

#include "roundhouse/sampling/logits.cuh"

namespace roundhouse::cuda {

template <class T>
struct SampleBody {
  using Params = Sample<T>;
  using Whole = unsigned long long;  // a weight in multiples of 2^-44, or of more for a large vocabulary
  static constexpr int kThreads = 1024, kWarps = kThreads / kWarp, kDigits = 256;

  // Of scores, largest first: how many and how much weight there is before a key, and at it.
  struct Selected {
    uint32_t key;
    int64_t count_before, count;
    Whole weight_before, weight;
  };
  struct Shared {
    uint64_t best[kWarps];
    Whole weights[kDigits];
    unsigned counts[kDigits];
    Selected selected;
    Whole sums[kWarps];  // of each warp's part of the vocabulary
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  // A row's logits as scores, which are 0 at most.
  struct Row {
    const T* logits;
    int64_t width;
    float most, temperature;
    float one;  // a weight of 1

    ROUNDHOUSE_DEVICE float score(int64_t i) const { return (to_float(logits[i]) - most) / temperature; }
    ROUNDHOUSE_DEVICE Whole weight(float score) const {
      const float weight = expf(score);
      return weight > 0.0f ? static_cast<Whole>(weight * one) : 0;  // none for what is not a number
    }
  };

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int64_t number = blockIdx.x;
    const T* logits = p.logits + number * p.vocabulary;
    const Draw draw = p.draws[number];
    const int64_t first = first_maximum<kThreads>(logits, p.vocabulary, shared.best);
    const float temperature = static_cast<float>(draw.temperature);
    if (!(temperature > 0.0f)) {
      if (threadIdx.x == 0) p.tokens[number] = first;
      return;
    }
    const Row row{logits, p.vocabulary, to_float(logits[first]), temperature, one(p.vocabulary)};
    float least = static_cast<float>(log(static_cast<double>(static_cast<float>(draw.min_p))));
    if (draw.top_k > 0 || draw.top_p < 1) least = fmaxf(least, least_ranked(row, draw, shared));
    draw_token(row, least, draw.uniform, shared, p.tokens + number);
  }

  // As many as there may be of it have a sum below 2^64.
  static ROUNDHOUSE_DEVICE float one(int64_t vocabulary) {
    float one = 0x1p44f;
    for (int64_t most = 1 << 20; vocabulary >= most; most *= 2) one *= 0.5f;
    return one;
  }

  // The order of scores by their bits: smaller for larger ones.
  static ROUNDHOUSE_DEVICE uint32_t key(float score) { return ptx::bits<uint32_t>(score) & 0x7fffffffu; }

  // The smallest score that top-k and then top-p keep.
  static ROUNDHOUSE_DEVICE float least_ranked(const Row& row, const Draw& draw, Shared& shared) {
    float least = -INFINITY;
    double total = -1;
    const int64_t k = static_cast<int64_t>(draw.top_k);
    if (k > 0 && k <= row.width) {
      const Selected last = select(row, shared, [&](int64_t count, double) { return count >= k; });
      // Of those as likely as the k-th, only so many count as make k.
      const double each = static_cast<double>(last.weight) / static_cast<double>(last.count);
      total = static_cast<double>(last.weight_before) + each * static_cast<double>(k - last.count_before);
      least = ptx::bits<float>(last.key | 0x80000000u);
    }
    if (draw.top_p < 1) {
      if (total < 0) total = static_cast<double>(sum(row, -INFINITY, shared));
      const double goal = draw.top_p * total;
      const Selected last = select(row, shared, [&](int64_t, double weight) { return weight >= goal; });
      least = fmaxf(least, ptx::bits<float>(last.key | 0x80000000u));
    }
    return least;
  }

  // The last key for which `reached(count before it, weight before it)` is false, where the first has no count before it.
  template <class Reached>
  static ROUNDHOUSE_DEVICE Selected select(const Row& row, Shared& shared, const Reached& reached) {
    Selected found{0, 0, 0, 0, 0};
    uint32_t mask = 0;
    for (int step = 0; step < 4; ++step) {
      const int shift = step < 3 ? 23 - 8 * step : 0;  // the last step sees one bit again
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kDigits; i += kThreads) shared.counts[i] = 0, shared.weights[i] = 0;
      __syncthreads();
      for (int64_t i = threadIdx.x; i < row.width; i += kThreads) {
        const float score = row.score(i);
        const uint32_t bits = key(score);
        if ((bits & mask) != found.key) continue;
        const uint32_t digit = bits >> shift & (kDigits - 1);
        atomicAdd(&shared.counts[digit], 1u);
        atomicAdd(&shared.weights[digit], row.weight(score));
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int64_t count = found.count_before;
        Whole weight = found.weight_before;
        uint32_t last = 0;
        for (uint32_t digit = 0; digit < kDigits; ++digit) {
          if (shared.counts[digit] == 0) continue;
          if (count > 0 && reached(count, static_cast<double>(weight))) break;
          last = digit, found.count_before = count, found.weight_before = weight;
          found.count = shared.counts[digit], found.weight = shared.weights[digit];
          count += found.count;
          weight += found.weight;
        }
        found.key |= last << shift;
        shared.selected = found;
      }
      __syncthreads();
      found = shared.selected;
      mask |= (kDigits - 1u) << shift;
    }
    return found;
  }

  // Of each warp's part of the vocabulary: from where, and until where.
  static ROUNDHOUSE_DEVICE int64_t part(const Row& row, int warp) {
    const int64_t steps = (row.width + kWarp - 1) / kWarp;  // of a warp
    return min(row.width, steps * warp / kWarps * kWarp);
  }

  // The weight of the scores of at least `least`; shared.sums has that of each warp's part.
  static ROUNDHOUSE_DEVICE Whole sum(const Row& row, float least, Shared& shared) {
    const int warp = warp_of_thread();
    Whole own = 0;
    for (int64_t i = part(row, warp) + lane_of_thread(); i < part(row, warp + 1); i += kWarp) {
      const float score = row.score(i);
      if (score >= least) own += row.weight(score);
    }
    own = reduce_warp(own, Sum());
    __syncthreads();
    if (lane_of_thread() == 0) shared.sums[warp] = own;
    __syncthreads();
    return reduce_warp(shared.sums[lane_of_thread()], Sum());
  }

  // The token where the sum of the weights, of scores of at least `least`, passes `uniform` of their total; token 0 if
  // there is no weight, as logits that are not numbers have none.
  static ROUNDHOUSE_DEVICE void draw_token(const Row& row, float least, double uniform, Shared& shared, int64_t* token) {
    const Whole total = sum(row, least, shared);
    const double goal = uniform * static_cast<double>(total);
    if (threadIdx.x == 0 && total == 0) *token = 0;
    const int warp = warp_of_thread(), lane = lane_of_thread();
    Whole before = 0;
    for (int i = 0; i < warp; ++i) before += shared.sums[i];
    // One warp has the token in its part.
    if (static_cast<double>(before) > goal || !(static_cast<double>(before + shared.sums[warp]) > goal)) return;
    for (int64_t base = part(row, warp); base < part(row, warp + 1); base += kWarp) {
      const int64_t i = base + lane;
      const float score = i < row.width ? row.score(i) : -INFINITY;
      Whole until = score >= least ? row.weight(score) : 0;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const Whole more = __shfl_up_sync(kAllLanes, until, distance);
        if (lane >= distance) until += more;
      }
      const unsigned passed = __ballot_sync(kAllLanes, static_cast<double>(before + until) > goal);
      if (passed != 0) {
        if (lane == 0) *token = base + __ffs(static_cast<int>(passed)) - 1;
        return;
      }
      before += __shfl_sync(kAllLanes, until, kWarp - 1);
    }
  }
};

}  // namespace roundhouse::cuda
