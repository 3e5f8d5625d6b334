#include "emulator/emulator.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator/stacks.h"

namespace roundhouse::emulator {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kGuard = 4096, kAlignment = 1024;
constexpr unsigned char kPoison = 0xff;  // a NaN in every floating-point type

struct Copy {
  char* destination;
  const char* source;
  int size, bytes;

  void arrive() const {
    std::memcpy(destination, source, bytes);
    std::memset(destination + bytes, 0, size - bytes);
  }
};

// Where threads meet: as often as all of them have come, `round` grows.
struct Meeting {
  uint32_t mask = 0;
  unsigned arrived = 0;
  uint64_t round = 0;
  void* arguments[kWarp] = {};
};

struct Fiber {
  void* stack = nullptr;
  Position position{};
  bool done = false;
  const Meeting* waits_for = nullptr;
  uint64_t round = 0;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> committed;

  bool ready() const { return !done && (waits_for == nullptr || waits_for->round != round); }
};

enum class Arrival { kLate, kEarly, kEither };

struct Schedule {
  std::mt19937_64 random;
  bool shuffled, skewed;
  Arrival arrival;

  explicit Schedule(uint64_t seed)
      : random(seed), shuffled(seed != 0), skewed(seed % 2 == 1), arrival(static_cast<Arrival>(seed % 3)) {}

  template <class T>
  void shuffle(std::vector<T>& order) {
    if (shuffled) std::shuffle(order.begin(), order.end(), random);
  }
  bool early() { return arrival == Arrival::kEarly || (arrival == Arrival::kEither && random() % 2 == 0); }
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<std::deque<Meeting>> meetings;  // of each warp, by mask
  Meeting barrier;
  std::exception_ptr error;
};

// One launch at a time: the state is plain, for a thread-local address could be kept in a register across a switch.
std::mutex launches;
uint64_t next_seed = 0;
Schedule schedule(0);
Block block;
Fiber* current = nullptr;
void* scheduler_stack = nullptr;
void (*body)(const void*, unsigned char*) = nullptr;
const void* body_argument = nullptr;
unsigned char* body_shared = nullptr;

void wait(const Meeting& meeting, uint64_t round) {
  current->waits_for = &meeting;
  current->round = round;
  roundhouse_switch_stack(&current->stack, scheduler_stack);
}

// What a fiber runs. An exception must not leave it: there is nothing below it on its stack.
void enter() {
  try {
    body(body_argument, body_shared);
  } catch (...) {
    block.error = std::current_exception();
  }
  for (const std::vector<Copy>& group : current->committed) std::for_each(group.begin(), group.end(), [](auto& copy) { copy.arrive(); });
  current->done = true;
  roundhouse_switch_stack(&current->stack, scheduler_stack);
}

void start(dim3 blocks, unsigned threads, uint3 index, Stacks& stacks) {
  block.fibers.assign(threads, {});
  block.meetings.assign((threads + kWarp - 1) / kWarp, {});
  block.barrier = {};
  block.error = nullptr;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = block.fibers[i];
    fiber.position = {{i, 0, 0}, index, dim3(threads), blocks, i % kWarp, i / kWarp};
    fiber.stack = stacks.prepare(i, enter);
  }
}

// Lets threads run until all have returned.
void finish(unsigned threads) {
  std::vector<unsigned> warps(block.meetings.size()), lanes(kWarp);
  std::iota(warps.begin(), warps.end(), 0u);
  std::iota(lanes.begin(), lanes.end(), 0u);
  for (;;) {
    schedule.shuffle(warps);
    schedule.shuffle(lanes);
    bool any = false;
    for (const unsigned warp : warps) {
      bool ran;
      do {
        ran = false;
        for (const unsigned lane : lanes) {
          const unsigned i = warp * kWarp + lane;
          if (i >= threads || !block.fibers[i].ready()) continue;
          current = &block.fibers[i];
          roundhouse_switch_stack(&scheduler_stack, current->stack);
          if (block.error != nullptr) std::rethrow_exception(block.error);
          ran = any = true;
        }
      } while (schedule.skewed && ran);
    }
    if (!any) break;
  }
  const auto waiting = std::count_if(block.fibers.begin(), block.fibers.end(), [](const Fiber& fiber) { return !fiber.done; });
  if (waiting == 0) return;
  const uint3 at = block.fibers[0].position.block;
  throw std::runtime_error(std::to_string(waiting) + " of " + std::to_string(threads) + " threads of block (" +
                           std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
                           ") wait for others that never come");
}

}  // namespace

const Position& position() { return current->position; }

void barrier() {
  Meeting& meeting = block.barrier;
  const uint64_t round = meeting.round;
  if (++meeting.arrived == block.fibers.size()) {
    meeting.arrived = 0;
    ++meeting.round;
    return;
  }
  wait(meeting, round);
}

void together(uint32_t mask, void* argument, void (*work)(void* const*, uint32_t)) {
  std::deque<Meeting>& meetings = block.meetings[current->position.warp];
  auto meeting = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& m) { return m.mask == mask; });
  if (meeting == meetings.end()) {
    meetings.push_back({});
    meeting = meetings.end() - 1;
    meeting->mask = mask;
  }
  if (!(mask >> current->position.lane & 1)) throw std::runtime_error("a thread is not in the mask that it names");
  meeting->arguments[current->position.lane] = argument;
  const uint64_t round = meeting->round;
  if (++meeting->arrived == static_cast<unsigned>(__builtin_popcount(mask))) {
    meeting->arrived = 0;
    work(meeting->arguments, mask);
    ++meeting->round;
    return;
  }
  wait(*meeting, round);
}

void copy_async(void* destination, const void* source, int size, int bytes) {
  if (reinterpret_cast<uintptr_t>(destination) % size != 0 || (bytes != 0 && reinterpret_cast<uintptr_t>(source) % size != 0)) {
    throw std::runtime_error("an asynchronous copy is not aligned to its size");
  }
  const Copy copy{static_cast<char*>(destination), static_cast<const char*>(source), size, bytes};
  schedule.early() ? copy.arrive() : current->open.push_back(copy);
}

void commit_copies() {
  current->committed.push_back(std::move(current->open));
  current->open.clear();
}

void wait_for_copies(int pending) {
  auto& groups = current->committed;
  while (static_cast<int>(groups.size()) > pending) {
    for (const Copy& copy : groups.front()) copy.arrive();
    groups.pop_front();
  }
}

void set_seed(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(launches);
  next_seed = seed;
}

void run(dim3 blocks, unsigned threads, size_t shared_bytes, void (*function)(const void*, unsigned char*),
         const void* argument) {
  const std::lock_guard<std::mutex> lock(launches);
  if (threads == 0 || threads > 1024 || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.y > 65535 || blocks.z > 65535) {
    throw std::runtime_error("a GPU takes no launch of this size");
  }
  if (shared_bytes > 227 * 1024) throw std::runtime_error("no GPU has this much shared memory for a block");
  static Stacks stacks;
  stacks.reserve(threads);
  schedule = Schedule(next_seed);
  body = function;
  body_argument = argument;
  std::vector<unsigned char> memory(shared_bytes + kAlignment + kGuard);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory.data()) % kAlignment;
  body_shared = memory.data() + (misaligned == 0 ? 0 : kAlignment - misaligned);
  std::vector<size_t> order(static_cast<size_t>(blocks.x) * blocks.y * blocks.z);
  std::iota(order.begin(), order.end(), size_t{0});
  schedule.shuffle(order);
  for (const size_t i : order) {
    std::fill(memory.begin(), memory.end(), kPoison);
    const size_t x = i % blocks.x, y = i / blocks.x % blocks.y, z = i / blocks.x / blocks.y;
    start(blocks, threads, {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)}, stacks);
    finish(threads);
    const bool untouched = std::all_of(body_shared + shared_bytes, memory.data() + memory.size(),
                                       [](unsigned char byte) { return byte == kPoison; });
    if (!untouched) throw std::runtime_error("shared memory was written beyond its end");
  }
}

}  // namespace roundhouse::emulator
