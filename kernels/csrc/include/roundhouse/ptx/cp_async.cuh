// Copies from global to shared memory that do not pass through registers (cp.async, sm_80 and later).
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda::ptx {

// 16 bytes, both addresses aligned to 16. Where `inside` is false nothing is read and zeros are written.
ROUNDHOUSE_DEVICE void cp_async16(void* shared, const void* global, bool inside = true) {
#if defined(ROUNDHOUSE_EMULATOR)
  emulator::copy_async(shared, global, 16, inside ? 16 : 0);
#else
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(inside ? 16 : 0) : "memory");
#endif
}

// 8 bytes, both addresses aligned to 8; likewise.
ROUNDHOUSE_DEVICE void cp_async8(void* shared, const void* global, bool inside = true) {
#if defined(ROUNDHOUSE_EMULATOR)
  emulator::copy_async(shared, global, 8, inside ? 8 : 0);
#else
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(global), "r"(inside ? 8 : 0) : "memory");
#endif
}

// 4 bytes, both addresses aligned to 4; likewise.
ROUNDHOUSE_DEVICE void cp_async4(void* shared, const void* global, bool inside = true) {
#if defined(ROUNDHOUSE_EMULATOR)
  emulator::copy_async(shared, global, 4, inside ? 4 : 0);
#else
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(inside ? 4 : 0) : "memory");
#endif
}

// Ends a group of copies.
ROUNDHOUSE_DEVICE void cp_async_commit() {
#if defined(ROUNDHOUSE_EMULATOR)
  emulator::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until at most `kPending` of this thread's last groups are under way. Other threads see them after a barrier.
template <int kPending>
ROUNDHOUSE_DEVICE void cp_async_wait() {
#if defined(ROUNDHOUSE_EMULATOR)
  emulator::wait_for_copies(kPending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace roundhouse::cuda::ptx
