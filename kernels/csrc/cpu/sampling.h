// Draws of tokens from logits: temperature, top-k, top-p, min-p and the draw itself, row by row, exact and without a sort.
//
// All that depends on an order of the logits asks for one number of it (the k-th largest; the last one before the sum of
// the larger ones reaches p), which a radix select on their bits finds; usually among a few candidates, because a cut that
// is known to keep enough is made first. Sums are in fp64.
#pragma once

#include <cstdint>

namespace roundhouse {

// What a row is drawn with, in fp64 as it comes from the host.
struct Draw {
  double temperature;  // 0: the first maximum, and nothing else counts
  double top_k;        // 0: all
  double top_p;
  double min_p;
  double uniform;  // in (0, 1)
};

template <class T>
struct Sample {
  int64_t* tokens;
  const T* logits;
  const Draw* draws;
  int64_t rows, vocabulary;
  float* scratch;  // sample_scratch(vocabulary) numbers for each of `threads`
  int64_t threads;
};

int64_t sample_scratch(int64_t vocabulary);

template <class T>
void sample(const Sample<T>& p);

}  // namespace roundhouse
