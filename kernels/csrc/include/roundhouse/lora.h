// Low-rank adapters (LoRA; Hu et al., 2021) on CUDA, many of them in one batch: out[rows] += (x[rows] A^T) B for each.
//
// Weights are read where they lie, in sectors of an arena, and rows are grouped by adapter (Punica; Chen et al., 2023).
// The first launch leaves in scratch memory what x A^T is over every kLoraSplit inputs, the second adds that up, multiplies
// and adds to `out`. For each row and rank both take the same sums in the same order, whatever other rows there are and
// however many of them are computed together; no number is read by the host.
#pragma once

#include "lora_tables.h"
#include "roundhouse/types.h"

namespace roundhouse::cuda {

constexpr int kLoraSplit = 1024;  // inputs that are one sum
constexpr int kTileHeader = 4;    // adapter, count, expert, 0

// A tile is up to `tile_rows` rows of one adapter and, of layers with experts, one expert: kTileHeader numbers, and the
// rows. Beyond `count` they mean nothing; a tile may have none.
struct LoraTiles {
  const int32_t* numbers;  // [count, kTileHeader + rows]
  int64_t count;
  int rows;  // 16 or 64
};

template <class T>
struct AdaptRows {
  T* out;                 // [rows, columns]
  float* exact;           // the same where they are fp32 although T is not, or null
  const T* x;             // [rows, width]; null for the embedding
  const int64_t* tokens;  // [rows]; null but for the embedding
  const T* arena;
  int64_t sector;          // elements of a sector, a multiple of 8
  const int64_t* tables;   // see lora_tables.h
  LoraTiles tiles;
  float* scratch;  // [rows, room]: of each row its splits, each the site's ranks
  int64_t room, rows, width, columns, site;
  int splits;    // of a row: as many as `width` has, and one of the embedding
  bool aligned;  // whether x and out are, to 16 bytes
};

template <class T>
void adapt_rows(const AdaptRows<T>& p, Stream stream);

// Tiles for a layer with experts: tile i of tokens becomes tiles i * number_of_experts + expert of rows. Choice j of token
// t, expert experts[t * k + j], is row places[t * k + j]; no token chooses an expert twice.
struct SplitByExpert {
  int32_t* out;
  LoraTiles tiles;
  const int64_t *experts, *places;  // [tokens, k]
  int64_t tokens, k, number_of_experts;
};

void split_by_expert(const SplitByExpert& p, Stream stream);

}  // namespace roundhouse::cuda
