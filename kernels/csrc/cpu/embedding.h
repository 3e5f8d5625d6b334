// Rows of a table.
#pragma once

#include <cstdint>

namespace roundhouse {

// Row i of `out` is row rows[i] of a table of `height` rows; a row has `bytes` bytes, and those of the table lie `stride`
// bytes apart.
struct GatherRows {
  char* out;
  const char* table;
  const int64_t* rows;
  int64_t count, height, bytes, stride;
};

// Copies nothing and returns false if there is a row that the table does not have.
bool gather_rows(const GatherRows& p);

}  // namespace roundhouse
