#include "cpu/embedding.h"

#include <cstring>

#include "cpu/parallel.h"

namespace roundhouse {

bool gather_rows(const GatherRows& p) {
  for (int64_t i = 0; i < p.count; ++i) {
    if (p.rows[i] < 0 || p.rows[i] >= p.height) return false;
  }
  parallel_for(p.count, 2 * p.count * p.bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(p.out + i * p.bytes, p.table + p.rows[i] * p.stride, p.bytes);
  });
  return true;
}

}  // namespace roundhouse
