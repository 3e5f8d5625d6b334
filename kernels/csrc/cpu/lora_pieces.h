// How the work of adapting rows is cut into pieces for threads, and where a piece finds its weights.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/lora.h"

namespace roundhouse {

constexpr int kChunk = kLoraChunk;
constexpr int64_t kColumns = 256;  // of the output that are computed together
constexpr int64_t kRows = 48;      // that are one piece of work, so that long prompts are shared by the threads

// An adapter's image.
template <class T>
struct Image {
  const T* arena;
  int64_t sector;
  const int64_t* pages;

  // Elements [begin, begin + count), or null if they are not all in one sector.
  const T* find(int64_t begin, int64_t count) const {
    const int64_t page = begin / sector, offset = begin - page * sector;
    return offset + count <= sector ? arena + pages[page] * sector + offset : nullptr;
  }
  // The same, copied together if need be.
  const T* read(int64_t begin, int64_t count, T* copy) const {
    if (const T* found = find(begin, count)) return found;
    for (int64_t done = 0; done < count;) {
      const int64_t page = (begin + done) / sector, offset = begin + done - page * sector;
      const int64_t some = std::min(count - done, sector - offset);
      std::memcpy(copy + done, arena + pages[page] * sector + offset, some * sizeof(T));
      done += some;
    }
    return copy;
  }
};

// Work in one order, cut into equal parts for the threads; a part is what lies in [begin, end).
struct Share {
  int64_t begin, end, at = 0;

  // Of `count` pieces that cost `cost` each, those that are in this part: [first, last).
  void take(int64_t count, int64_t cost, int64_t& first, int64_t& last) {
    first = begin <= at ? 0 : std::min(count, (begin - at + cost - 1) / cost);
    last = end >= at + count * cost ? count : end <= at ? 0 : (end - at + cost - 1) / cost;
    at += count * cost;
  }
};

// Calls body(site, segment, image, shrunk) for each segment whose adapter has the site.
template <class T, class Body>
void each_segment(const AdaptRows<T>& p, const Body& body) {
  float* shrunk = p.shrunk;
  for (int64_t i = 0; i < p.count; ++i) {
    const LoraSegment& segment = p.segments[i];
    const LoraSite* site = p.tables.site(segment.adapter, p.site);
    if (site == nullptr) continue;
    body(*site, segment, Image<T>{p.arena, p.sector, p.tables.pages(segment.adapter)}, shrunk);
    shrunk += segment.count * site->ranks;
  }
}

// Some rows of a segment, and either eight ranks of a part, from `at` on, or some of its columns, from `at` on.
template <class T>
struct Piece {
  const LoraSite* site;
  const LoraSpan* span;
  Image<T> image;
  int64_t expert, at;
  const int64_t* rows;
  int64_t count;
  float* shrunk;  // of the part, for the first of the rows

  // Where A has the ranks and where B has the columns, of the ranks from `rank` on.
  int64_t down() const { return span->down + (expert * span->rank + at) * site->width; }
  int64_t up(int64_t rank) const {
    return span->up + (expert * span->rank + rank) * (span->end - span->begin) + at - span->begin;
  }
  int64_t columns() const { return std::min(kColumns, span->end - at); }
};

inline int64_t blocks(const LoraSegment& segment) { return (segment.count + kRows - 1) / kRows; }

// What a piece costs: reading the weights, and a product with each row.
inline int64_t piece_cost(const LoraSegment& segment) { return std::min(segment.count, kRows) + 4; }

// Eight rows that a thread will read next, `stride` elements apart; null where it is not known. They are asked for while
// the ones before are used: rows of several adapters, eight at a time, are not what the processor foresees by itself.
template <class T>
struct Ahead {
  const T* rows;
  int64_t stride;

  void fetch(int64_t i) const {
    if (rows == nullptr || i % (64 / static_cast<int64_t>(sizeof(T))) != 0) return;
    for (int r = 0; r < kChunk; ++r) _mm_prefetch(reinterpret_cast<const char*>(rows + r * stride + i), _MM_HINT_T1);
  }
};

}  // namespace roundhouse
