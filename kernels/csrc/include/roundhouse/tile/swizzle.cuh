// Where the 16-byte pieces of a matrix's rows are in shared memory.
#pragma once

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda {

// Number of piece `piece` of row `row`, for rows of kPieces pieces. Eight neighbouring rows have the same piece in
// different banks, so that neither ldmatrix nor the copies wait for each other.
template <int kPieces>
ROUNDHOUSE_DEVICE int swizzle(int row, int piece) {
  static_assert(kPieces == 4 || kPieces % 8 == 0, "a row fills the banks, or half of them");
  return row * kPieces + (piece ^ (kPieces == 4 ? row / 2 & 3 : row & 7));
}

}  // namespace roundhouse::cuda
