// Work shared among threads, as many as torch would use: `--threads` and torch.set_num_threads count for both.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/threads.h"

namespace roundhouse {

// What one more thread should at least have to do, in bytes moved: less is done before its part has come to it.
constexpr int64_t kBytesPerThread = 32 * 1024;

// Calls body(part, parts) for each part in [0, parts): as many parts as threads, as far as `bytes` of work and `most`
// parts are worth it. Which thread runs which part, and how many at a time, is left open: a part may not wait for
// another one. Work that needs all of other work is a second call: one costs about a microsecond.
template <class Body>
void parallel_parts(int64_t most, int64_t bytes, const Body& body) {
  const int64_t parts = std::min<int64_t>({omp_get_max_threads(), most, bytes / kBytesPerThread});
  if (parts <= 1) return body(int64_t{0}, int64_t{1});
  run_parts(
      parts,
      [](const void* it, int64_t part, int64_t total) { (*static_cast<const Body*>(it))(part, total); }, &body);
}

// Calls body(begin, end) for consecutive parts of [0, count), one per thread, of work that moves `bytes` bytes in all.
// What an element computes must not depend on which part it is in.
template <class Body>
void parallel_for(int64_t count, int64_t bytes, const Body& body) {
  if (count <= 0) return;
  parallel_parts(count, bytes, [&](int64_t part, int64_t parts) {
    body(count * part / parts, count * (part + 1) / parts);
  });
}

// Calls body(part, next) for up to `most` parts, numbered from 0, for work on [0, count) that moves `bytes` bytes in all
// and is not the same for each: next() is the next number to work on, in ascending order, or beyond the last.
template <class Body>
void parallel_dynamic(int64_t count, int64_t bytes, int64_t most, const Body& body) {
  if (count <= 0) return;
  std::atomic<int64_t> number{0};
  parallel_parts(std::min(count, most), bytes, [&](int64_t part, int64_t) {
    body(part, [&] { return number.fetch_add(1, std::memory_order_relaxed); });
  });
}

}  // namespace roundhouse
