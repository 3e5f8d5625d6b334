// Rotary position embedding (Su et al., 2021) of queries and keys, and where keys and values go, on CUDA.
#pragma once

#include "roundhouse/attention.h"

namespace roundhouse::cuda {

// Per token: rotates `heads` queries in place, and writes `kv_heads` rotated keys and the values to slots[token] of the
// cache, which is block * kBlock + the token's place in the block. Of `rotated` dimensions, the first of a head, i <
// rotated / 2 is paired with i + rotated / 2 and turned by the angle whose cosine and sine are elements i and i +
// rotated / 2 of row rotations[token] of `table`; the others stay as they are.
//
// A cache of another type than T has heads of kMostDimensions at most. fp8 saturates at 448; of int8 the largest
// magnitude of each head is 127, and its scale is written too.
template <class T, class C>
struct RopeAndStore {
  T* query;  // [tokens, heads, dim], tokens query_stride elements apart; so are the others
  const T *key, *value;
  int64_t query_stride, key_stride, value_stride;
  const float* table;  // [rows, rotated]
  const int64_t* rotations;
  PagedCache<C> cache;
  const int64_t* slots;
  int64_t tokens;
  int heads, kv_heads, dim, rotated;
};

// T is float or bf16, C is T or a smaller type.
template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p, Stream stream);

}  // namespace roundhouse::cuda
