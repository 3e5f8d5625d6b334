// Rotary position embedding (Su et al., 2021) of queries and keys, and where keys and values go.
#pragma once

#include "cpu/attention.h"

namespace roundhouse {

constexpr int64_t kMostDimensions = 1024;

// Per token: rotates `heads` queries in place, and writes `kv_heads` rotated keys and the values to slots[token] of the
// cache, which is block * kBlock + the token's place in the block. Of `rotated` dimensions, the first of a head, i <
// rotated / 2 is paired with i + rotated / 2 and turned by the angle whose cosine and sine are elements i and i +
// rotated / 2 of row rotations[token] of `table`; the others stay as they are. Eight-bit caches are for at most
// kMostDimensions; int8 ones get a scale per token and head, the largest magnitude over 127.
template <class T, class C>
struct RopeAndStore {
  T* query;        // [tokens, heads, dim], tokens query_stride elements apart; so are the others
  const T* key;
  const T* value;
  int64_t query_stride, key_stride, value_stride;
  const float* table;  // [rows, rotated]
  const int64_t* rotations;
  PagedCache<C> cache;
  const int64_t* slots;
  int64_t tokens, heads, kv_heads, dim, rotated;
};

template <class T, class C>
void rope_and_store(const RopeAndStore<T, C>& p);

}  // namespace roundhouse
