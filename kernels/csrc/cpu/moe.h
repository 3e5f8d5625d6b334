// Mixtures of experts: which experts a token goes to, and what comes back from them.
#pragma once

#include <cstdint>

namespace roundhouse {

// Softmax over all experts, the top k of them, renormalised (Mixtral; Jiang et al., 2024). Of equal logits the first expert
// wins. Pairs (token, choice) are numbered token * k + choice.
template <class T>
struct RouteTokens {
  const T* logits;  // [tokens, experts]
  float* weights;   // [pairs], each token's by falling weight
  int64_t* chosen;  // [pairs], the experts
  int64_t* order;   // [pairs]: pairs by expert, and those of an expert by token
  int64_t* places;  // [pairs]: where each pair is in this order
  int64_t* tokens;  // [pairs]: of each place, its token
  int64_t* ends;    // [experts]: where each expert's pairs end in this order
  int64_t count, experts, k;
};

template <class T>
void route_tokens(const RouteTokens<T>& p);

// out[t] = the sum over t's k pairs of weight * outputs[place], in fp32 and in the order of the choices.
template <class T>
struct CombineExperts {
  T* out;            // [tokens, width]
  const T* outputs;  // [pairs, width], by place
  const float* weights;
  const int64_t* places;
  int64_t count, k, width;
};

template <class T>
void combine_experts(const CombineExperts<T>& p);

}  // namespace roundhouse
