// Rotary position embedding (Su et al., 2021) of queries and keys, and where keys and values go.
#pragma once

#include "cpu/attention.h"

namespace roundhouse {

constexpr int64_t kMostDimensions = 1024;

// Per token: rotates `heads` queries in place, and writes `kv_heads` rotated keys and the values to slots[token] of the
// cache, which is block * kBlock + the token's place in the block. Dimension i < dim / 2 is paired with i + dim / 2 and
// turned by the angle whose cosine and sine are elements i and i + dim / 2 of row rotations[token] of `table`. Eight-bit
// caches are for at most kMostDimensions; int8 ones get a scale per token and head, the largest magnitude over 127.
template <class T, class C>
struct RopeAndStore {
  T* query;        // [tokens, heads, dim], tokens query_stride elements apart; so are the others
  const T* key;
  const T* value;
  int64_t query_stride, key_stride, value_stride;
  const float* table;  // [rows, dim]
  const int64_t* rotations;
  PagedCache<C> cache;
  const int64_t* slots;
  int64_t tokens, heads, kv_heads, dim;
};

template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p);

}  // namespace roundhouse
