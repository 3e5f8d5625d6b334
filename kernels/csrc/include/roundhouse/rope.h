// Rotary position embedding (Su et al., 2021) of queries and keys, and where keys and values go, on CUDA.
#pragma once

#include "roundhouse/attention.h"

namespace roundhouse::cuda {

// Per token: rotates `heads` queries in place, and writes `kv_heads` rotated keys and the values to slots[token] of the
// cache, which is block * kBlock + the token's place in the block. Dimension i < dim / 2 is paired with i + dim / 2 and
// turned by the angle whose cosine and sine are elements i and i + dim / 2 of row rotations[token] of `table`.
template <class T>
struct RopeAndStore {
  T* query;  // [tokens, heads, dim], tokens query_stride elements apart; so are the others
  const T *key, *value;
  int64_t query_stride, key_stride, value_stride;
  const float* table;  // [rows, dim]
  const int64_t* rotations;
  T *keys, *values;
  int64_t block_stride, token_stride, head_stride;
  const int64_t* slots;
  int64_t tokens;
  int heads, kv_heads, dim;
};

template <class T>
void rope_and_store(const RopeAndStore<T>& p, Stream stream);

}  // namespace roundhouse::cuda
