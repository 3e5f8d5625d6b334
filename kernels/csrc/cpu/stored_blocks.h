// GGUF's quantised rows: packed into the records that products read, and a few of them as numbers.
#pragma once

#include <cstdint>

#include "cpu/linear.h"

namespace roundhouse {

// In the order of TYPES in kernels/formats/stored/gguf.py, whose functions say what the blocks hold.
enum class BlockType : int64_t { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS };
constexpr int64_t kBlockTypes = 12;

struct BlockSize {
  int64_t inputs, bytes;
};
BlockSize block_size(BlockType type);
GroupLayout block_layout(BlockType type);

struct PackBlocks {
  uint8_t* out;         // packed
  const uint8_t* rows;  // [outputs] of `stride` bytes each
  int64_t outputs, inputs, stride;
  BlockType type;
};

void pack_blocks(const PackBlocks& p);

// Row i of `out` is row tokens[i] of `height` rows, times `scale`.
template <class T>
struct LookUpBlocks {
  T* out;  // [count, inputs]
  const uint8_t* rows;
  const int64_t* tokens;
  int64_t count, height, inputs, stride;
  float scale;
  BlockType type;
};

// Writes nothing and returns false if there is a row that is not there.
template <class T>
bool look_up_blocks(const LookUpBlocks<T>& p);

}  // namespace roundhouse
