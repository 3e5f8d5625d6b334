// Four 8x8 matrices of 16-bit elements from shared memory into the registers of a warp (ldmatrix).
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda::ptx {

// Lane 8 i + r names row r of matrix i: 16 bytes, aligned to 16. Lane l receives in to[i] elements 2 (l % 4) and
// 2 (l % 4) + 1 of row l / 4 of matrix i, or of its transpose.
template <bool kTransposed>
ROUNDHOUSE_DEVICE void ldmatrix4(uint32_t (&to)[4], const void* row) {
#if defined(ROUNDHOUSE_EMULATOR)
  struct Lane {
    uint32_t* to;
    const uint16_t* row;
  } own{to, static_cast<const uint16_t*>(row)};
  emulator::together(kAllLanes, &own, [](void* const* all, uint32_t) {
    const auto row_of = [&](int i) { return static_cast<Lane*>(all[i])->row; };
    for (int l = 0; l < kWarp; ++l) {
      for (int i = 0; i < 4; ++i) {
        const int major = l / 4, minor = l % 4 * 2;
        const uint32_t low = kTransposed ? row_of(i * 8 + minor)[major] : row_of(i * 8 + major)[minor];
        const uint32_t high = kTransposed ? row_of(i * 8 + minor + 1)[major] : row_of(i * 8 + major)[minor + 1];
        static_cast<Lane*>(all[l])->to[i] = low | high << 16;
      }
    }
  });
#else
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#endif
}

}  // namespace roundhouse::cuda::ptx
