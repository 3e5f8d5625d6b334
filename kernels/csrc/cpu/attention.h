// Causal attention over a paged cache, for decodes, drafts and prompts' chunks alike.
//
// The cache is read where it lies. A query's keys are taken in splits of kSplit at absolute positions: within a split the
// scores of all keys come first, then their softmax, then the sum over the values; splits are merged in order
// (FlashDecoding with splits of a fixed size: Dao et al., 2023). What a query gets does therefore not depend on the
// batch, on how its prompt was cut into chunks or on the number of threads, among which the splits of a long row may be
// shared.
#pragma once

#include <cstdint>

namespace roundhouse {

constexpr int64_t kBlock = 16;   // tokens per block of the cache
constexpr int64_t kSplit = 512;  // keys

// One layer's keys and values: token t of block b of KV head h is at b * block_stride + h * head_stride +
// t * token_stride, in elements. Eight-bit integers have a scale each, at b * scale_block_stride + h * scale_head_stride +
// t, in floats; of other types there is none.
template <class C>
struct PagedCache {
  C* keys;
  C* values;
  int64_t block_stride, head_stride, token_stride;
  float* key_scales;
  float* value_scales;
  int64_t scale_block_stride, scale_head_stride;

  int64_t place(int64_t block, int64_t head) const { return block * block_stride + head * head_stride; }
  int64_t scale_place(int64_t block, int64_t head) const {
    return block * scale_block_stride + head * scale_head_stride;
  }
};

// Row r runs tokens [starts[r], starts[r] + counts[r]) of its sequence, whose keys and values are in the blocks
// tables[r * width ...]. Its tokens follow those of row r - 1 in `query` and `out`. Scores are scaled by 1 / sqrt(dim).
template <class T, class C>
struct PagedAttention {
  T* out;              // [tokens, heads, dim]
  const T* query;      // [tokens, heads, dim], tokens query_stride elements apart
  int64_t query_stride;
  PagedCache<C> cache;
  const int32_t* tables;
  int64_t width;
  const int32_t* starts;
  const int32_t* counts;
  int64_t rows, heads, kv_heads, dim;
  int64_t window;  // positions that a query sees, itself included; 0 is all
  uint8_t* scratch;
  int64_t scratch_bytes;
};

template <class T, class C>
void paged_attention(const PagedAttention<T, C>& p);

// What `scratch` should hold for a batch of so many rows on so many threads, with tables of `width` blocks. Less will do,
// if there is what a batch without rows needs on one thread: then fewer threads work, or some wait for a long row.
int64_t paged_attention_scratch(int64_t heads, int64_t kv_heads, int64_t dim, int64_t threads, int64_t rows,
                                int64_t width);

}  // namespace roundhouse
