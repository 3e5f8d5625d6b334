#include "roundhouse/launch.cuh"
#include "roundhouse/linear/convert.cuh"
#include "roundhouse/linear/quantized.cuh"

namespace roundhouse::cuda {
namespace {

template <class Format, int kTiles, int kColumns>
void run(const QuantizedLinear& p, Stream stream) {
  const int64_t outputs = kTiles * kTileOutputs, rows = kColumns / Format::kDigits;
  const dim3 blocks(static_cast<unsigned>((p.outputs + outputs - 1) / outputs), static_cast<unsigned>((p.rows + rows - 1) / rows));
  launch<QuantizedLinearBody<Format, kTiles, kColumns>>(blocks, p, stream);
}

template <class Format, int kTiles, int kColumns>
void run(const GroupedQuantizedLinear& p, Stream stream) {
  const int64_t outputs = kTiles * kTileOutputs, rows = kColumns / Format::kDigits;
  const dim3 blocks(most_tiles(p.linear.rows, p.experts, rows), static_cast<unsigned>((p.linear.outputs + outputs - 1) / outputs));
  launch<GroupedQuantizedLinearBody<Format, kTiles, kColumns>>(blocks, p, stream);
}

}  // namespace

// Every block reads all of its rows of x: the more rows, the more outputs it should have.
void linear_int4(const QuantizedLinear& p, Stream stream) {
  if (p.rows == 0 || p.outputs == 0) return;
  if (p.rows <= 8) return run<Int4, 2, 8>(p, stream);
  if (p.rows <= 16) return run<Int4, 4, 16>(p, stream);
  run<Int4, 4, 32>(p, stream);
}

void linear_int8(const QuantizedLinear& p, Stream stream) {
  if (p.rows == 0 || p.outputs == 0) return;
  if (p.rows <= 4) return run<Int8, 2, 8>(p, stream);
  if (p.rows <= 8) return run<Int8, 2, 16>(p, stream);
  run<Int8, 2, 64>(p, stream);
}

void linear_w8a16(const QuantizedLinear& p, Stream stream) {
  if (p.rows == 0 || p.outputs == 0) return;
  if (p.rows <= 8) return run<W8A16, 2, 8>(p, stream);
  if (p.rows <= 16) return run<W8A16, 2, 16>(p, stream);
  run<W8A16, 2, 32>(p, stream);
}

void grouped_linear_int4(const GroupedQuantizedLinear& p, Stream stream) {
  if (p.linear.rows == 0 || p.linear.outputs == 0 || p.experts == 0) return;
  p.linear.rows <= 8 * p.experts ? run<Int4, 2, 8>(p, stream) : run<Int4, 4, 32>(p, stream);
}

void grouped_linear_int8(const GroupedQuantizedLinear& p, Stream stream) {
  if (p.linear.rows == 0 || p.linear.outputs == 0 || p.experts == 0) return;
  p.linear.rows <= 4 * p.experts ? run<Int8, 2, 8>(p, stream) : run<Int8, 2, 64>(p, stream);
}

void grouped_linear_w8a16(const GroupedQuantizedLinear& p, Stream stream) {
  if (p.linear.rows == 0 || p.linear.outputs == 0 || p.experts == 0) return;
  p.linear.rows <= 8 * p.experts ? run<W8A16, 2, 8>(p, stream) : run<W8A16, 2, 32>(p, stream);
}

void quantize_rows(const QuantizeRows& p, Stream stream) {
  if (p.rows != 0) launch<QuantizeRowsBody>(dim3(static_cast<unsigned>(p.rows)), p, stream);
}

void dequantize_int4(const DequantizeInt4& p, Stream stream) {
  if (p.outputs == 0 || p.inputs == 0) return;
  const int64_t chunks = (p.inputs + kChunk - 1) / kChunk, tiles = (p.outputs + kTileOutputs - 1) / kTileOutputs;
  constexpr int64_t kWarps = DequantizeInt4Body::kWarps;
  launch<DequantizeInt4Body>(dim3(static_cast<unsigned>((chunks + kWarps - 1) / kWarps), static_cast<unsigned>(tiles)), p, stream);
}

}  // namespace roundhouse::cuda
