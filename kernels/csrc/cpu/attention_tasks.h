// How the threads share a call's work.
#pragma once

#include <algorithm>

#include "cpu/attention.h"

namespace roundhouse {

constexpr int64_t kUnitColumns = 128;  // queries times heads that share what is made of the keys and values of a split

// Some tokens of one row and the heads of one KV head.
struct Unit {
  int64_t row, kv_head;
  int64_t token;     // the first of them in the batch
  int64_t position;  // its place in the sequence
  int64_t count;
};

// A unit, or some splits of one that is so long that threads would wait for the last of them. Which it is changes nothing
// in the sums.
struct Task {
  Unit unit;
  int64_t first, count;  // splits, counted from the first that the row sees anything of
  bool whole;            // they are all of the unit
  int64_t saved;         // where the sums of the unit's splits go if they are not
};

// The tasks of a call.
template <class Worker, class T, class C>
class Tasks {
 public:
  // `threads` of them have their scratch memory; `rest` floats are left.
  Tasks(const PagedAttention<T, C>& p, int64_t threads, int64_t rest)
      : p_(p), shared_(p.heads / p.kv_heads), tokens_(std::max(kUnitColumns / shared_, int64_t{1})) {
    int64_t keys = 0;
    for (int64_t row = 0; row < p.rows; ++row) {
      keys += pieces(row) * p.kv_heads * splits(row) * kSplit;
      bytes_ += pieces(row) * (p.starts[row] + p.counts[row]) * 2 * p.kv_heads * p.dim * static_cast<int64_t>(sizeof(C));
    }
    const int64_t share = keys / (2 * threads) / kSplit;
    if (threads > 1) longest_ = std::max(share, int64_t{1});
    for (int64_t row = 0; row < p.rows; ++row) saved_ += saved_size(row);
    if (saved_ > rest) longest_ = kNoLimit, saved_ = 0;
    for (int64_t row = 0; row < p.rows; ++row) count_ += pieces(row) * p.kv_heads * parts(row);
  }

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  int64_t saved_bytes() const { return saved_ * static_cast<int64_t>(sizeof(float)); }

  // A place in the list of tasks that only goes forward.
  struct Cursor {
    int64_t row = 0, before = 0, token = 0, saved = 0;
  };

  Task at(Cursor& cursor, int64_t task) const {
    int64_t& row = cursor.row;
    while (task - cursor.before >= pieces(row) * p_.kv_heads * parts(row)) {
      cursor.before += pieces(row) * p_.kv_heads * parts(row);
      cursor.saved += saved_size(row);
      cursor.token += p_.counts[row++];
    }
    // Neighbours read the same keys.
    const int64_t cut = parts(row), index = (task - cursor.before) / cut, each = pieces(row);
    const int64_t begin = index % each * tokens_, tokens = std::min<int64_t>(tokens_, p_.counts[row] - begin);
    const int64_t count = (splits(row) + cut - 1) / cut;
    return {{row, index / each, cursor.token + begin, p_.starts[row] + begin, tokens},
            (task - cursor.before) % cut * count,
            count,
            cut == 1,
            cut == 1 ? 0 : cursor.saved + saved_size(row) / (each * p_.kv_heads) * index};
  }

 private:
  static constexpr int64_t kNoLimit = int64_t{1} << 40;

  int64_t pieces(int64_t row) const { return (p_.counts[row] + tokens_ - 1) / tokens_; }
  // Of which anything is seen.
  int64_t splits(int64_t row) const {
    const int64_t oldest = p_.window == 0 ? 0 : std::max(p_.starts[row] - p_.window + 1, int64_t{0});
    return (p_.starts[row] + p_.counts[row] + kSplit - 1) / kSplit - oldest / kSplit;
  }
  // Of a row's units.
  int64_t parts(int64_t row) const { return (splits(row) + longest_ - 1) / longest_; }
  int64_t saved_size(int64_t row) const {
    if (parts(row) <= 1) return 0;
    const int64_t columns = std::min<int64_t>(tokens_, p_.counts[row]) * shared_;
    return pieces(row) * p_.kv_heads * splits(row) * Worker::unit_state_size(columns, p_.dim);
  }

  const PagedAttention<T, C>& p_;
  int64_t shared_, tokens_;
  int64_t longest_ = kNoLimit;  // splits of a part
  int64_t count_ = 0, bytes_ = 0, saved_ = 0;
};

}  // namespace roundhouse
