#include "roundhouse/activation.cuh"

#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {
namespace {

template <class T, Activation kActivation, int kPerLoad>
void run(const ActivateAndMultiply<T>& p, Stream stream) {
  using Body = ActivateAndMultiplyBody<T, kActivation, kPerLoad>;
  const int64_t pieces = (p.width + Body::kPiece - 1) / Body::kPiece;
  launch<Body>(dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(pieces)), p, stream);
}

template <class T, Activation kActivation>
void run(const ActivateAndMultiply<T>& p, Stream stream) {
  const bool whole = p.width % kVector<T> == 0 && p.stride % kVector<T> == 0 && aligned(p.x) && aligned(p.out);
  whole ? run<T, kActivation, kVector<T>>(p, stream) : run<T, kActivation, 1>(p, stream);
}

}  // namespace

template <class T>
void activate_and_multiply(const ActivateAndMultiply<T>& p, Stream stream) {
  if (p.rows == 0 || p.width == 0) return;
  switch (p.activation) {
    case Activation::kSilu: return run<T, Activation::kSilu>(p, stream);
    case Activation::kGelu: return run<T, Activation::kGelu>(p, stream);
    case Activation::kGeluTanh: return run<T, Activation::kGeluTanh>(p, stream);
  }
}

template void activate_and_multiply<float>(const ActivateAndMultiply<float>&, Stream);
template void activate_and_multiply<bfloat16>(const ActivateAndMultiply<bfloat16>&, Stream);

}  // namespace roundhouse::cuda
