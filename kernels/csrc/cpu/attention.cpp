#include "cpu/attention.h"

#include <cmath>
#include <type_traits>

#include "cpu/attention_amx.h"
#include "cpu/attention_fma.h"
#include "cpu/attention_tasks.h"
#include "cpu/parallel.h"
#include "cpu/transpose.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
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

// What one thread needs to work on unit after unit, split after split.
template <class Body, class T, class C>
class Worker {
 public:
  static int64_t scratch(int64_t columns, int64_t dim) {
    const int64_t groups = columns / kColumns;
    return aligned(Body::scratch(dim)) + groups * aligned(Body::query_size(dim) * sizeof(typename Body::Query)) +
           (groups + 1) * group_size(dim) * static_cast<int64_t>(sizeof(float));
  }

  Worker(const PagedAttention<T, C>& p, uint8_t* memory) : p_(p), shared_(p.heads / p.kv_heads), body_(p.dim, memory) {
    groups_ = unit_columns(p.heads, p.kv_heads) / kColumns;
    const double scale = 1.4426950408889634 / std::sqrt(static_cast<double>(p.dim));
    scale_.high = static_cast<float>(scale);
    scale_.low = static_cast<float>(scale - static_cast<double>(scale_.high));
    queries_ = memory + aligned(Body::scratch(p.dim));
    query_bytes_ = aligned(Body::query_size(p.dim) * sizeof(typename Body::Query));
    states_ = reinterpret_cast<float*>(queries_ + groups_ * query_bytes_);
    state_size_ = group_size(p.dim);
  }

  // Which keys the next call of `run` will read first.
  void expect(const Task& task) {
    const int64_t oldest = seen_from(task.unit.position);
    const int64_t split = std::max(row_split(task.unit.row) + task.first * kSplit, oldest / kSplit * kSplit);
    const int64_t begin = std::max(split, oldest / Body::kAlign * Body::kAlign);
    const int64_t end = std::min(split + kSplit, task.unit.position + task.unit.count);
    expected_ = {p_.tables + task.unit.row * p_.width + begin / kBlock, task.unit.kv_head, end - begin};
  }

  // A whole unit, or some of its splits: what each of these gives then goes to its place in `states`, of which there is
  // one for each split of the row.
  void run(const Task& task, float* states) {
    begin(task.unit);
    const int64_t from = row_split(unit_.row) + task.first * kSplit;
    const int64_t end = std::min(from + task.count * kSplit, newest_ + 1);
    for (int64_t split = std::max(from, first_split()); split < end; split += kSplit) {
      const int64_t next = split + kSplit, keys = std::min(end - next, kSplit);
      const Ahead ahead = next < end ? Ahead{table_ + next / kBlock, unit_.kv_head, keys} : expected_;
      if (task.whole) {
        attend(split, ahead, states_, split > first_split());
      } else {
        attend(split, ahead, place(states, split), false);
      }
    }
    if (task.whole) write(states_);
    expected_ = {};
  }

  // Adds up what `run` has left of a unit. The sums are those of a whole one, and so is their order.
  void merge_splits(const Unit& unit, float* states) {
    set(unit);
    float* total = nullptr;
    for (int64_t split = first_split(); split <= newest_; split += kSplit) {
      float* state = place(states, split);
      if (total == nullptr) {
        total = state;
        continue;
      }
      if (is_few()) {
        merge_few(total, state);
        continue;
      }
      for (int64_t group = 0; group * kColumns < columns_; ++group) {
        if (!sees(group, split)) continue;
        float *into = total + group * state_size_, *from = state + group * state_size_;
        registers(group) == 1 ? merge<1>(into, from) : merge<2>(into, from);
      }
    }
    write(total);
  }

  // Elements that one split of a unit with so many columns takes in memory.
  static int64_t unit_state_size(int64_t columns, int64_t dim) {
    return (columns + kColumns - 1) / kColumns * group_size(dim);
  }

 private:
  // Sums [dim][columns], their exponents and the sums of their weights; of few columns [columns][few dim].
  static int64_t group_size(int64_t dim) {
    return (std::max((dim + 2) * kColumns, (Body::few_dim(dim) + 2) * kFew) + 15) / 16 * 16;
  }

  bool is_few() const { return columns_ <= Body::few(p_.dim); }
  int registers(int64_t group) const { return columns_ - group * kColumns > kWidth ? 2 : 1; }
  typename Body::Query* query(int64_t group) {
    return reinterpret_cast<typename Body::Query*>(queries_ + group * query_bytes_);
  }
  int64_t seen_from(int64_t position) const {
    return p_.window == 0 ? 0 : std::max(position - p_.window + 1, int64_t{0});
  }
  // Where the splits begin that anything is seen of, by the unit and by all of its row.
  int64_t first_split() const { return oldest_ / kSplit * kSplit; }
  int64_t row_split(int64_t row) const { return seen_from(p_.starts[row]) / kSplit * kSplit; }
  float* place(float* states, int64_t split) const {
    return states + (split - row_split(unit_.row)) / kSplit * unit_state_size(columns_, p_.dim);
  }
  int64_t position(int64_t column) const { return unit_.position + column / shared_; }
  const T* query_of(int64_t column) const {
    return p_.query + (unit_.token + column / shared_) * p_.query_stride + head(column) * p_.dim;
  }
  T* out_of(int64_t column) const {
    return p_.out + ((unit_.token + column / shared_) * p_.heads + head(column)) * p_.dim;
  }
  int64_t head(int64_t column) const { return unit_.kv_head * shared_ + column % shared_; }
  int64_t last_column(int64_t group) const { return std::min((group + 1) * kColumns, columns_) - 1; }

  void set(const Unit& unit) {
    unit_ = unit;
    columns_ = unit.count * shared_;
    table_ = p_.tables + unit.row * p_.width;
    oldest_ = seen_from(unit.position);
    newest_ = unit.position + unit.count - 1;
  }

  void begin(const Unit& unit) {
    set(unit);
    const T* vectors[kColumns];
    if (is_few()) {
      for (int64_t i = 0; i < columns_; ++i) vectors[i] = query_of(i);
      body_.pack_few(vectors, static_cast<int>(columns_), query(0));
      return;
    }
    for (int64_t group = 0; group * kColumns < columns_; ++group) {
      for (int64_t i = 0, column = group * kColumns; i < kColumns; ++i, ++column) {
        vectors[i] = column < columns_ ? query_of(column) : nullptr;
      }
      body_.pack(vectors, registers(group), query(group));
    }
  }

  // What a split gives: to `states`, or added to what they hold if that has `started`.
  void attend(int64_t split, const Ahead& ahead, float* states, bool started) {
    const int64_t begin = std::max(split, oldest_ / Body::kAlign * Body::kAlign);
    const int64_t end = std::min(split + kSplit, newest_ + 1);
    const int32_t* table = table_ + begin / kBlock;
    if (is_few()) {
      int64_t oldest[kFew], newest[kFew];
      for (int64_t i = 0; i < columns_; ++i) newest[i] = position(i), oldest[i] = seen_from(newest[i]);
      float* sums = started ? states_ + groups_ * state_size_ : states;
      const int64_t size = few_size();
      body_.attend_few(p_.cache, unit_.kv_head, table, begin, end, ahead, query(0), static_cast<int>(columns_), scale_,
                       oldest, newest, sums, sums + size, sums + size + kFew);
      if (started) merge_few(states, sums);
      return;
    }
    body_.load(p_.cache, unit_.kv_head, table, begin, end);
    for (int64_t group = 0; group * kColumns < columns_; ++group) {
      float* state = states + group * state_size_;
      if (registers(group) == 1) {
        attend_group<1>(group, begin, end, state, started);
      } else {
        attend_group<2>(group, begin, end, state, started);
      }
    }
  }

  // Whether a group's columns see anything of a split.
  bool sees(int64_t group, int64_t split) const {
    return split <= position(last_column(group)) && split + kSplit > seen_from(position(group * kColumns));
  }

  template <int registers>
  void attend_group(int64_t group, int64_t begin, int64_t end, float* state, bool started) {
    constexpr int ld = registers * kWidth;
    Visible visible;
    const int64_t first = group * kColumns, last = last_column(group);
    for (int i = 0; i < ld; ++i) {
      const int64_t at = position(std::min(first + i, last));
      visible.newest[i] = static_cast<int32_t>(at);
      visible.oldest[i] = static_cast<int32_t>(seen_from(at));
    }
    visible.all_begin = seen_from(position(last));
    visible.all_end = position(first) + 1;
    if (!sees(group, begin / kSplit * kSplit)) {
      if (!started) clear<registers>(state);
      return;
    }
    begin = std::max(begin, seen_from(position(first)) / Body::kAlign * Body::kAlign);
    end = std::min(end, position(last) + 1);
    float* split = started ? states_ + groups_ * state_size_ : state;
    const int64_t size = p_.dim * ld;
    body_.template attend<registers>(query(group), begin, end, scale_, visible, split, split + size,
                                     split + size + ld);
    if (started) merge<registers>(state, split);
  }

  // Of the sums of few columns: room for as many as a body may fill up to.
  int64_t few_size() const { return Body::few_dim(p_.dim) * kFew; }

  void merge_few(float* total, const float* split) const {
    const int64_t dim = Body::few_dim(p_.dim), size = few_size();
    for (int64_t i = 0; i < columns_; ++i) {
      float *exponent = total + size + i, *weights = exponent + kFew;
      const float *split_exponent = split + size + i, *split_weights = split_exponent + kFew;
      const Merge merge(Vector::all(*exponent), Vector::all(*split_exponent));
      merge.largest.store(exponent, 1);
      merge(Vector::all(*weights), Vector::all(*split_weights)).store(weights, 1);
      for (int64_t d = i * dim; d < (i + 1) * dim; d += kWidth) {
        merge(Vector::load(total + d), Vector::load(split + d)).store(total + d);
      }
    }
  }

  // The sums over their weights' sums, as rows.
  void write(const float* states) const {
    if (is_few()) {
      const int64_t dim = Body::few_dim(p_.dim);
      for (int64_t i = 0; i < columns_; ++i) {
        T* target = out_of(i);
        const Vector weights = Vector::all(states[few_size() + kFew + i]);
        Body::in_order(states + i * dim, p_.dim, [&](int64_t d, Vector sums) { (sums / weights).store(target + d); });
      }
      return;
    }
    for (int64_t column = 0; column < columns_; column += kWidth) {
      T* targets[kWidth];
      const int64_t count = std::min<int64_t>(kWidth, columns_ - column), group = column / kColumns;
      for (int64_t i = 0; i < count; ++i) targets[i] = out_of(column + i);
      write_columns(states + group * state_size_ + column % kColumns, registers(group) * kWidth, count, targets);
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
  void write_columns(const float* sums, int64_t ld, int64_t count, T* const* targets) const {
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
  int64_t shared_;
  Body body_;
  Scale scale_;
  int64_t groups_, query_bytes_, state_size_;
  uint8_t* queries_;
  float* states_;  // of a unit's groups, and one for a split
  Ahead expected_;
  Unit unit_{};
  int64_t columns_ = 0, oldest_ = 0, newest_ = 0;
  const int32_t* table_ = nullptr;
};

// A type, as an argument.
template <class Type>
struct Named {
  using type = Type;
};

template <class Body, class T, class C>
void run(const PagedAttention<T, C>& p) {
  const int64_t scratch = Worker<Body, T, C>::scratch(unit_columns(p.heads, p.kv_heads), p.dim);
  const int64_t threads = std::min<int64_t>(omp_get_max_threads(), p.scratch_bytes / scratch);
  float* states = reinterpret_cast<float*>(p.scratch + threads * scratch);
  const int64_t rest = (p.scratch_bytes - threads * scratch) / static_cast<int64_t>(sizeof(float));
  const Tasks<Worker<Body, T, C>, T, C> tasks(p, threads, rest);
  const auto each = [&](int64_t bytes, const auto& use) {
    parallel_dynamic(tasks.count(), bytes, threads, [&](int64_t thread, const auto& next) {
      Worker<Body, T, C> worker(p, p.scratch + thread * scratch);
      // Tasks come in order, so that each thread finds their rows by walking on.
      typename Tasks<Worker<Body, T, C>, T, C>::Cursor cursor;
      for (int64_t number = next(); number < tasks.count();) {
        const Task task = tasks.at(cursor, number);
        // The next one is taken before this one is run, if there is enough for all: its keys can then be asked for.
        const bool early = number + threads < tasks.count();
        if (early) number = next();
        if (early && number < tasks.count()) worker.expect(tasks.at(cursor, number));
        use(worker, task);
        if (!early) number = next();
      }
    });
  };
  each(tasks.bytes(), [&](auto& worker, const Task& task) { worker.run(task, states + task.saved); });
  if (tasks.saved_bytes() == 0) return;
  each(tasks.saved_bytes(), [&](auto& worker, const Task& task) {
    if (!task.whole && task.first == 0) worker.merge_splits(task.unit, states + task.saved);
  });
}

}  // namespace

template <class T, class C>
void paged_attention(const PagedAttention<T, C>& p) {
#if defined(ROUNDHOUSE_AMX)
  if constexpr (std::is_same<T, bfloat16>::value && !std::is_same<C, float16>::value) {
    if (AmxAttention<C>::fits(p.dim)) return run<AmxAttention<C>>(p);
  }
#endif
  run<FmaAttention<T, C>>(p);
}

int64_t paged_attention_scratch(int64_t heads, int64_t kv_heads, int64_t dim, int64_t threads, int64_t rows,
                                int64_t width) {
  int64_t worker = 0, state = 0;
  const auto add = [&](auto body) {
    using Each = typename decltype(body)::type;
    worker = std::max(worker, Each::scratch(unit_columns(heads, kv_heads), dim));
    state = std::max(state, Each::unit_state_size(kColumns, dim));
  };
  add(Named<Worker<FmaAttention<float, float>, float, float>>{});
#if defined(ROUNDHOUSE_AMX)
  if (AmxAttention<int8_t>::fits(dim)) add(Named<Worker<AmxAttention<int8_t>, bfloat16, int8_t>>{});
#endif
  const int64_t splits = (width * kBlock + kSplit - 1) / kSplit;
  const int64_t cut = splits > 1 && threads > 1 ? std::min(rows * kv_heads, 2 * threads) * splits : 0;
  return threads * worker + cut * state * static_cast<int64_t>(sizeof(float));
}

template void paged_attention<float, float>(const PagedAttention<float, float>&);
template void paged_attention<float, bfloat16>(const PagedAttention<float, bfloat16>&);
template void paged_attention<float, float16>(const PagedAttention<float, float16>&);
template void paged_attention<float, float8>(const PagedAttention<float, float8>&);
template void paged_attention<float, int8_t>(const PagedAttention<float, int8_t>&);
template void paged_attention<bfloat16, bfloat16>(const PagedAttention<bfloat16, bfloat16>&);
template void paged_attention<bfloat16, float16>(const PagedAttention<bfloat16, float16>&);
template void paged_attention<bfloat16, float8>(const PagedAttention<bfloat16, float8>&);
template void paged_attention<bfloat16, int8_t>(const PagedAttention<bfloat16, int8_t>&);

}  // namespace roundhouse
