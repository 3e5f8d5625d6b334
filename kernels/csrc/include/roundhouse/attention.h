// Causal attention over a paged cache, for decodes, drafts and prompts' chunks alike, on CUDA.
//
// The query heads that share a KV head, and a few tokens of a row, are the rows of one matrix product (GQA packing), so
// that keys and values are read once for all of them. A query's keys are taken in splits of kSplit at absolute
// positions, and within one in tiles of a fixed size, with a running softmax (FlashAttention-2: Dao, 2023); splits are
// merged in order (FlashDecoding). Rows of few queries have a block per split, others a block for all splits, which does
// the same arithmetic in the same order: what a query gets does not depend on the batch or on how its prompt was cut
// into chunks.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

constexpr int kBlock = 16;   // tokens per block of the cache
constexpr int kTile = 64;    // keys of a tile for tensor cores
constexpr int kSplit = 256;  // keys
constexpr int kFew = 16;     // packed queries (tokens times heads per KV head) of a row that is shared out by splits
constexpr int kMostDimensions = 256;  // of a head

// One layer's keys and values: token t of block b of KV head h is at b * block_stride + t * token_stride +
// h * head_stride, in elements. Eight-bit integers have a scale each, at b * scale_block_stride + h * scale_head_stride +
// t, in floats; of other types there is none.
template <class C>
struct PagedCache {
  C *keys, *values;
  int64_t block_stride, token_stride, head_stride;
  float *key_scales, *value_scales;
  int64_t scale_block_stride, scale_head_stride;
};

// Row r runs tokens [starts[r], starts[r] + counts[r]) of its sequence, whose keys and values are in the blocks
// tables[r * width ...]. Its tokens follow those of row r - 1 in `query` and `out`.
template <class T, class C>
struct PagedAttention {
  T* out;          // [tokens, heads, dim]
  const T* query;  // [tokens, heads, dim], tokens query_stride elements apart
  int64_t query_stride;
  PagedCache<const C> cache;
  const int32_t* tables;
  int64_t width;
  const int32_t *starts, *counts;
  int tokens, rows, heads, kv_heads, dim;
  int most;     // no row has more tokens
  int splits;   // no row has keys beyond these
  int window;   // positions that a query sees, itself included; 0 is all
  float scale;  // of the scores
  void* scratch;

  int group() const { return heads / kv_heads; }
  // The most packed queries of a row that is shared out.
  int packed() const { return most * group() < kFew ? most * group() : kFew; }
  int64_t partials() const { return splits == 1 ? 0 : static_cast<int64_t>(rows) * kv_heads * packed() * splits; }
  // What `scratch` must hold: for each row, KV head, packed query and split a maximum and a sum, then as many outputs.
  int64_t scratch_bytes() const { return partials() * (dim + 2) * static_cast<int64_t>(sizeof(float)); }
};

// On tensor cores: C is bf16, float8 or int8_t, dim is 64 or 128, addresses and strides are multiples of 16 bytes.
template <class C>
void paged_attention(const PagedAttention<bfloat16, C>& p, Stream stream);

// In fp32, for heads of any size up to kMostDimensions: T is float or bf16, and C is T or a smaller type.
template <class T, class C>
void paged_attention_fp32(const PagedAttention<T, C>& p, Stream stream);

}  // namespace roundhouse::cuda
