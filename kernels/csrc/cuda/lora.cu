#include "roundhouse/launch.cuh"
#include "roundhouse/lora/expand.cuh"
#include "roundhouse/lora/shrink.cuh"
#include "roundhouse/lora/split.cuh"

namespace roundhouse::cuda {
namespace {

// How many ranks a site has is not known here: with so many splits, no more than there is room for.
template <class Body, class T>
void shrink(const AdaptRows<T>& p, Stream stream) {
  const int64_t splits = p.splits, parts = (p.room / splits + Body::kRanks - 1) / Body::kRanks;
  if (parts != 0) launch<Body>(dim3(static_cast<unsigned>(p.tiles.count), static_cast<unsigned>(parts * splits)), p, stream);
}

}  // namespace

template <class T>
void adapt_rows(const AdaptRows<T>& p, Stream stream) {
  if (p.tiles.count == 0 || p.columns == 0) return;
  if (p.tokens != nullptr) {
    launch<LookUpBody<T>>(dim3(static_cast<unsigned>(p.tiles.count)), p, stream);
  } else if (p.width != 0) {
    p.tiles.rows == 16 ? shrink<ShrinkBody<T, 1>>(p, stream) : shrink<ShrinkBody<T, 4>>(p, stream);
  }
  const int64_t columns = ExpandBody<T>::kColumns;
  const dim3 blocks(static_cast<unsigned>(p.tiles.count * (p.tiles.rows / 16)), static_cast<unsigned>((p.columns + columns - 1) / columns));
  launch<ExpandBody<T>>(blocks, p, stream);
}

template void adapt_rows<float>(const AdaptRows<float>&, Stream);
template void adapt_rows<bfloat16>(const AdaptRows<bfloat16>&, Stream);

void split_by_expert(const SplitByExpert& p, Stream stream) {
  constexpr int64_t kWarps = SplitByExpertBody::kWarps;
  const int64_t tiles = p.tiles.count * p.number_of_experts;
  if (tiles != 0) launch<SplitByExpertBody>(dim3(static_cast<unsigned>((tiles + kWarps - 1) / kWarps)), p, stream);
}

}  // namespace roundhouse::cuda
