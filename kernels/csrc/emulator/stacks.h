// Stacks that code can be switched between, for x86-64 with the System V calling convention.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

// Saves the registers that a function must keep and the stack pointer, and goes on where `to` was saved.
extern "C" void roundhouse_switch_stack(void** from, void* to);
asm(R"(
.text
.weak roundhouse_switch_stack
.hidden roundhouse_switch_stack
.type roundhouse_switch_stack, @function
roundhouse_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size roundhouse_switch_stack, .-roundhouse_switch_stack
)");

namespace roundhouse::emulator {

// Each has a page below it that cannot be touched: an overflow stops the process instead of spoiling its neighbour.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() { release(); }

  void reserve(unsigned count) {
    if (count <= count_) return;
    release();
    void* memory = mmap(nullptr, count * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<char*>(memory);
    count_ = count;
    for (unsigned i = 0; i < count; ++i) {
      if (mprotect(memory_ + i * kBytes, kPage, PROT_NONE) != 0) throw std::bad_alloc();
    }
  }

  // What to switch to for stack i to begin with `function`, which must not return.
  void* prepare(unsigned i, void (*function)()) {
    auto* top = reinterpret_cast<void**>(memory_ + (i + 1) * kBytes);
    *--top = nullptr;  // a return address for `function`, which also aligns its stack
    *--top = reinterpret_cast<void*>(function);
    top -= kRegisters;
    std::memset(top, 0, kRegisters * sizeof(void*));
    return top;
  }

 private:
  static constexpr size_t kBytes = 128 * 1024, kPage = 4096, kRegisters = 6;
  char* memory_ = nullptr;
  unsigned count_ = 0;

  void release() {
    if (memory_ != nullptr) munmap(memory_, count_ * kBytes);
    memory_ = nullptr;
    count_ = 0;
  }
};

}  // namespace roundhouse::emulator
