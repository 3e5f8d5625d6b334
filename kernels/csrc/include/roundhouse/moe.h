// Mixtures of experts on CUDA: which experts a token goes to, their products, and what comes back from them. How many rows
// an expert has is known to the device only.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

constexpr int64_t kMostExperts = 1024;

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
void route_tokens(const RouteTokens<T>& p, Stream stream);

// Rows by expert, each times its expert's weight: out[i] = x[i] weights[e]^T for ends[e - 1] <= i < ends[e]. A number is one
// sum over the inputs in order, in fp32, however many rows its expert has.
struct GroupedLinear {
  bfloat16* out;            // [rows, outputs]
  const bfloat16* x;        // [rows, inputs]
  const bfloat16* weights;  // [experts, outputs, inputs]
  const int64_t* ends;      // [experts]
  int64_t rows, experts;
  int outputs, inputs;  // outputs are even, inputs a multiple of 8; x and weights are aligned to 16 bytes, out to 4
};

void grouped_linear(const GroupedLinear& p, Stream stream);

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
void combine_experts(const CombineExperts<T>& p, Stream stream);

}  // namespace roundhouse::cuda
