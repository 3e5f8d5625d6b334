#include "cpu/lora.h"

#include <cstring>

#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int kChunk = kLoraChunk;
constexpr int64_t kInputs = 512;   // of a row of A that is copied together where it goes on in another sector
constexpr int64_t kColumns = 256;  // of the output that are computed together
constexpr int64_t kRows = 48;      // that are one piece of work, so that long prompts are shared by the threads
#if defined(ROUNDHOUSE_AVX2)
constexpr int kShrinkRows = 1;  // at a time: with 8 sums each, what the registers hold
#else
constexpr int kShrinkRows = 3;
#endif
constexpr int kExpandRows = 4;

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

int64_t blocks(const LoraSegment& segment) { return (segment.count + kRows - 1) / kRows; }

// What a piece costs: reading the weights, and a product with each row.
int64_t piece_cost(const LoraSegment& segment) { return std::min(segment.count, kRows) + 4; }

// sums[m][r] += a[r] . x[m] over `count` inputs.
template <int kCount, class T>
void multiply(const T* const* a, const T* const* x, int64_t count, Vector (&sums)[kCount][kChunk]) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) {
    Vector inputs[kCount];
    for (int m = 0; m < kCount; ++m) inputs[m] = Vector::load(x[m] + i);
    for (int r = 0; r < kChunk; ++r) {
      const Vector weights = Vector::load(a[r] + i);
      for (int m = 0; m < kCount; ++m) sums[m][r] = multiply_add(weights, inputs[m], sums[m][r]);
    }
  }
  if (const int rest = static_cast<int>(count - whole)) {
    for (int r = 0; r < kChunk; ++r) {
      const Vector weights = Vector::load(a[r] + whole, rest);
      for (int m = 0; m < kCount; ++m) {
        sums[m][r] = multiply_add(weights, Vector::load(x[m] + whole, rest), sums[m][r]);
      }
    }
  }
}

// Eight numbers x A^T for each of kCount rows; A [8, width] begins at `down`.
template <int kCount, class T>
void shrink_rows(const Image<T>& image, int64_t down, int64_t width, const T* const* x, float* const* out) {
  Vector sums[kCount][kChunk];
  for (auto& row : sums) {
    for (Vector& sum : row) sum = Vector::zero();
  }
  const T* a[kChunk];
  if (const T* found = image.find(down, kChunk * width)) {
    for (int r = 0; r < kChunk; ++r) a[r] = found + r * width;
    multiply<kCount>(a, x, width, sums);
  } else {
    T copies[kChunk][kInputs];
    const T* inputs[kCount];
    for (int64_t i = 0; i < width; i += kInputs) {
      const int64_t count = std::min(kInputs, width - i);
      for (int r = 0; r < kChunk; ++r) a[r] = image.read(down + r * width + i, count, copies[r]);
      for (int m = 0; m < kCount; ++m) inputs[m] = x[m] + i;
      multiply<kCount>(a, inputs, count, sums);
    }
  }
  for (int m = 0; m < kCount; ++m) {
    for (int r = 0; r < kChunk; ++r) out[m][r] = sums[m][r].sum();
  }
}

template <class T>
void shrink_block(const AdaptRows<T>& p, const LoraSite& site, const Image<T>& image, int64_t down, const int64_t* rows,
                  int64_t count, float* shrunk) {
  const T* x[kShrinkRows];
  float* out[kShrinkRows];
  for (int64_t i = 0; i < count;) {
    const int some = static_cast<int>(std::min<int64_t>(kShrinkRows, count - i));
    for (int m = 0; m < some; ++m) {
      x[m] = p.x + rows[i + m] * site.width;
      out[m] = shrunk + (i + m) * site.ranks;
    }
    if (some == 1) shrink_rows<1>(image, down, site.width, x, out);
#if !defined(ROUNDHOUSE_AVX2)
    if (some == 2) shrink_rows<2>(image, down, site.width, x, out);
    if (some == 3) shrink_rows<3>(image, down, site.width, x, out);
#endif
    i += some;
  }
}

// Rows of A^T, as many numbers as there are ranks.
template <class T>
void look_up(const AdaptRows<T>& p, const LoraSite& site, const LoraSegment& segment, const Image<T>& image, float* shrunk) {
  for (int64_t i = 0; i < segment.count; ++i) {
    const int64_t begin = site.rows + p.tokens[p.rows[segment.first + i]] * site.ranks;
    for (int64_t r = 0; r < site.ranks; r += kChunk) {
      const T* found = image.find(begin + r, kChunk);
      for (int j = 0; j < kChunk; ++j) shrunk[i * site.ranks + r + j] = to_float(found[j]);
    }
  }
}

template <class T>
void shrink(const AdaptRows<T>& p, Share share) {
  each_segment(p, [&](const LoraSite& site, const LoraSegment& segment, const Image<T>& image, float* shrunk) {
    int64_t first, last;
    if (site.rows >= 0) {
      share.take(1, segment.count, first, last);
      if (first < last) look_up(p, site, segment, image, shrunk);
      return;
    }
    int64_t before = 0;
    for (const LoraSpan* span = site.spans; span < site.spans + site.count; ++span) {
      const int64_t chunks = span->rank / kChunk;
      share.take(chunks * blocks(segment), piece_cost(segment), first, last);
      for (int64_t i = first; i < last; ++i) {
        const int64_t rank = i % chunks * kChunk, row = i / chunks * kRows;
        const int64_t down = span->down + (segment.expert * span->rank + rank) * site.width;
        shrink_block(p, site, image, down, p.rows + segment.first + row, std::min(kRows, segment.count - row),
                     shrunk + row * site.ranks + before + rank);
      }
      before += span->rank;
    }
  });
}

// sums[m] += shrunk[m] B for `count` columns; b: eight rows of B.
template <int kCount, class T>
void add_products(const T* const* b, const float* const* shrunk, int64_t count, float (*sums)[kColumns]) {
  for (int64_t i = 0; i < count; i += kWidth) {
    const int rest = static_cast<int>(std::min<int64_t>(kWidth, count - i));
    Vector weights[kChunk];
    for (int r = 0; r < kChunk; ++r) weights[r] = rest == kWidth ? Vector::load(b[r] + i) : Vector::load(b[r] + i, rest);
    for (int m = 0; m < kCount; ++m) {
      Vector sum = Vector::load(sums[m] + i);
      for (int r = 0; r < kChunk; ++r) sum = multiply_add(Vector::all(shrunk[m][r]), weights[r], sum);
      sum.store(sums[m] + i);
    }
  }
}

// What `of` does for each register of a row and for the part of one at its end.
template <class Body>
void each_register(int64_t count, const Body& body) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) body(i);
  if (whole < count) body(whole, static_cast<int>(count - whole));
}

// Columns [begin, begin + count) of kCount rows, which begin at `out`; with `scale` and `offset` of those columns, or null.
template <int kCount, class T>
void expand_rows(const Image<T>& image, const LoraSpan& span, int64_t expert, int64_t begin, int64_t count,
                 const float* const* shrunk, T* const* out, const float* scale, const float* offset) {
  float sums[kCount][kColumns];
  for (int m = 0; m < kCount; ++m) {
    each_register(count, [&](int64_t i, auto... rest) { Vector::load(out[m] + i, rest...).store(sums[m] + i); });
  }
  const int64_t columns = span.end - span.begin;
  T copies[kChunk][kColumns];
  for (int64_t rank = 0; rank < span.rank; rank += kChunk) {
    const int64_t up = span.up + (expert * span.rank + rank) * columns + begin - span.begin;
    const T* b[kChunk];
    const T* found = image.find(up, (kChunk - 1) * columns + count);
    for (int r = 0; r < kChunk; ++r) b[r] = found ? found + r * columns : image.read(up + r * columns, count, copies[r]);
    const float* ranks[kCount];
    for (int m = 0; m < kCount; ++m) ranks[m] = shrunk[m] + rank;
    add_products<kCount>(b, ranks, count, sums);
  }
  for (int m = 0; m < kCount; ++m) {
    each_register(count, [&](int64_t i, auto... rest) {
      Vector sum = Vector::load(sums[m] + i, rest...);
      if (scale != nullptr) sum = sum * Vector::load(scale + i, rest...);
      if (offset != nullptr) sum = sum + Vector::load(offset + i, rest...);
      sum.store(out[m] + i, rest...);
    });
  }
}

// Numbers of a vector in fp32 that begin at an element of the image; null if there is no such vector.
template <class T>
const float* read_vector(const Image<T>& image, int64_t vector, int64_t begin, int64_t count, float* copy) {
  if (vector < 0) return nullptr;
  constexpr int64_t kElements = sizeof(float) / sizeof(T);
  const T* found = image.read(vector + begin * kElements, count * kElements, reinterpret_cast<T*>(copy));
  // Elements of an arena are not always aligned like fp32 numbers.
  std::memmove(copy, found, count * sizeof(float));
  return copy;
}

template <class T>
void expand_block(const AdaptRows<T>& p, const LoraSite& site, const LoraSpan& span, const Image<T>& image, int64_t expert,
                  int64_t begin, const int64_t* rows, int64_t row_count, const float* shrunk) {
  const int64_t count = std::min(kColumns, span.end - begin);
  float scales[kColumns], offsets[kColumns];
  const float* scale = read_vector(image, site.scale, begin, count, scales);
  const float* offset = read_vector(image, site.offset, begin, count, offsets);
  const float* ranks[kExpandRows];
  T* out[kExpandRows];
  for (int64_t i = 0; i < row_count;) {
    const int some = row_count - i >= kExpandRows ? kExpandRows : row_count - i >= 2 ? 2 : 1;
    for (int m = 0; m < some; ++m) {
      ranks[m] = shrunk + (i + m) * site.ranks;
      out[m] = p.out + rows[i + m] * site.columns + begin;
    }
    if (some == 1) expand_rows<1>(image, span, expert, begin, count, ranks, out, scale, offset);
    if (some == 2) expand_rows<2>(image, span, expert, begin, count, ranks, out, scale, offset);
    if (some == 4) expand_rows<4>(image, span, expert, begin, count, ranks, out, scale, offset);
    i += some;
  }
}

template <class T>
void expand(const AdaptRows<T>& p, Share share) {
  each_segment(p, [&](const LoraSite& site, const LoraSegment& segment, const Image<T>& image, const float* shrunk) {
    int64_t before = 0;
    for (const LoraSpan* span = site.spans; span < site.spans + site.count; ++span) {
      const int64_t tiles = (span->end - span->begin + kColumns - 1) / kColumns;
      int64_t first, last;
      share.take(tiles * blocks(segment), (span->rank / kChunk + 1) * piece_cost(segment), first, last);
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = span->begin + i % tiles * kColumns, row = i / tiles * kRows;
        expand_block(p, site, *span, image, segment.expert, begin, p.rows + segment.first + row,
                     std::min(kRows, segment.count - row), shrunk + row * site.ranks + before);
      }
      before += span->rank;
    }
  });
}

}  // namespace

template <class T>
void adapt_rows(const AdaptRows<T>& p) {
  int64_t shrinking = 0, expanding = 0, bytes = 0;
  each_segment(p, [&](const LoraSite& site, const LoraSegment& segment, const Image<T>&, float*) {
    const int64_t cost = blocks(segment) * piece_cost(segment);
    shrinking += site.rows >= 0 ? segment.count : site.ranks / kChunk * cost;
    for (const LoraSpan* span = site.spans; span < site.spans + site.count; ++span) {
      expanding += (span->end - span->begin + kColumns - 1) / kColumns * (span->rank / kChunk + 1) * cost;
    }
    // As many as reading the weights for one row takes, for a few more of them.
    bytes += (site.ranks * (site.width + site.columns)) * (segment.count + 4) / 4 * static_cast<int64_t>(sizeof(T));
  });
  if (expanding == 0) return;
  parallel_parts(shrinking, bytes, [&](int64_t part, int64_t parts) {
    shrink(p, Share{shrinking * part / parts, shrinking * (part + 1) / parts});
  });
  parallel_parts(expanding, bytes, [&](int64_t part, int64_t parts) {
    expand(p, Share{expanding * part / parts, expanding * (part + 1) / parts});
  });
}

template void adapt_rows<float>(const AdaptRows<float>&);
template void adapt_rows<bfloat16>(const AdaptRows<bfloat16>&);

int64_t split_by_expert(const LoraSegment* segments, int64_t count, const int64_t* tokens, const int64_t* experts,
                        const int64_t* places, int64_t k, int64_t number_of_experts, LoraSegment* split, int64_t* rows) {
  int64_t found = 0, end = 0;
  for (const LoraSegment* segment = segments; segment < segments + count; ++segment) {
    for (int64_t expert = 0; expert < number_of_experts; ++expert) {
      const int64_t first = end;
      for (int64_t i = segment->first; i < segment->first + segment->count; ++i) {
        for (int64_t j = tokens[i] * k; j < (tokens[i] + 1) * k; ++j) {
          if (experts[j] == expert) rows[end++] = places[j];
        }
      }
      if (end > first) split[found++] = LoraSegment{segment->adapter, first, end - first, expert};
    }
  }
  return found;
}

}  // namespace roundhouse
