// What a process does once before it uses the library.
#include <sys/syscall.h>
#include <unistd.h>

#include <tvm/ffi/function.h>

namespace {

// Whether the system lets this process use what the library was compiled for. AMX needs leave, which all threads have
// that are started afterwards.
bool initialize() {
#if defined(ROUNDHOUSE_AMX)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return true;
#endif
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(initialize, initialize);
