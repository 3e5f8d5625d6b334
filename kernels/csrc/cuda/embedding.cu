#include "roundhouse/embedding.cuh"

#include "roundhouse/alignment.h"
#include "roundhouse/launch.cuh"

namespace roundhouse::cuda {
namespace {

template <int kBytes>
void run(const GatherRows& p, Stream stream) {
  using Body = GatherRowsBody<kBytes>;
  const int64_t pieces = (p.bytes + Body::kPiece - 1) / Body::kPiece;
  launch<Body>(dim3(static_cast<unsigned>(p.count), static_cast<unsigned>(pieces)), p, stream);
}

}  // namespace

void gather_rows(const GatherRows& p, Stream stream) {
  if (p.count == 0 || p.bytes == 0) return;
  const bool whole = p.bytes % 16 == 0 && p.stride % 16 == 0 && aligned(p.out) && aligned(p.table);
  whole ? run<16>(p, stream) : run<1>(p, stream);
}

}  // namespace roundhouse::cuda
