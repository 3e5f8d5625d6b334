// How the weights of an adapter are described to the bodies of LoRA on any device, in numbers that kernels/lora/tables.py
// writes. Plain C++.
//
// Adapters as numbers: two for each, where its layout and its page table begin among them. A layout is a count, for so many
// sites where they begin behind the layout's beginning (0: it has no such site), and those; a page table names sectors.
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

}  // namespace roundhouse
