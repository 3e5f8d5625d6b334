#include "cpu/lora.h"

#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

// A list of segments as a tensor: their number, the segments, and their rows.
struct Segments {
  const LoraSegment* segments;
  int64_t count;
  const int64_t* rows;
  int64_t row_count;
};

Segments read_segments(const TensorView& tensor) {
  check_cpu(tensor, "segments");
  check_type(tensor, kInt64, "segments");
  check_dimensions(tensor, 1, "segments");
  check_dense(tensor, "segments");
  ROUNDHOUSE_CHECK(tensor.numel() >= 1) << "segments must begin with their number";
  const int64_t* numbers = data<int64_t>(tensor);
  const int64_t rows = tensor.numel() - 1 - 4 * numbers[0];
  ROUNDHOUSE_CHECK(numbers[0] >= 0 && rows >= 0) << "segments has less than its " << numbers[0] << " segments";
  return {reinterpret_cast<const LoraSegment*>(numbers + 1), numbers[0], numbers + 1 + 4 * numbers[0], rows};
}

void check_tables(const TensorView& arena, const TensorView& tables, const TensorView& scratch) {
  check_cpu(arena, "arena");
  check_cpu(tables, "tables");
  check_cpu(scratch, "scratch");
  check_dimensions(arena, 2, "arena");
  check_dense(arena, "arena");
  check_type(tables, kInt64, "tables");
  check_dense(tables, "tables");
  check_type(scratch, kFloat32, "scratch");
  check_dense(scratch, "scratch");
  ROUNDHOUSE_CHECK(arena.size(1) % kLoraChunk == 0) << "arena must have sectors of whole chunks";
}

// Rows that lie in x and out, of sites as large as these, for which `scratch` has room.
void check_segments(const Segments& some, const LoraTables& tables, int64_t site, int64_t rows, int64_t width,
                    int64_t columns, int64_t room) {
  int64_t needed = 0;
  for (const LoraSegment* segment = some.segments; segment < some.segments + some.count; ++segment) {
    ROUNDHOUSE_CHECK(segment->first >= 0 && segment->count >= 0 && segment->first + segment->count <= some.row_count)
        << "segments has a segment beyond its rows";
    const LoraSite* found = tables.site(segment->adapter, site);
    if (found == nullptr) continue;
    ROUNDHOUSE_CHECK(width < 0 || found->width == width) << "x has " << width << " columns instead of " << found->width;
    ROUNDHOUSE_CHECK(found->columns == columns) << "out has " << columns << " columns instead of " << found->columns;
    needed += segment->count * found->ranks;
  }
  for (int64_t i = 0; i < some.row_count; ++i) {
    ROUNDHOUSE_CHECK(some.rows[i] >= 0 && some.rows[i] < rows) << "segments has a row that out does not have";
  }
  ROUNDHOUSE_CHECK(needed <= room) << "scratch has " << room << " elements instead of " << needed;
}

void check_out(const TensorView& out, const TensorView& arena) {
  check_cpu(out, "out");
  ROUNDHOUSE_CHECK(is(out, kFloat32) || is(out, kBfloat16)) << "out must be float32 or bfloat16";
  check_dimensions(out, 2, "out");
  check_dense(out, "out");
  ROUNDHOUSE_CHECK(is(arena, kFloat32) || is(arena, kBfloat16)) << "arena must be float32 or bfloat16";
  if (!is(out, kFloat32)) check_type(arena, out.dtype(), "arena");
}

template <class T>
void run(TensorView out, const T* x, const int64_t* tokens, TensorView arena, TensorView tables, const Segments& some,
         TensorView scratch, int64_t site) {
  float* const exact = is(out, kFloat32) && !std::is_same_v<T, float> ? data<float>(out) : nullptr;
  adapt_rows(AdaptRows<T>{exact == nullptr ? data<T>(out) : nullptr, exact, x, tokens, data<T>(arena), arena.size(1),
                          LoraTables(data<int64_t>(tables)), some.segments, some.count, some.rows, data<float>(scratch), site});
}

void adapt(TensorView out, TensorView x, TensorView arena, TensorView tables, const Segments& some, TensorView scratch,
           int64_t site) {
  check_tables(arena, tables, scratch);
  check_out(out, arena);
  check_cpu(x, "x");
  check_type(x, arena.dtype(), "x");
  check_dimensions(x, 2, "x");
  check_dense(x, "x");
  check_size(x, 0, out.size(0), "x");
  check_segments(some, LoraTables(data<int64_t>(tables)), site, out.size(0), x.size(1), out.size(1), scratch.numel());
  if (is(arena, kFloat32)) return run<float>(out, data<float>(x), nullptr, arena, tables, some, scratch, site);
  run<bfloat16>(out, data<bfloat16>(x), nullptr, arena, tables, some, scratch, site);
}

void adapt_linear_op(TensorView out, TensorView x, TensorView arena, TensorView tables, TensorView segments,
                     TensorView scratch, int64_t site) {
  adapt(out, x, arena, tables, read_segments(segments), scratch, site);
}

void adapt_embedding_op(TensorView out, TensorView tokens, TensorView arena, TensorView tables, TensorView segments,
                        TensorView scratch, int64_t site) {
  const Segments some = read_segments(segments);
  check_tables(arena, tables, scratch);
  check_out(out, arena);
  check_cpu(tokens, "tokens");
  check_type(tokens, kInt64, "tokens");
  check_dimensions(tokens, 1, "tokens");
  check_dense(tokens, "tokens");
  check_size(tokens, 0, out.size(0), "tokens");
  const int64_t* ids = data<int64_t>(tokens);
  check_segments(some, LoraTables(data<int64_t>(tables)), site, out.size(0), -1, out.size(1), scratch.numel());
  if (is(arena, kFloat32)) return run<float>(out, nullptr, ids, arena, tables, some, scratch, site);
  run<bfloat16>(out, nullptr, ids, arena, tables, some, scratch, site);
}

// `split` has room for a segment for each of the layer's experts and each of `segments`, and for k rows for each of theirs.
void adapt_experts_op(TensorView out, TensorView x, TensorView arena, TensorView tables, TensorView segments,
                      TensorView scratch, int64_t site, TensorView experts, TensorView places, TensorView split,
                      int64_t number_of_experts) {
  const Segments some = read_segments(segments);
  for (const auto& [tensor, name] : {std::pair(experts, "experts"), std::pair(places, "places")}) {
    check_cpu(tensor, name);
    check_type(tensor, kInt64, name);
    check_dimensions(tensor, 2, name);
    check_dense(tensor, name);
    ROUNDHOUSE_CHECK(tensor.size(0) * tensor.size(1) == out.size(0)) << name << " must have an entry for each row of out";
  }
  const int64_t k = experts.size(1);
  check_size(places, 1, k, "places");
  for (int64_t i = 0; i < some.row_count; ++i) {
    ROUNDHOUSE_CHECK(some.rows[i] >= 0 && some.rows[i] < experts.size(0)) << "segments has a row that experts has not";
  }
  check_cpu(split, "split");
  check_type(split, kInt64, "split");
  check_dense(split, "split");
  const int64_t most = some.count * number_of_experts;
  ROUNDHOUSE_CHECK(split.numel() >= 4 * most + k * some.row_count) << "split is too small";
  auto* split_segments = reinterpret_cast<LoraSegment*>(data<int64_t>(split));
  int64_t* rows = data<int64_t>(split) + 4 * most;
  const int64_t count = split_by_expert(some.segments, some.count, some.rows, data<int64_t>(experts), data<int64_t>(places),
                                        k, number_of_experts, split_segments, rows);
  const int64_t used = count == 0 ? 0 : split_segments[count - 1].first + split_segments[count - 1].count;
  adapt(out, x, arena, tables, {split_segments, count, rows, used}, scratch, site);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_linear, roundhouse::adapt_linear_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_embedding, roundhouse::adapt_embedding_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(adapt_experts, roundhouse::adapt_experts_op);
