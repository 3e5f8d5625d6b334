#include "cpu/stored_blocks.h"

#include "ops/check.h"

namespace roundhouse {
namespace {

// What rows of blocks must be, -> their type.
BlockType check_rows(const TensorView& rows, int64_t inputs, int64_t type) {
  check_cpu(rows, "rows");
  check_type(rows, kUint8, "rows");
  check_dimensions(rows, 2, "rows");
  ROUNDHOUSE_CHECK(is_dense(rows, 1)) << "rows must be contiguous each";
  ROUNDHOUSE_CHECK(type >= 0 && type < kBlockTypes) << "type is " << type;
  const BlockSize size = block_size(static_cast<BlockType>(type));
  ROUNDHOUSE_CHECK(inputs > 0 && inputs % size.inputs == 0) << "inputs is " << inputs;
  check_size(rows, 1, inputs / size.inputs * size.bytes, "rows");
  return static_cast<BlockType>(type);
}

void pack_blocks_op(TensorView out, TensorView rows, int64_t inputs, int64_t type) {
  const BlockType checked = check_rows(rows, inputs, type);
  check_cpu(out, "out");
  check_type(out, kUint8, "out");
  check_dense(out, "out");
  check_size(out, 0, ceil_div(rows.size(0), kBlock) * block_layout(checked).block_bytes(inputs), "out");
  pack_blocks({data<uint8_t>(out), data<uint8_t>(rows), rows.size(0), inputs, rows.stride(0), checked});
}

template <class T>
void look_up(TensorView out, TensorView tokens, TensorView rows, BlockType type, double scale) {
  const bool found = look_up_blocks(LookUpBlocks<T>{data<T>(out), data<uint8_t>(rows), data<int64_t>(tokens), tokens.size(0),
                                                    rows.size(0), out.size(1), rows.stride(0), static_cast<float>(scale), type});
  if (!found) TVM_FFI_THROW(IndexError) << "tokens has an index that rows, of which there are " << rows.size(0) << ", have not";
}

void look_up_blocks_op(TensorView out, TensorView tokens, TensorView rows, int64_t type, double scale) {
  check_cpu(out, "out");
  check_cpu(tokens, "tokens");
  check_dimensions(out, 2, "out");
  check_dimensions(tokens, 1, "tokens");
  check_type(tokens, kInt64, "tokens");
  check_size(out, 0, tokens.size(0), "out");
  check_dense(out, "out");
  check_dense(tokens, "tokens");
  const BlockType checked = check_rows(rows, out.size(1), type);
  if (is(out, kFloat32)) return look_up<float>(out, tokens, rows, checked, scale);
  check_type(out, kBfloat16, "out");
  look_up<bfloat16>(out, tokens, rows, checked, scale);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(pack_blocks, roundhouse::pack_blocks_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(look_up_blocks, roundhouse::look_up_blocks_op);
