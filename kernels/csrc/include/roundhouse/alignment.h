// Whether 16-byte accesses are possible.
#pragma once

#include <cstdint>

namespace roundhouse::cuda {

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace roundhouse::cuda
