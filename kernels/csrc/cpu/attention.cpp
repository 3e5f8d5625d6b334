#include "cpu/attention.h"

#include <cmath>
#include <type_traits>

#include "cpu/attention_amx.h"
#include "cpu/attention_fma.h"
#include "cpu/parallel.h"
#include "cpu/transpose.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int64_t kUnitColumns = 128;  // queries times heads that share what is made of the keys and values of a split
constexpr int64_t kLine = 64;

int64_t aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Queries times heads per unit of work, in whole groups of columns.
int64_t unit_columns(int64_t heads, int64_t kv_heads) {
  const int64_t shared = heads / kv_heads;
  return (std::max(kUnitColumns / shared, int64_t{1}) * shared + kColumns - 1) / kColumns * kColumns;
}

// How sums over a split are added to those over the splits before, from both exponents. A split in which a column sees
// nothing leaves the column as it is, bit for bit.
struct Merge {
  Vector largest, down, split_down;

  Merge(Vector exponent, Vector split_exponent) : largest(max(exponent, split_exponent)) {
    // Where both are minus infinity their difference shall be so too.
    const Vector base = max(largest, Vector::all(-3e38f));
    down = exponent - base;
    split_down = split_exponent - base;
  }
  Vector operator()(Vector sum, Vector added) const { return scale_down(sum, down) + scale_down(added, split_down); }
};

// One thread's work on unit after unit: some tokens of one row and the heads of one KV head.
template <class Body, class T, class C>
class Worker {
 public:
  static int64_t scratch(int64_t columns, int64_t dim) {
    const int64_t groups = columns / kColumns;
    return aligned(Body::scratch(dim)) + groups * aligned(Body::query_size(dim) * sizeof(typename Body::Query)) +
           (groups + 1) * aligned(group_size(dim) * sizeof(float));
  }

  Worker(const PagedAttention<T, C>& p, uint8_t* memory) : p_(p), body_(p.dim, memory) {
    groups_ = unit_columns(p.heads, p.kv_heads) / kColumns;
    const double scale = 1.4426950408889634 / std::sqrt(static_cast<double>(p.dim));
    scale_.high = static_cast<float>(scale);
    scale_.low = static_cast<float>(scale - static_cast<double>(scale_.high));
    queries_ = memory + aligned(Body::scratch(p.dim));
    query_bytes_ = aligned(Body::query_size(p.dim) * sizeof(typename Body::Query));
    states_ = reinterpret_cast<float*>(queries_ + groups_ * query_bytes_);
    state_size_ = aligned(group_size(p.dim) * sizeof(float)) / sizeof(float);
  }

  // Tokens [first, first + count) of `row`; the first of all of the row's is `token` of the batch.
  void unit(int64_t row, int64_t token, int64_t first, int64_t count, int64_t kv_head) {
    const int64_t shared = p_.heads / p_.kv_heads, columns = count * shared;
    const int64_t position = p_.starts[row] + first, head = kv_head * shared;
    const int32_t* table = p_.tables + row * p_.width;
    if constexpr (Body::kNarrows) {
      if (columns <= kFew) return few(row, position, token + first, count, kv_head);
      body_.set_columns(0);
    }
    const auto element = [&](int64_t column, int64_t stride) {
      return (token + first + column / shared) * stride + (head + column % shared) * p_.dim;
    };
    for (int64_t group = 0; group * kColumns < columns; ++group) {
      const T* vectors[kColumns];
      for (int i = 0; i < kColumns; ++i) {
        const int64_t column = group * kColumns + i;
        vectors[i] = column < columns ? p_.query + element(column, p_.query_stride) : nullptr;
      }
      body_.pack(vectors, registers(columns, group), query(group));
    }
    const int64_t newest = position + count - 1, oldest = seen_from(position);
    bool started = false;
    for (int64_t split = oldest / kSplit * kSplit; split <= newest; split += kSplit) {
      const int64_t begin = std::max(split, oldest / Body::kAlign * Body::kAlign);
      const int64_t end = std::min(split + kSplit, newest + 1);
      body_.load(p_.cache, kv_head, table + begin / kBlock, begin, end);
      for (int64_t group = 0; group * kColumns < columns; ++group) {
        if (registers(columns, group) == 1) {
          attend<1>(group, columns, position, shared, begin, end, started);
        } else {
          attend<2>(group, columns, position, shared, begin, end, started);
        }
      }
      started = true;
    }
    for (int64_t column = 0; column < columns; column += kWidth) {
      T* targets[kWidth];
      const int64_t count = std::min<int64_t>(kWidth, columns - column);
      for (int64_t i = 0; i < count; ++i) targets[i] = p_.out + element(column + i, p_.heads * p_.dim);
      const int64_t group = column / kColumns;
      write(state(group) + column % kColumns, registers(columns, group) * kWidth, count, targets);
    }
  }

 private:
  // Sums [dim][columns], their exponents and the sums of their weights.
  static int64_t group_size(int64_t dim) { return (dim + 2) * kColumns; }
  static int registers(int64_t columns, int64_t group) { return columns - group * kColumns > kWidth ? 2 : 1; }

  typename Body::Query* query(int64_t group) {
    return reinterpret_cast<typename Body::Query*>(queries_ + group * query_bytes_);
  }
  // That of group `groups_` is the split's, the others the units'.
  float* state(int64_t group) { return states_ + group * state_size_; }
  int64_t seen_from(int64_t position) const {
    return p_.window == 0 ? 0 : std::max(position - p_.window + 1, int64_t{0});
  }

  template <int registers>
  void attend(int64_t group, int64_t columns, int64_t position, int64_t shared, int64_t begin, int64_t end,
              bool started) {
    constexpr int ld = registers * kWidth;
    Visible visible;
    const int64_t first = group * kColumns, last = std::min(first + ld, columns) - 1;
    for (int i = 0; i < ld; ++i) {
      const int64_t at = position + std::min(first + i, last) / shared;
      visible.newest[i] = static_cast<int32_t>(at);
      visible.oldest[i] = static_cast<int32_t>(seen_from(at));
    }
    const int64_t newest = position + last / shared;
    visible.all_begin = seen_from(newest);
    visible.all_end = position + first / shared + 1;
    float* total = state(group);
    begin = std::max(begin, seen_from(position + first / shared) / Body::kAlign * Body::kAlign);
    end = std::min(end, newest + 1);
    if (begin >= end) {
      if (!started) clear<registers>(total);
      return;
    }
    float* split = started ? state(groups_) : total;
    const int64_t size = p_.dim * ld;
    body_.template attend<registers>(query(group), begin, end, scale_, visible, split, split + size,
                                     split + size + ld);
    if (started) merge<registers>(total, split);
  }

  // A unit of up to kFew columns, whose sums lie as [columns][dim]; the first token is `token` of the batch.
  void few(int64_t row, int64_t position, int64_t token, int64_t count, int64_t kv_head) {
    const int64_t shared = p_.heads / p_.kv_heads, columns = count * shared, head = kv_head * shared;
    const int32_t* table = p_.tables + row * p_.width;
    const T* vectors[kFew];
    int64_t oldest[kFew], newest[kFew];
    for (int64_t i = 0; i < columns; ++i) {
      vectors[i] = p_.query + (token + i / shared) * p_.query_stride + (head + i % shared) * p_.dim;
      newest[i] = position + i / shared;
      oldest[i] = seen_from(newest[i]);
    }
    body_.set_columns(static_cast<int>(columns));
    body_.pack_few(vectors, query(0));
    float *total = state(0), *split = state(groups_);
    const int64_t size = columns * p_.dim, last = newest[columns - 1];
    for (int64_t first = oldest[0] / kSplit * kSplit; first <= last; first += kSplit) {
      const int64_t begin = std::max(first, oldest[0] / Body::kAlign * Body::kAlign);
      const int64_t end = std::min(first + kSplit, last + 1);
      body_.load(p_.cache, kv_head, table + begin / kBlock, begin, end);
      const bool started = first > oldest[0];
      float* sums = started ? split : total;
      body_.attend_few(query(0), begin, end, scale_, oldest, newest, sums, sums + size, sums + size + kFew);
      for (int64_t i = 0; started && i < columns; ++i) {
        float *exponent = total + size + i, *weights = exponent + kFew;
        const float *split_exponent = split + size + i, *split_weights = split_exponent + kFew;
        const Merge merge(Vector::all(*exponent), Vector::all(*split_exponent));
        merge.largest.store(exponent, 1);
        merge(Vector::all(*weights), Vector::all(*split_weights)).store(weights, 1);
        for (int64_t d = i * p_.dim; d < (i + 1) * p_.dim; d += kWidth) {
          merge(Vector::load(total + d), Vector::load(split + d)).store(total + d);
        }
      }
    }
    for (int64_t i = 0; i < columns; ++i) {
      T* target = p_.out + ((token + i / shared) * p_.heads + head + i % shared) * p_.dim;
      const Vector weights = Vector::all(total[size + kFew + i]);
      in_order(total + i * p_.dim, p_.dim, [&](int64_t d, Vector sums) { (sums / weights).store(target + d); });
    }
  }

  template <int registers>
  void clear(float* total) const {
    constexpr int ld = registers * kWidth;
    std::fill_n(total, (p_.dim + 2) * ld, 0.0f);
    std::fill_n(total + p_.dim * ld, ld, -INFINITY);
  }

  // Adds a split to those before it.
  template <int registers>
  void merge(float* total, const float* split) const {
    constexpr int ld = registers * kWidth;
    for (int r = 0; r < registers; ++r) {
      float *exponent = total + p_.dim * ld + r * kWidth, *weights = exponent + ld;
      const float *split_exponent = split + p_.dim * ld + r * kWidth, *split_weights = split_exponent + ld;
      const Merge merge(Vector::load(exponent), Vector::load(split_exponent));
      merge.largest.store(exponent);
      merge(Vector::load(weights), Vector::load(split_weights)).store(weights);
      for (int64_t i = 0; i < p_.dim; ++i) {
        float* sum = total + i * ld + r * kWidth;
        merge(Vector::load(sum), Vector::load(split + i * ld + r * kWidth)).store(sum);
      }
    }
  }

  // The first `count` of a register of columns over their weights' sums, as rows.
  void write(const float* sums, int64_t ld, int64_t count, T* const* targets) const {
    const Vector weights = Vector::load(sums + (p_.dim + 1) * ld);
    for (int64_t first = 0; first < p_.dim; first += kWidth) {
      const int64_t dims = std::min<int64_t>(kWidth, p_.dim - first);
      Vector square[kWidth];
      for (int64_t i = 0; i < kWidth; ++i) {
        square[i] = i < dims ? Vector::load(sums + (first + i) * ld) / weights : Vector::zero();
      }
      transpose(square);
      for (int64_t i = 0; i < count; ++i) {
        if (dims == kWidth) {
          square[i].store(targets[i] + first);
        } else {
          square[i].store(targets[i] + first, static_cast<int>(dims));
        }
      }
    }
  }

  const PagedAttention<T, C>& p_;
  Body body_;
  Scale scale_;
  int64_t groups_, query_bytes_, state_size_;
  uint8_t* queries_;
  float* states_;
};

template <class Body, class T, class C>
void run(const PagedAttention<T, C>& p) {
  const int64_t shared = p.heads / p.kv_heads, tokens = std::max(kUnitColumns / shared, int64_t{1});
  const int64_t scratch = Worker<Body, T, C>::scratch(unit_columns(p.heads, p.kv_heads), p.dim);
  const auto pieces = [&](int64_t row) { return (p.counts[row] + tokens - 1) / tokens; };
  int64_t units = 0, bytes = 0;
  for (int64_t row = 0; row < p.rows; ++row) {
    units += pieces(row) * p.kv_heads;
    bytes += pieces(row) * (p.starts[row] + p.counts[row]) * 2 * p.kv_heads * p.dim * static_cast<int64_t>(sizeof(C));
  }
  parallel_dynamic(units, bytes, p.scratch_bytes / scratch, [&](int64_t thread, const auto& next) {
    Worker<Body, T, C> worker(p, p.scratch + thread * scratch);
    // Units come in order, so that each thread finds their rows by walking on.
    int64_t row = 0, before = 0, token = 0;
    for (int64_t unit = next(); unit < units; unit = next()) {
      while (unit - before >= pieces(row) * p.kv_heads) {
        before += pieces(row) * p.kv_heads;
        token += p.counts[row++];
      }
      // Neighbours read the same keys.
      const int64_t head = (unit - before) / pieces(row), first = (unit - before) % pieces(row) * tokens;
      worker.unit(row, token, first, std::min<int64_t>(tokens, p.counts[row] - first), head);
    }
  });
}

}  // namespace

template <class T, class C>
void paged_attention(const PagedAttention<T, C>& p) {
#if defined(ROUNDHOUSE_AMX)
  if constexpr (std::is_same<T, bfloat16>::value) {
    if (AmxAttention<C>::fits(p.dim)) return run<AmxAttention<C>>(p);
  }
#endif
  run<FmaAttention<T, C>>(p);
}

int64_t paged_attention_scratch(int64_t heads, int64_t kv_heads, int64_t dim, int64_t threads) {
  const int64_t columns = unit_columns(heads, kv_heads);
  return threads * Worker<FmaAttention<float, float>, float, float>::scratch(columns, dim);
}

template void paged_attention<float, float>(const PagedAttention<float, float>&);
template void paged_attention<float, bfloat16>(const PagedAttention<float, bfloat16>&);
template void paged_attention<float, float8>(const PagedAttention<float, float8>&);
template void paged_attention<float, int8_t>(const PagedAttention<float, int8_t>&);
template void paged_attention<bfloat16, bfloat16>(const PagedAttention<bfloat16, bfloat16>&);
template void paged_attention<bfloat16, float8>(const PagedAttention<bfloat16, float8>&);
template void paged_attention<bfloat16, int8_t>(const PagedAttention<bfloat16, int8_t>&);

}  // namespace roundhouse
