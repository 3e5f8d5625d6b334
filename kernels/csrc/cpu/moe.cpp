#include "cpu/moe.h"

#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;

// The largest logits' experts and their weights. Only those chosen count in the renormalised softmax.
template <class T>
void choose(const T* logits, int64_t experts, int64_t k, float* weights, int64_t* chosen) {
  for (int64_t j = 0; j < k; ++j) {
    int64_t best = -1;
    for (int64_t expert = 0; expert < experts; ++expert) {
      if (std::find(chosen, chosen + j, expert) != chosen + j) continue;
      if (best < 0 || to_float(logits[expert]) > to_float(logits[best])) best = expert;
    }
    chosen[j] = best;
  }
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += weights[j] = std::exp(to_float(logits[chosen[j]]) - to_float(logits[chosen[0]]));
  for (int64_t j = 0; j < k; ++j) weights[j] /= sum;
}

}  // namespace

template <class T>
void route_tokens(const RouteTokens<T>& p) {
  std::fill(p.ends, p.ends + p.experts, 0);
  for (int64_t t = 0; t < p.count; ++t) {
    choose(p.logits + t * p.experts, p.experts, p.k, p.weights + t * p.k, p.chosen + t * p.k);
    for (int64_t j = 0; j < p.k; ++j) ++p.ends[p.chosen[t * p.k + j]];
  }
  // First where each expert's pairs begin; as they are put there, that becomes where they end.
  int64_t begin = 0;
  for (int64_t expert = 0; expert < p.experts; ++expert) {
    const int64_t count = p.ends[expert];
    p.ends[expert] = begin;
    begin += count;
  }
  for (int64_t pair = 0; pair < p.count * p.k; ++pair) {
    const int64_t place = p.ends[p.chosen[pair]]++;
    p.order[place] = pair;
    p.places[pair] = place;
    p.tokens[place] = pair / p.k;
  }
}

template <class T>
void combine_experts(const CombineExperts<T>& p) {
  const int64_t bytes = p.count * (p.k + 1) * p.width * static_cast<int64_t>(sizeof(T));
  parallel_for(p.count, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto add = [&](int64_t i, auto... rest) {
        Vector sum = Vector::zero();
        for (int64_t pair = t * p.k; pair < (t + 1) * p.k; ++pair) {
          const Vector output = Vector::load(p.outputs + p.places[pair] * p.width + i, rest...);
          sum = multiply_add(Vector::all(p.weights[pair]), output, sum);
        }
        sum.store(p.out + t * p.width + i, rest...);
      };
      const int64_t whole = p.width / kWidth * kWidth;
      for (int64_t i = 0; i < whole; i += kWidth) add(i);
      if (whole < p.width) add(whole, static_cast<int>(p.width - whole));
    }
  });
}

template void route_tokens<float>(const RouteTokens<float>&);
template void route_tokens<bfloat16>(const RouteTokens<bfloat16>&);
template void combine_experts<float>(const CombineExperts<float>&);
template void combine_experts<bfloat16>(const CombineExperts<bfloat16>&);

}  // namespace roundhouse
