// Work shared among the threads that torch uses: the libraries are compiled with OpenMP and find torch's at run time.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace roundhouse {

// What one more thread should at least have to do, in bytes moved: less is done sooner than another thread has woken.
constexpr int64_t kBytesPerThread = 32 * 1024;

// Calls body(begin, end) for consecutive parts of [0, count), one per thread, of work that moves `bytes` bytes in all.
// What an element computes must not depend on which part it is in.
template <class Body>
void parallel_for(int64_t count, int64_t bytes, const Body& body) {
  const int64_t threads = std::min<int64_t>({omp_get_max_threads(), count, bytes / kBytesPerThread});
  if (threads <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t number = omp_get_thread_num(), total = omp_get_num_threads();
    body(count * number / total, count * (number + 1) / total);
  }
}

// Calls body(number, total) on `total` threads at once, as many as `bytes` of work and `most` parts are worth; they may
// meet at barrier(), all of them or none.
template <class Body>
void parallel_region(int64_t most, int64_t bytes, const Body& body) {
  const int64_t threads = std::min<int64_t>({omp_get_max_threads(), most, bytes / kBytesPerThread});
  if (threads <= 1) return body(int64_t{0}, int64_t{1});
#pragma omp parallel num_threads(threads)
  { body(static_cast<int64_t>(omp_get_thread_num()), static_cast<int64_t>(omp_get_num_threads())); }
}

// An orphaned barrier belongs to the region around it, as OpenMP defines it.
inline void barrier() {
#pragma omp barrier
}

// Calls body(thread, next) on up to `most` threads, numbered from 0, for work on [0, count) that moves `bytes` bytes in
// all and is not the same for each: next() is the next number to work on, in ascending order, or beyond the last.
template <class Body>
void parallel_dynamic(int64_t count, int64_t bytes, int64_t most, const Body& body) {
  const int64_t threads = std::min<int64_t>({omp_get_max_threads(), most, count, bytes / kBytesPerThread});
  if (threads <= 1) {
    int64_t number = 0;
    if (count > 0) body(int64_t{0}, [&] { return number++; });
    return;
  }
  std::atomic<int64_t> number{0};
#pragma omp parallel num_threads(threads)
  body(int64_t{omp_get_thread_num()}, [&] { return number.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace roundhouse
