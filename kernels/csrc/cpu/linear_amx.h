// Products with weights on AMX, for every number format and any number of rows.
//
// Up to sixteen rows of x are one tile, which four blocks of weights share; more are taken in pairs of tiles against pairs
// of blocks. Either way an element is the sum of its tiles' products in their order along the inputs.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include <algorithm>

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/tile.h"

namespace roundhouse {

constexpr int64_t kTile = 1024;  // bytes
// A weight's bytes are asked for this far ahead: memory answers too late for what the processor itself foresees.
constexpr int64_t kAhead = 4 * kTile;
// Rows of x that are multiplied with one weight after another should stay in the second-level cache, with the weights.
constexpr int64_t kCachedBytes = 1024 * 1024;

// x as the second operand: tiles of 16 lines of 4 bytes per row of x, `step` bytes apart along the inputs.
struct Columns {
  const uint8_t* data;
  int64_t step, line;
};

inline void prefetch_tile(const uint8_t* tile) {
  for (int i = 0; i < 16; ++i) _mm_prefetch(reinterpret_cast<const char*>(tile + kAhead + 64 * i), _MM_HINT_T0);
}

struct Bfloat16Product {};
struct Int8Product {};

// sums[0..3] += weights[5..7] * x[4], by number format; AMX's intrinsics take nothing but literals.
#define ROUNDHOUSE_MULTIPLY(Format, sum, weight, x)                  \
  if constexpr (std::is_same_v<Format, Int8Product>) {               \
    _tile_dpbssd(sum, weight, x);                                    \
  } else {                                                           \
    _tile_dpbf16ps(sum, weight, x);                                  \
  }

// Blocks of weights `apart` bytes from each other times one tile of rows -> tiles 0 to kBlocks - 1.
template <class Format, int kBlocks, bool kAgain>
void multiply_narrow(const uint8_t* weight, int64_t apart, Columns x, int64_t tiles) {
  for (int64_t t = 0; t < tiles; ++t, weight += kTile, x.data += x.step) {
    _tile_loadd(4, x.data, x.line);
    _tile_loadd(5, weight, 64);
    if constexpr (!kAgain) prefetch_tile(weight);
    ROUNDHOUSE_MULTIPLY(Format, 0, 5, 4)
    if constexpr (kBlocks > 1) {
      _tile_loadd(6, weight + apart, 64);
      if constexpr (!kAgain) prefetch_tile(weight + apart);
      ROUNDHOUSE_MULTIPLY(Format, 1, 6, 4)
    }
    if constexpr (kBlocks > 2) {
      _tile_loadd(7, weight + 2 * apart, 64);
      if constexpr (!kAgain) prefetch_tile(weight + 2 * apart);
      ROUNDHOUSE_MULTIPLY(Format, 2, 7, 4)
    }
    if constexpr (kBlocks > 3) {
      _tile_loadd(5, weight + 3 * apart, 64);
      if constexpr (!kAgain) prefetch_tile(weight + 3 * apart);
      ROUNDHOUSE_MULTIPLY(Format, 3, 5, 4)
    }
  }
}

// One or two blocks of weights times two tiles of rows -> tiles 0 and 1 for the first block, 2 and 3 for the second.
template <class Format, int kBlocks, bool kAgain>
void multiply_wide(const uint8_t* weight, int64_t apart, Columns x, int64_t x_apart, int64_t tiles) {
  for (int64_t t = 0; t < tiles; ++t, weight += kTile, x.data += x.step) {
    _tile_loadd(4, x.data, x.line);
    _tile_loadd(5, weight, 64);
    if constexpr (!kAgain) prefetch_tile(weight);
    ROUNDHOUSE_MULTIPLY(Format, 0, 5, 4)
    _tile_loadd(6, x.data + x_apart, x.line);
    ROUNDHOUSE_MULTIPLY(Format, 1, 5, 6)
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, weight + apart, 64);
      if constexpr (!kAgain) prefetch_tile(weight + apart);
      ROUNDHOUSE_MULTIPLY(Format, 2, 7, 4)
      ROUNDHOUSE_MULTIPLY(Format, 3, 7, 6)
    }
  }
}

#undef ROUNDHOUSE_MULTIPLY

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums as they leave the tiles: [16 outputs][columns] numbers of 32 bits each.
struct alignas(64) Sums {
  uint32_t tiles[4][256];
};

inline void store_sums(Sums& sums, int tiles, int64_t line) {
  _tile_stored(0, sums.tiles[0], line);
  if (tiles > 1) _tile_stored(1, sums.tiles[1], line);
  if (tiles > 2) _tile_stored(2, sums.tiles[2], line);
  if (tiles > 3) _tile_stored(3, sums.tiles[3], line);
}

// Gives each row of a tile of sums to `put(row, sums of 16 outputs)`.
template <class Put>
void each_row(const uint32_t* tile, int64_t rows, int64_t line, const Put& put) {
  if (line == 4) return put(int64_t{0}, _mm512_load_si512(tile));
  __m512i lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = _mm512_load_si512(tile + i * 16);
  transpose(lanes);
#pragma GCC unroll 16
  for (int64_t row = 0; row < 16; ++row) {
    if (row < rows) put(row, lanes[row]);
  }
}

// Puts rows [begin, end) of x, bytes, into tiles [rows / 16][tiles][16 lines][columns] of 4 bytes; all zero beyond x.
void pack_columns(uint8_t* to, const uint8_t* x, int64_t stride, int64_t bytes, int64_t rows, int64_t begin, int64_t end);

// The whole product. `put(row, block, sums)` takes 16 outputs of one row.
template <class Format, class Put>
void multiply_amx(const uint8_t* weight, const uint8_t* x, int64_t stride, int64_t bytes, int64_t rows, int64_t outputs,
                  uint8_t* workspace, const Put& put) {
  const int64_t tiles = ceil_div(bytes, kTileBytes), blocks = ceil_div(outputs, kBlock), apart = tiles * kTile;
  const int64_t groups = ceil_div(rows, kBlock);
  const int columns = static_cast<int>(std::min<int64_t>(rows, kBlock));
  const bool packed = rows > 1 || bytes % kTileBytes != 0;
  const Columns whole{packed ? workspace : x, 64 * columns, 4 * columns};
  const int64_t x_apart = tiles * 64 * columns;
  const int64_t chunk = std::max<int64_t>(2, kCachedBytes / x_apart / 2 * 2);  // groups of 16 rows

  parallel_region(blocks, blocks * apart * groups, [&](int64_t number, int64_t total) {
    const Tiles configured(columns);
    if (packed) {
      pack_columns(workspace, x, stride, bytes, rows, groups * tiles * number / total, groups * tiles * (number + 1) / total);
      if (total > 1) barrier();
    }
    const int64_t units = ceil_div(blocks, 2);
    const int64_t first = 2 * (units * number / total), last = std::min(blocks, 2 * (units * (number + 1) / total));
    Sums sums;
    const int64_t line = 4 * columns;
    const auto finish = [&](int tile, int64_t block, int64_t group) {
      each_row(sums.tiles[tile], std::min(kBlock, rows - group * kBlock), line,
               [&](int64_t row, __m512i lanes) { put(group * kBlock + row, block, lanes); });
    };
    if (groups == 1) {
      for (int64_t block = first; block < last; block += 4) {
        const int count = static_cast<int>(std::min<int64_t>(4, last - block));
        const uint8_t* start = weight + block * apart;
        zero_sums();
        if (count == 4) multiply_narrow<Format, 4, false>(start, apart, whole, tiles);
        if (count == 3) multiply_narrow<Format, 3, false>(start, apart, whole, tiles);
        if (count == 2) multiply_narrow<Format, 2, false>(start, apart, whole, tiles);
        if (count == 1) multiply_narrow<Format, 1, false>(start, apart, whole, tiles);
        store_sums(sums, count, columns == 1 ? 4 : 64);
        for (int i = 0; i < count; ++i) finish(i, block + i, 0);
      }
      return;
    }
    for (int64_t begin = 0; begin < groups; begin += chunk) {
      const int64_t end = std::min(groups, begin + chunk);
      for (int64_t block = first; block < last; block += 2) {
        const bool pair = block + 1 < last;
        const uint8_t* start = weight + block * apart;
        for (int64_t group = begin; group < end; group += 2) {
          const Columns part{whole.data + group * x_apart, whole.step, whole.line};
          const bool again = group != begin;
          zero_sums();
          if (group + 1 < end) {
            if (pair && again) multiply_wide<Format, 2, true>(start, apart, part, x_apart, tiles);
            if (pair && !again) multiply_wide<Format, 2, false>(start, apart, part, x_apart, tiles);
            if (!pair) multiply_wide<Format, 1, false>(start, apart, part, x_apart, tiles);
            store_sums(sums, pair ? 4 : 2, 64);
            finish(0, block, group);
            finish(1, block, group + 1);
            if (pair) finish(2, block + 1, group);
            if (pair) finish(3, block + 1, group + 1);
          } else {
            if (pair) multiply_narrow<Format, 2, true>(start, apart, part, tiles);
            if (!pair) multiply_narrow<Format, 1, true>(start, apart, part, tiles);
            store_sums(sums, pair ? 2 : 1, 64);
            finish(0, block, group);
            if (pair) finish(1, block + 1, group);
          }
        }
      }
    }
  });
}

}  // namespace roundhouse

#endif
