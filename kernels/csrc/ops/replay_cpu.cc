// Runs calls that were recorded (kernels/recording.py) behind each other, without Python between them. Each checks its
// arguments as it did when it was recorded: what lies in its tensors may have changed since.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <vector>

#include "ops/check.h"

namespace roundhouse {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Array;
using tvm::ffi::Function;

// functions[i] is called with arguments[i].
void replay_op(Array<Function> functions, Array<Array<Any>> arguments) {
  ROUNDHOUSE_CHECK(functions.size() == arguments.size()) << "there must be arguments for each function";
  std::vector<AnyView> views;
  Any result;
  for (size_t i = 0; i < functions.size(); ++i) {
    const Array<Any> call = arguments[i];
    views.assign(call.begin(), call.end());
    functions[i].CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  }
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(replay, roundhouse::replay_op);
