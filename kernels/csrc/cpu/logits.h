// What is done to rows of logits before a token is chosen from them.
#pragma once

#include <cstdint>

namespace roundhouse {

// Where the first of the largest numbers is; those that are not numbers are passed over. 0 if there is none.
template <class T>
int64_t first_maximum(const T* row, int64_t count);

// The same for rows one behind the other.
template <class T>
void argmax(int64_t* out, const T* x, int64_t rows, int64_t count);

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
void apply_token_bitmask(const TokenBitmask<T>& p);

// One row of logits. A token that was `seen` has its logit divided by `repetition` if it is positive, and else multiplied
// (Keskar et al., 2019); then `frequency` is subtracted for each of its `counts`, and `presence` once if there are any.
struct TokenPenalties {
  float* logits;
  const float* counts;
  const bool* seen;
  int64_t vocabulary;
  float repetition, presence, frequency;
};

void apply_penalties(const TokenPenalties& p);

// log(sum(e^x)) of each row, in fp64: what log-probabilities are less than logits by.
template <class T>
void log_sum_exp(double* out, const T* x, int64_t rows, int64_t count);

}  // namespace roundhouse
