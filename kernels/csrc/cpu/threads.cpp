#include "cpu/threads.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace roundhouse {
namespace {

using Run = void (*)(const void*, int64_t, int64_t);
using Clock = std::chrono::steady_clock;

// How long a thread without work looks out for more before it sleeps.
constexpr auto kLookout = std::chrono::microseconds(200);
// How often it looks between two glances at the clock: for about a microsecond.
constexpr int kLooks = 64;
// How often who waits for a part that another thread runs looks before it offers that thread its core.
constexpr int kPatience = 2000;

// As many as a ticket can count.
constexpr int64_t kMostParts = 0xffff;

// What is to be done, and who does it. There is one for the process, and it is never destroyed: its threads end with
// the process.
class Crew {
 public:
  void run(int64_t parts, Run run, const void* body) {
    parts = std::min(parts, kMostParts);
    if (busy_.exchange(true, std::memory_order_acquire)) {
      for (int64_t part = 0; part < parts; ++part) run(body, part, parts);
      return;
    }
    hire(parts - 1);
    core_.store(sched_getcpu(), std::memory_order_relaxed);
    run_.store(run, std::memory_order_relaxed);
    body_.store(body, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    ++turn_;
    // From here on parts can be taken. Together with that of a sleeper's `asleep_`, this order makes sure that either it
    // sees the work or we see the sleeper.
    ticket_.store(turn_ << 32 | static_cast<uint64_t>(parts) << 16, std::memory_order_seq_cst);
    const int64_t asleep = asleep_.load(std::memory_order_seq_cst);
    if (asleep > 0) wake(parts - 1, asleep);
    while (take_part()) {
    }
    for (int looks = 0; done_.load(std::memory_order_acquire) < parts; ++looks) {
      if (looks < kPatience) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
    busy_.store(false, std::memory_order_release);
  }

 private:
  // A ticket is the number of the work, that of its parts (16 bits) and the next part to be taken (16 bits). A part can
  // only be taken of the work that was looked at: for any other the exchange fails.
  static int64_t next_of(uint64_t ticket) { return static_cast<int64_t>(ticket & 0xffff); }
  static int64_t parts_of(uint64_t ticket) { return static_cast<int64_t>(ticket >> 16 & 0xffff); }

  // Does one part, if there is one that nobody has taken.
  bool take_part() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (next_of(ticket) < parts_of(ticket)) {
      // These are of the ticket's work if the exchange succeeds: they change only after all of its parts were done.
      const Run run = run_.load(std::memory_order_relaxed);
      const void* const body = body_.load(std::memory_order_relaxed);
      if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        run(body, next_of(ticket), parts_of(ticket));
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  bool has_parts() const {
    const uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
    return next_of(ticket) < parts_of(ticket);
  }

  void work() {
    for (;;) {
      auto until = Clock::now() + kLookout;
      while (Clock::now() < until) {
        for (int looks = 0; looks < kLooks; ++looks) {
          if (take_part()) {
            until = Clock::now() + kLookout;
            break;
          }
          _mm_pause();
        }
        // Looking out where the caller should run only keeps it from making work.
        if (sched_getcpu() == core_.load(std::memory_order_relaxed)) sched_yield();
      }
      std::unique_lock<std::mutex> lock(mutex_);
      asleep_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [this] { return has_parts(); });
      asleep_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  // Wakes `count` of those that sleep.
  void wake(int64_t count, int64_t asleep) {
    // Held for a moment: a sleeper has either not looked for work yet, or waits already.
    { const std::lock_guard<std::mutex> lock(mutex_); }
    if (count >= asleep) return wake_.notify_all();
    for (; count > 0; --count) wake_.notify_one();
  }

  // Sees to it that there are so many threads beside the caller, if the system lets us have them.
  void hire(int64_t count) {
    if (count <= hired_) return;
    // Signals are for the process's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; hired_ < count; ++hired_) std::thread([this] { work(); }).detach();
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  std::atomic<bool> busy_{false};
  uint64_t turn_ = 0;
  int64_t hired_ = 0;
  std::atomic<Run> run_{nullptr};
  std::atomic<const void*> body_{nullptr};
  // Of the last caller.
  std::atomic<int> core_{-1};
  // What many look at while nothing happens, and what is counted while work is done, lie apart.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<int64_t> asleep_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

std::atomic<Crew*> crew{nullptr};

Crew* make_crew() {
  // A fork has none of the threads.
  pthread_atfork(nullptr, nullptr, [] { crew.store(new Crew, std::memory_order_release); });
  return new Crew;
}

}  // namespace

void run_parts(int64_t parts, Run run, const void* body) {
  static const bool made = (crew.store(make_crew(), std::memory_order_release), true);
  static_cast<void>(made);
  crew.load(std::memory_order_acquire)->run(parts, run, body);
}

}  // namespace roundhouse
