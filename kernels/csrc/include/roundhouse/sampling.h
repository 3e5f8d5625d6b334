// From logits to tokens, on CUDA.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

// What a row is drawn with, as it comes from the host.
struct Draw {
  double temperature;  // 0: the first maximum, and nothing else counts
  double top_k;        // 0: all
  double top_p;
  double min_p;
  double uniform;  // in (0, 1)
};

// Temperature, top-k, top-p, min-p and the draw itself, row by row and without a sort. Weights are whole multiples of
// 2^-44, so that their sums do not depend on an order: a token keeps its chance to within that. From a vocabulary of 2^20
// on it is 2^-43, from 2^21 on 2^-42 and so on, so that no sum has more than 64 bits. All of these: vocabulary < 2^31.
template <class T>
struct Sample {
  int64_t* tokens;
  const T* logits;  // [rows, vocabulary]
  const Draw* draws;
  int64_t rows, vocabulary;
};

template <class T>
void sample(const Sample<T>& p, Stream stream);

// Of each row of x [rows, width]: where its first maximum is, and log(sum(e^x)) in fp64. Either may be null.
template <class T>
struct ReduceLogits {
  int64_t* first_maximum;
  double* log_sum_exp;
  const T* x;
  int64_t rows, width;
};

template <class T>
void reduce_logits(const ReduceLogits<T>& p, Stream stream);

// Minus infinity wherever bits has a 0: token t is bit t % 32 of word t / 32. Row i of bits is for row rows[i] of the
// logits, or for row i where `rows` is null.
template <class T>
struct TokenBitmask {
  T* logits;
  const uint32_t* bits;
  const int64_t* rows;
  int64_t count, vocabulary, words;
};

template <class T>
void apply_token_bitmask(const TokenBitmask<T>& p, Stream stream);

// One row of logits. A token that was `seen` has its logit divided by `repetition` if it is positive, and else multiplied
// (Keskar et al., 2019); then `frequency` is subtracted for each of its `counts`, and `presence` once if there are any.
struct TokenPenalties {
  float* logits;
  const float* counts;
  const bool* seen;
  int64_t vocabulary;
  float repetition, presence, frequency;
};

void apply_penalties(const TokenPenalties& p, Stream stream);

}  // namespace roundhouse::cuda
