// What tests tell the emulator.
#include <tvm/ffi/function.h>

#include "emulator/emulator.h"

namespace {

void set_seed(int64_t seed) { roundhouse::emulator::set_seed(static_cast<uint64_t>(seed)); }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(set_seed, set_seed);
