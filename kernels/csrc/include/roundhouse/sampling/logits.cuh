// What is done to rows of logits before a token is chosen from them, and what else is asked of them.
#pragma once

#include "roundhouse/sampling.h"
#include "roundhouse/tile/reduce.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// A number and where it is, such that the largest is the first of the largest numbers; 0 is below all of them.
ROUNDHOUSE_DEVICE uint64_t ranked(float x, int64_t at) {
  if (x != x) return 0;
  const uint32_t word = ptx::bits<uint32_t>(x + 0.0f);  // one zero
  const uint32_t ordered = word >> 31 != 0 ? ~word : word | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(at));
}

ROUNDHOUSE_DEVICE int64_t place(uint64_t ranked) { return ranked == 0 ? 0 : 0xffffffffu - static_cast<uint32_t>(ranked); }

// The first maximum of a row, by all threads of a block.
template <int kThreads, class T>
ROUNDHOUSE_DEVICE int64_t first_maximum(const T* row, int64_t width, uint64_t* shared) {
  uint64_t best = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) best = Max()(best, ranked(to_float(row[i]), i));
  return place(reduce_block<kThreads / kWarp>(best, Max(), shared));
}

template <class T>
struct ReduceLogitsBody {
  using Params = ReduceLogits<T>;
  static constexpr int kThreads = 1024;

  struct Shared {
    uint64_t best[kThreads / kWarp];
    double sums[kThreads / kWarp];
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int64_t row = blockIdx.x;
    const T* x = p.x + row * p.width;
    const int64_t first = first_maximum<kThreads>(x, p.width, shared.best);
    if (p.first_maximum != nullptr && threadIdx.x == 0) p.first_maximum[row] = first;
    if (p.log_sum_exp == nullptr) return;
    const float most = to_float(x[first]);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < p.width; i += kThreads) sum += static_cast<double>(expf(to_float(x[i]) - most));
    sum = reduce_block<kThreads / kWarp>(sum, Sum(), shared.sums);
    // Infinite logits are less than nothing apart from each other.
    const bool finite = most - most == 0.0f;
    if (threadIdx.x == 0) p.log_sum_exp[row] = finite ? static_cast<double>(most) + log(sum) : static_cast<double>(most);
  }
};

template <class T>
struct TokenBitmaskBody {
  using Params = TokenBitmask<T>;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t row = blockIdx.y, token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (token >= p.vocabulary || (p.bits[row * p.words + token / 32] >> (token % 32) & 1) != 0) return;
    const int64_t target = p.rows == nullptr ? row : p.rows[row];
    p.logits[target * p.vocabulary + token] = from_float<T>(-INFINITY);
  }
};

struct TokenPenaltiesBody {
  using Params = TokenPenalties;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (token >= p.vocabulary) return;
    float logit = p.logits[token];
    if (p.seen[token]) logit = logit > 0.0f ? logit / p.repetition : logit * p.repetition;
    const float count = p.counts[token];
    logit -= count * p.frequency;
    if (count > 0.0f) logit -= p.presence;
    p.logits[token] = logit;
  }
};

}  // namespace roundhouse::cuda
