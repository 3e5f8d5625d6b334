#include "cpu/lora.h"

#include <cstring>
#include <optional>

#include "cpu/lora_pieces.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int64_t kInputs = 512;  // of a row of A that is copied together where it goes on in another sector
#if defined(ROUNDHOUSE_AVX2)
constexpr int kShrinkRows = 1;  // at a time: with 8 sums each, what the registers hold
#else
constexpr int kShrinkRows = 3;
#endif

// The sums of eight registers' lanes. Pairs, then fours, then eights of them share their additions.
inline void add_lanes(const Vector* v, float* out) {
#if defined(ROUNDHOUSE_AVX2)
  const auto fold = [](__m256 a, __m256 b) { return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); };
  const auto fold_pairs = [](__m256 a, __m256 b) {
    const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    const __m256 sum = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  };
#else
  const auto fold = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
  const auto fold_pairs = [](__m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  };
#endif
  _mm_storeu_ps(out, fold_pairs(fold(v[0].lanes, v[1].lanes), fold(v[2].lanes, v[3].lanes)));
  _mm_storeu_ps(out + 4, fold_pairs(fold(v[4].lanes, v[5].lanes), fold(v[6].lanes, v[7].lanes)));
}

// sums[m][r] += a[r] . x[m] over `count` inputs.
template <int kCount, class T>
void multiply(const T* const* a, const T* const* x, int64_t count, const Ahead<T>& ahead, Vector (&sums)[kCount][kChunk]) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) {
    ahead.fetch(i);
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
void shrink_rows(const Image<T>& image, int64_t down, int64_t width, const T* const* x, const Ahead<T>& ahead,
                 float* const* out) {
  Vector sums[kCount][kChunk];
  for (auto& row : sums) {
    for (Vector& sum : row) sum = Vector::zero();
  }
  const T* a[kChunk];
  if (const T* found = image.find(down, kChunk * width)) {
    for (int r = 0; r < kChunk; ++r) a[r] = found + r * width;
    multiply<kCount>(a, x, width, ahead, sums);
  } else {
    T copies[kChunk][kInputs];
    const T* inputs[kCount];
    for (int64_t i = 0; i < width; i += kInputs) {
      const int64_t count = std::min(kInputs, width - i);
      for (int r = 0; r < kChunk; ++r) a[r] = image.read(down + r * width + i, count, copies[r]);
      for (int m = 0; m < kCount; ++m) inputs[m] = x[m] + i;
      multiply<kCount>(a, inputs, count, Ahead<T>{nullptr, 0}, sums);
    }
  }
  for (int m = 0; m < kCount; ++m) add_lanes(sums[m], out[m]);
}

template <class T>
void shrink_piece(const AdaptRows<T>& p, const Piece<T>& piece, Ahead<T> ahead) {
  const T* x[kShrinkRows];
  float* out[kShrinkRows];
  const int64_t width = piece.site->width, down = piece.down();
  for (int64_t i = 0; i < piece.count;) {
    const int some = static_cast<int>(std::min<int64_t>(kShrinkRows, piece.count - i));
    for (int m = 0; m < some; ++m) {
      x[m] = p.x + piece.rows[i + m] * width;
      out[m] = piece.shrunk + (i + m) * piece.site->ranks + piece.at;
    }
    if (some == 1) shrink_rows<1>(piece.image, down, width, x, ahead, out);
#if !defined(ROUNDHOUSE_AVX2)
    if (some == 2) shrink_rows<2>(piece.image, down, width, x, ahead, out);
    if (some == 3) shrink_rows<3>(piece.image, down, width, x, ahead, out);
#endif
    ahead.rows = nullptr;
    i += some;
  }
}

// Rows of A^T, as many numbers as there are ranks.
template <class T>
void look_up(const AdaptRows<T>& p, const LoraSite& site, const LoraSegment& segment, const Image<T>& image,
             float* shrunk) {
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
  std::optional<Piece<T>> waiting;
  const auto run = [&](const Ahead<T>& ahead) {
    if (waiting) shrink_piece(p, *waiting, ahead);
  };
  each_segment(p, [&](const LoraSite& site, const LoraSegment& segment, const Image<T>& image, float* shrunk) {
    int64_t first, last;
    if (site.rows >= 0) {
      share.take(1, segment.count, first, last);
      if (first < last) look_up(p, site, segment, image, shrunk);
      return;
    }
    for (const LoraSpan* span = site.spans; span < site.spans + site.count; ++span) {
      const int64_t chunks = span->rank / kChunk;
      share.take(chunks * blocks(segment), piece_cost(segment), first, last);
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / chunks * kRows;
        const Piece<T> piece{&site, span, image, segment.expert, i % chunks * kChunk, p.rows + segment.first + row,
                             std::min(kRows, segment.count - row), shrunk + row * site.ranks};
        run({image.find(piece.down(), kChunk * site.width), site.width});
        waiting = piece;
      }
      shrunk += span->rank;
    }
  });
  run({nullptr, 0});
}

// What is done with a piece's columns of kCount rows, eight ranks at a time. In between, sums are in fp32.
template <int kCount, class T>
struct Rows {
  T* out[kCount];
  float* exact[kCount];  // or null, see AdaptRows
  const float* shrunk[kCount];
  const float *scale, *offset;  // of the columns, or null
  float sums[kCount][kColumns];

  // Columns from i on; a `rest` is how many if they do not fill a register.
  template <bool kFirst, bool kLast, class... Rest>
  void add(const T* const* b, int64_t rank, int64_t i, Rest... rest) {
    Vector weights[kChunk];
    for (int r = 0; r < kChunk; ++r) weights[r] = Vector::load(b[r] + i, rest...);
    for (int m = 0; m < kCount; ++m) {
      Vector sum = kFirst ? load(m, i, rest...) : Vector::load(sums[m] + i);
      for (int r = 0; r < kChunk; ++r) sum = multiply_add(Vector::all(shrunk[m][rank + r]), weights[r], sum);
      if constexpr (kLast) {
        store(sum, m, i, rest...);
      } else {
        sum.store(sums[m] + i);
      }
    }
  }

  template <class... Rest>
  Vector load(int m, int64_t i, Rest... rest) const {
    return exact[m] == nullptr ? Vector::load(out[m] + i, rest...) : Vector::load(exact[m] + i, rest...);
  }

  template <class... Rest>
  void store(Vector sum, int m, int64_t i, Rest... rest) {
    if (scale != nullptr) sum = sum * Vector::load(scale + i, rest...);
    if (offset != nullptr) sum = sum + Vector::load(offset + i, rest...);
    if (exact[m] != nullptr) return sum.store(exact[m] + i, rest...);
    sum.store(out[m] + i, rest...);
  }
};

// Calls body(i) for each register of a row and body(i, rest) for the part of one at its end.
template <class Body>
void each_register(int64_t count, const Body& body) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) body(i);
  if (whole < count) body(whole, static_cast<int>(count - whole));
}

template <int kCount, class T>
void expand_rows(const Piece<T>& piece, Rows<kCount, T>& rows, const Ahead<T>& ahead) {
  const int64_t count = piece.columns(), columns = piece.span->end - piece.span->begin, ranks = piece.span->rank;
  if (ranks == 0) {
    each_register(count, [&](int64_t i, auto... rest) {
      for (int m = 0; m < kCount; ++m) rows.store(rows.load(m, i, rest...), m, i, rest...);
    });
  }
  T copies[kChunk][kColumns];
  for (int64_t rank = 0; rank < ranks; rank += kChunk) {
    const int64_t up = piece.up(rank);
    const T* b[kChunk];
    const T* found = piece.image.find(up, (kChunk - 1) * columns + count);
    for (int r = 0; r < kChunk; ++r) {
      b[r] = found ? found + r * columns : piece.image.read(up + r * columns, count, copies[r]);
    }
    const bool first = rank == 0, last = rank + kChunk == ranks;
    each_register(count, [&](int64_t i, auto... rest) {
      if (last) ahead.fetch(i);
      if (first && last) return rows.template add<true, true>(b, rank, i, rest...);
      if (first) return rows.template add<true, false>(b, rank, i, rest...);
      if (last) return rows.template add<false, true>(b, rank, i, rest...);
      rows.template add<false, false>(b, rank, i, rest...);
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

// Rows [first, first + kCount) of a piece.
template <int kCount, class T>
void expand_some(const AdaptRows<T>& p, const Piece<T>& piece, int64_t first, const float* scale, const float* offset,
                 const Ahead<T>& ahead) {
  Rows<kCount, T> rows;
  rows.scale = scale;
  rows.offset = offset;
  for (int m = 0; m < kCount; ++m) {
    const int64_t begin = piece.rows[first + m] * piece.site->columns + piece.at;
    rows.out[m] = p.exact == nullptr ? p.out + begin : nullptr;
    rows.exact[m] = p.exact == nullptr ? nullptr : p.exact + begin;
    rows.shrunk[m] = piece.shrunk + (first + m) * piece.site->ranks;
  }
  expand_rows(piece, rows, ahead);
}

template <class T>
void expand_piece(const AdaptRows<T>& p, const Piece<T>& piece, Ahead<T> ahead) {
  float scales[kColumns], offsets[kColumns];
  const float* scale = read_vector(piece.image, piece.site->scale, piece.at, piece.columns(), scales);
  const float* offset = read_vector(piece.image, piece.site->offset, piece.at, piece.columns(), offsets);
  for (int64_t i = 0; i < piece.count;) {
    const int some = piece.count - i >= 4 ? 4 : piece.count - i >= 2 ? 2 : 1;
    if (some == 4) expand_some<4>(p, piece, i, scale, offset, ahead);
    if (some == 2) expand_some<2>(p, piece, i, scale, offset, ahead);
    if (some == 1) expand_some<1>(p, piece, i, scale, offset, ahead);
    ahead.rows = nullptr;
    i += some;
  }
}

template <class T>
void expand(const AdaptRows<T>& p, Share share) {
  std::optional<Piece<T>> waiting;
  const auto run = [&](const Ahead<T>& ahead) {
    if (waiting) expand_piece(p, *waiting, ahead);
  };
  each_segment(p, [&](const LoraSite& site, const LoraSegment& segment, const Image<T>& image, float* shrunk) {
    for (const LoraSpan* span = site.spans; span < site.spans + site.count; ++span) {
      const int64_t columns = span->end - span->begin, tiles = (columns + kColumns - 1) / kColumns;
      int64_t first, last;
      share.take(tiles * blocks(segment), (span->rank / kChunk + 1) * piece_cost(segment), first, last);
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / tiles * kRows;
        const Piece<T> piece{&site, span, image, segment.expert, span->begin + i % tiles * kColumns,
                             p.rows + segment.first + row, std::min(kRows, segment.count - row), shrunk + row * site.ranks};
        const bool weights = span->rank > 0;
        run({weights ? image.find(piece.up(0), (kChunk - 1) * columns + piece.columns()) : nullptr, columns});
        waiting = piece;
      }
      shrunk += span->rank;
    }
  });
  run({nullptr, 0});
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
