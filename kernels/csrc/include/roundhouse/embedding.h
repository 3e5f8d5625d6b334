// Rows of a table, on CUDA.
#pragma once

#include "roundhouse/types.h"

namespace roundhouse::cuda {

// Row i of `out` is row rows[i] of a table of `height` rows; a row has `bytes` bytes, and those of the table lie `stride`
// bytes apart. A row that the table does not have stops the kernel with an error.
struct GatherRows {
  char* out;
  const char* table;
  const int64_t* rows;
  int64_t count, height, bytes, stride;
};

void gather_rows(const GatherRows& p, Stream stream);

}  // namespace roundhouse::cuda
