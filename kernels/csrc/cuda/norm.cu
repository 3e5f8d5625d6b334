#include "roundhouse/norm.cuh"

#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {

template <class T>
void rms_norm(const RmsNorm<T>& p, Stream stream) {
  if (p.rows == 0) return;
  using OfWarp = RmsNormInRegisters<T, kWarp>;
  using OfBlock = RmsNormInRegisters<T, 256>;
  const bool whole = p.width % kVector<T> == 0 && p.stride % kVector<T> == 0 && aligned(p.x) && aligned(p.out) &&
                     aligned(p.weight) && aligned(p.residual);
  const auto blocks = [&](int64_t rows) { return dim3(static_cast<unsigned>((p.rows + rows - 1) / rows)); };
  if (whole && p.width <= OfWarp::kMost) return launch<OfWarp>(blocks(OfWarp::kRows), p, stream);
  if (whole && p.width <= OfBlock::kMost) return launch<OfBlock>(blocks(1), p, stream);
  launch<RmsNormOfAnyRow<T>>(blocks(1), p, stream);
}

template void rms_norm<float>(const RmsNorm<float>&, Stream);
template void rms_norm<bfloat16>(const RmsNorm<bfloat16>&, Stream);

}  // namespace roundhouse::cuda
