// What a process does once before it uses the library: nothing, here.
#include <tvm/ffi/function.h>

namespace {

bool initialize() { return true; }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(initialize, initialize);
