// Low-rank adapters (LoRA; Hu et al., 2021), many of them in one batch: out[rows] += (x[rows] A^T) B for each.
//
// An adapter's weights are read where they lie, in sectors of an arena. Rows are grouped by adapter (Punica; Chen et al.,
// 2023); those without one are in no group. What a row gets does not depend on the rows beside it: for every rank one sum
// over the inputs, in registers of fp32 from the first to the last, and for every column one sum over the ranks.
#pragma once

#include <cstdint>

#include "lora_tables.h"

namespace roundhouse {

// Rows [first, first + count) of the list of rows have this adapter, in this expert.
struct LoraSegment {
  int64_t adapter, first, count, expert;
};

// What `lora_tables.h` describes.
class LoraTables {
 public:
  explicit LoraTables(const int64_t* numbers) : numbers_(numbers) {}
  const LoraSite* site(int64_t adapter, int64_t site) const {
    const int64_t* layout = numbers_ + numbers_[2 * adapter];
    if (site >= layout[0] || layout[1 + site] == 0) return nullptr;
    return reinterpret_cast<const LoraSite*>(layout + layout[1 + site]);
  }
  const int64_t* pages(int64_t adapter) const { return numbers_ + numbers_[2 * adapter + 1]; }

 private:
  const int64_t* numbers_;
};

template <class T>
struct AdaptRows {
  T* out;                 // rows of the site's columns
  float* exact;           // the same where they are fp32 although T is not, or null
  const T* x;             // rows of the site's width; null for the embedding
  const int64_t* tokens;  // of each row; null but for the embedding
  const T* arena;
  int64_t sector;  // elements of a sector
  LoraTables tables;
  const LoraSegment* segments;
  int64_t count;        // of segments
  const int64_t* rows;  // of x and out
  float* shrunk;        // room for the site's ranks for every row of the segments
  int64_t site;
};

template <class T>
void adapt_rows(const AdaptRows<T>& p);

// Segments for a layer with experts: each segment of tokens becomes one for every expert that some of them have chosen.
// Choice j of token t, expert experts[t * k + j], is row places[t * k + j]. Returns how many segments there are.
int64_t split_by_expert(const LoraSegment* segments, int64_t count, const int64_t* tokens, const int64_t* experts,
                        const int64_t* places, int64_t k, int64_t number_of_experts, LoraSegment* split, int64_t* rows);

}  // namespace roundhouse
