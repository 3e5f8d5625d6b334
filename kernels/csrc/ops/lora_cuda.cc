#include "roundhouse/lora.h"

#include "ops/cuda.h"
#include "roundhouse/alignment.h"

namespace roundhouse::cuda {
namespace {

void check_dense_tensor(const TensorView& tensor, DLDataType type, int dimensions, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, type, name);
  check_dimensions(tensor, dimensions, name);
  check_dense(tensor, name);
}

LoraTiles read_tiles(const TensorView& tensor, const char* name) {
  check_dense_tensor(tensor, kInt32, 2, name);
  const int64_t rows = tensor.size(1) - kTileHeader;
  ROUNDHOUSE_CHECK(rows == 16 || rows == 64) << name << " must have tiles of 16 or 64 rows";
  return {data<int32_t>(tensor), tensor.size(0), static_cast<int>(rows)};
}

template <class T>
void run(TensorView out, const T* x, const int64_t* tokens, int64_t width, TensorView arena, TensorView tables,
         const LoraTiles& tiles, TensorView scratch, int64_t site) {
  check_dense_tensor(arena, arena.dtype(), 2, "arena");
  ROUNDHOUSE_CHECK(arena.size(1) % kLoraChunk == 0) << "arena must have sectors of whole chunks";
  ROUNDHOUSE_CHECK(aligned(arena.data_ptr())) << "arena must be aligned to 16 bytes";
  check_dense_tensor(tables, kInt64, 1, "tables");
  check_dense_tensor(scratch, kFloat32, 2, "scratch");
  check_size(scratch, 0, out.size(0), "scratch");
  const int splits = tokens != nullptr ? 1 : static_cast<int>((width + kLoraSplit - 1) / kLoraSplit);
  float* const exact = is(out, kFloat32) && !std::is_same_v<T, float> ? data<float>(out) : nullptr;
  adapt_rows(AdaptRows<T>{exact == nullptr ? data<T>(out) : nullptr, exact, x, tokens, data<T>(arena), arena.size(1),
                          data<int64_t>(tables), tiles, data<float>(scratch), scratch.size(1), out.size(0), width, out.size(1), site,
                          splits, aligned(x) && aligned(out.data_ptr())},
             stream_of(out));
}

// Fp32, or of the arena's type.
void check_out(const TensorView& out, const TensorView& arena) {
  ROUNDHOUSE_CHECK(is(arena, kFloat32) || is(arena, kBfloat16)) << "arena must be float32 or bfloat16";
  if (!is(out, kFloat32)) check_type(out, arena.dtype(), "out");
  check_dense_tensor(out, out.dtype(), 2, "out");
}

void adapt(TensorView out, TensorView x, TensorView arena, TensorView tables, const LoraTiles& tiles, TensorView scratch,
           int64_t site) {
  check_out(out, arena);
  check_dense_tensor(x, arena.dtype(), 2, "x");
  check_size(x, 0, out.size(0), "x");
  const int64_t width = x.size(1);
  if (is(arena, kFloat32)) return run<float>(out, data<float>(x), nullptr, width, arena, tables, tiles, scratch, site);
  run<bfloat16>(out, data<bfloat16>(x), nullptr, width, arena, tables, tiles, scratch, site);
}

void adapt_linear_op(TensorView out, TensorView x, TensorView arena, TensorView tables, TensorView segments,
                     TensorView scratch, int64_t site) {
  adapt(out, x, arena, tables, read_tiles(segments, "segments"), scratch, site);
}

void adapt_embedding_op(TensorView out, TensorView tokens, TensorView arena, TensorView tables, TensorView segments,
                        TensorView scratch, int64_t site) {
  const LoraTiles tiles = read_tiles(segments, "segments");
  check_out(out, arena);
  check_dense_tensor(tokens, kInt64, 1, "tokens");
  check_size(tokens, 0, out.size(0), "tokens");
  if (out.size(0) == 0) return;
  const int64_t* ids = data<int64_t>(tokens);
  if (is(arena, kFloat32)) return run<float>(out, nullptr, ids, 0, arena, tables, tiles, scratch, site);
  run<bfloat16>(out, nullptr, ids, 0, arena, tables, tiles, scratch, site);
}

// `split` is room for the tiles of rows: as many for each tile of tokens as there are experts.
void adapt_experts_op(TensorView out, TensorView x, TensorView arena, TensorView tables, TensorView segments,
                      TensorView scratch, int64_t site, TensorView experts, TensorView places, TensorView split,
                      int64_t number_of_experts) {
  const LoraTiles tiles = read_tiles(segments, "segments"), by_expert = read_tiles(split, "split");
  check_size(split, 0, tiles.count * number_of_experts, "split");
  check_size(split, 1, segments.size(1), "split");
  check_dense_tensor(experts, kInt64, 2, "experts");
  check_dense_tensor(places, kInt64, 2, "places");
  check_size(places, 0, experts.size(0), "places");
  check_size(places, 1, experts.size(1), "places");
  check_out(out, arena);
  ROUNDHOUSE_CHECK(experts.numel() == out.size(0)) << "experts must have an entry for each row of out";
  split_by_expert({data<int32_t>(split), tiles, data<int64_t>(experts), data<int64_t>(places), experts.size(0), experts.size(1),
                   number_of_experts},
                  stream_of(out));
  adapt(out, x, arena, tables, by_expert, scratch, site);
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_linear, roundhouse::cuda::adapt_linear_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_embedding, roundhouse::cuda::adapt_embedding_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_experts, roundhouse::cuda::adapt_experts_op);
