// Where the 16-byte pieces of a matrix's rows are in shared memory.
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda {

// Offset of piece `piece` of row `row`, in elements, for rows of kPieces pieces of 8 elements. Eight neighbouring rows
// have the same piece in different banks, so that neither ldmatrix nor the copies wait for each other.
template <int kPieces>
ROUNDHOUSE_DEVICE int swizzle(int row, int piece) {
  static_assert(kPieces % 8 == 0, "a row fills the banks");
  return (row * kPieces + (piece ^ (row & 7))) * 8;
}

}  // namespace roundhouse::cuda
