// Low-rank adapters (LoRA; Hu et al., 2021), many of them in one batch: out[rows] += (x[rows] A^T) B for each.
//
// An adapter's weights are read where they lie, in sectors of an arena. Rows are grouped by adapter (Punica; Chen et al.,
// 2023); those without one are in no group. What a row gets does not depend on the rows beside it: for every rank one sum
// over the inputs, in registers of fp32 from the first to the last, and for every column one sum over the ranks.
#pragma once

#include <cstdint>

namespace roundhouse {

constexpr int64_t kLoraChunk = 8;  // ranks come in chunks of so many; all offsets in an image are multiples of it

// Columns [begin, end) of a layer's output. A [experts, rank, width] begins at element `down` of the adapter's image, and
// B [experts, rank, end - begin], with the scaling in it, at `up`. The rank may be 0.
struct LoraSpan {
  int64_t begin, end, rank, down, up;
};

// What an adapter has for one layer. Of `scale` and `offset`, in fp32 and for all columns, it is said where they begin in
// the image, or -1; so are the rows of A^T of the token embedding, which has no A.
struct LoraSite {
  int64_t width, columns, experts, scale, offset, rows, ranks, count;
  LoraSpan spans[1];  // `count` of them, by column; `ranks` in all
};

// Rows [first, first + count) of the list of rows have this adapter, in this expert.
struct LoraSegment {
  int64_t adapter, first, count, expert;
};

// Adapters as numbers: two for each, where its layout and its page table begin among them. A layout is a count, for so many
// sites where they begin behind the layout's beginning (0: it has no such site), and those; a page table names sectors.
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
