// Products with weights on AMX, for every number format and any number of rows.
//
// Up to sixteen rows of x are one tile, which two or four blocks of weights share; more are taken in pairs of tiles against pairs
// of blocks. Either way an element is the sum of its tiles' products in their order along the inputs.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include <algorithm>
#include <type_traits>

#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/tile.h"

namespace roundhouse {

constexpr int64_t kTile = 1024;  // bytes
// A weight's tiles are asked for so many ahead: memory answers too late for what the processor itself foresees.
constexpr int64_t kAheadTiles = 4;
// The same of x, which comes from the second-level cache.
constexpr int64_t kColumnsAhead = 2 * kTile;
// Rows of x that are multiplied with one weight after another should stay in the second-level cache, with the weights
// and the sums of as many groups of 16 rows.
constexpr int64_t kCachedBytes = 1536 * 1024;
constexpr int64_t kCachedGroups = 16;
// Tiles along the inputs of two blocks of weights that stay in the first-level cache while those rows pass by.
constexpr int64_t kPartTiles = 8;

// x as the second operand: tiles of 16 lines of 4 bytes per row of x, `step` bytes apart along the inputs.
struct Columns {
  const uint8_t* data;
  int64_t step, line;
};

// Blocks of tiles along the inputs, as bytes from each other: blocks, tiles, and the lines of a tile.
struct Blocks {
  const uint8_t* data;
  int64_t apart, step = kTile, line = 64;
};

// Memory for sixteens of rows of x as bytes in every form that they take on their way.
struct Region {
  uint8_t *columns, *rows;
  float* scales;  // of rows

  Region(uint8_t* base, int64_t groups, int64_t padded)
      : columns(base), rows(base + groups * 32 * padded), scales(reinterpret_cast<float*>(base + groups * 48 * padded)) {}
};

template <_mm_hint kHint>
void prefetch_tile(const uint8_t* tile) {
  for (int i = 0; i < 16; ++i) _mm_prefetch(reinterpret_cast<const char*>(tile + 64 * i), kHint);
}

// What else is done at each tile of weights, block `b` and number `t` along the inputs, while AMX multiplies.
struct Nothing {
  void operator()(int64_t, int, const uint8_t*) const {}
};
// Asks for weights ahead; from tile `last` on these are of the blocks that come next, `jump` bytes further. Where little is
// done with a tile, more lines are on their way to the second-level cache at a time than to the first.
template <_mm_hint kHint>
struct Prefetch {
  int64_t last, jump;
  void operator()(int64_t t, int, const uint8_t* tile) const {
    prefetch_tile<kHint>(tile + kAheadTiles * kTile + (t < last ? 0 : jump));
  }
};
// Brings some lines of the tile that lies `offset` bytes behind into the second-level cache.
struct PrefetchLines {
  int64_t offset;
  int first, last;
  void operator()(int64_t, int, const uint8_t* tile) const {
    for (int i = first; i < last; ++i) _mm_prefetch(reinterpret_cast<const char*>(tile + offset + 64 * i), _MM_HINT_T1);
  }
};

struct Bfloat16Product {};
struct Int8Product {};

// sum += weight * x by number format; AMX's intrinsics take nothing but literals.
#define ROUNDHOUSE_MULTIPLY(Format, sum, weight, x)    \
  if constexpr (std::is_same_v<Format, Int8Product>) { \
    _tile_dpbssd(sum, weight, x);                      \
  } else {                                             \
    _tile_dpbf16ps(sum, weight, x);                    \
  }

// kBlocks blocks times one tile of rows, added to tiles 0 to kBlocks - 1.
template <class Format, int kBlocks, class Beside>
void multiply_narrow(Blocks weights, Columns x, int64_t tiles, const Beside& beside) {
  const uint8_t* tile = weights.data;
  for (int64_t t = 0; t < tiles; ++t, tile += weights.step, x.data += x.step) {
    _tile_loadd(4, x.data, x.line);
    _tile_loadd(5, tile, weights.line);
    ROUNDHOUSE_MULTIPLY(Format, 0, 5, 4)
    beside(t, 0, tile);
    if constexpr (kBlocks > 1) {
      _tile_loadd(6, tile + weights.apart, weights.line);
      ROUNDHOUSE_MULTIPLY(Format, 1, 6, 4)
      beside(t, 1, tile + weights.apart);
    }
    if constexpr (kBlocks > 2) {
      _tile_loadd(7, tile + 2 * weights.apart, weights.line);
      ROUNDHOUSE_MULTIPLY(Format, 2, 7, 4)
      beside(t, 2, tile + 2 * weights.apart);
    }
    if constexpr (kBlocks > 3) {
      _tile_loadd(5, tile + 3 * weights.apart, weights.line);
      ROUNDHOUSE_MULTIPLY(Format, 3, 5, 4)
      beside(t, 3, tile + 3 * weights.apart);
    }
  }
}

// kBlocks (one or two) blocks times two tiles of rows, added to tiles 0 and 1 for the first block, 2 and 3 for the second.
template <class Format, int kBlocks, class Beside>
void multiply_wide(Blocks weights, Columns x, int64_t x_apart, int64_t tiles, const Beside& beside) {
  const uint8_t* tile = weights.data;
  for (int64_t t = 0; t < tiles; ++t, tile += weights.step, x.data += x.step) {
    _tile_loadd(4, x.data, x.line);
    prefetch_tile<_MM_HINT_T0>(x.data + kColumnsAhead);
    _tile_loadd(5, tile, weights.line);
    ROUNDHOUSE_MULTIPLY(Format, 0, 5, 4)
    beside(t, 0, tile);
    _tile_loadd(6, x.data + x_apart, x.line);
    prefetch_tile<_MM_HINT_T0>(x.data + x_apart + kColumnsAhead);
    ROUNDHOUSE_MULTIPLY(Format, 1, 5, 6)
    if constexpr (kBlocks > 1) {
      _tile_loadd(7, tile + weights.apart, weights.line);
      ROUNDHOUSE_MULTIPLY(Format, 2, 7, 4)
      beside(t, 1, tile + weights.apart);
      ROUNDHOUSE_MULTIPLY(Format, 3, 7, 6)
    }
  }
}

#undef ROUNDHOUSE_MULTIPLY

// Whichever of these a number of blocks and of tiles of rows asks for.
template <class Format, class Beside>
void multiply_tiles(int blocks, bool wide, Blocks weights, Columns x, int64_t x_apart, int64_t tiles, const Beside& beside) {
  if (wide) {
    if (blocks == 2) return multiply_wide<Format, 2>(weights, x, x_apart, tiles, beside);
    return multiply_wide<Format, 1>(weights, x, x_apart, tiles, beside);
  }
  switch (blocks) {
    case 4: return multiply_narrow<Format, 4>(weights, x, tiles, beside);
    case 3: return multiply_narrow<Format, 3>(weights, x, tiles, beside);
    case 2: return multiply_narrow<Format, 2>(weights, x, tiles, beside);
    default: return multiply_narrow<Format, 1>(weights, x, tiles, beside);
  }
}

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

inline void load_sums(const Sums& sums, int tiles) {
  _tile_loadd(0, sums.tiles[0], 64);
  if (tiles > 1) _tile_loadd(1, sums.tiles[1], 64);
  if (tiles > 2) _tile_loadd(2, sums.tiles[2], 64);
  if (tiles > 3) _tile_loadd(3, sums.tiles[3], 64);
}

// Gives each row of a tile of sums, kDigits at a time, to `put(row, sums of 16 outputs of each)`.
template <int kDigits, class Put>
void each_row(const uint32_t* tile, int64_t rows, int64_t line, const Put& put) {
  __m512i lanes[16];
  if (line == 4) {
    lanes[0] = _mm512_load_si512(tile);
    return put(int64_t{0}, lanes);
  }
  for (int i = 0; i < 16; ++i) lanes[i] = _mm512_load_si512(tile + i * 16);
  transpose(lanes);
#pragma GCC unroll 16
  for (int64_t row = 0; row < 16; row += kDigits) {
    if (row < rows) put(row, lanes + row);
  }
}

// Up to 16 rows of x, as bytes `stride` apart -> tiles of [16 lines][columns] of 4 bytes, zero beyond the rows' ends.
inline void pack_columns(uint8_t* to, const uint8_t* x, int64_t stride, int64_t bytes, int64_t rows, int64_t columns) {
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(columns)));
  for (int64_t begin = 0; begin < bytes; begin += kTileBytes, to += 64 * columns) {
    const int64_t width = std::min(kTileBytes, bytes - begin);
    const __mmask64 within = _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(width));
    __m512i lines[16];
    for (int64_t row = 0; row < 16; ++row) {
      lines[row] = row < rows ? _mm512_maskz_loadu_epi8(within, x + row * stride + begin) : _mm512_setzero_si512();
    }
    transpose(lines);
    for (int line = 0; line < 16; ++line) _mm512_mask_storeu_epi32(to + line * 4 * columns, mask, lines[line]);
  }
}

// Weights that lie in memory as tiles.
struct TiledWeights {
  static constexpr bool kUnpacked = false;
  const uint8_t* data;
  int64_t tiles;  // of a block

  Blocks part(int64_t block, int64_t, int64_t first, int64_t, uint8_t*) const {
    return {data + (block * tiles + first) * kTile, tiles * kTile};
  }

  // Blocks one after the other, `step` or less of [first, last) at a time.
  class Stream {
   public:
    Stream(const TiledWeights& weights, int64_t, int64_t, int64_t, bool wide) : weights_(weights), wide_(wide) {}
    // The next `count` blocks, from `block` on: calls body(blocks, first tile, number of tiles, beside).
    template <class Body>
    void next(int64_t block, int count, const Body& body) {
      const Blocks all = weights_.part(block, count, 0, weights_.tiles, nullptr);
      const int64_t last = weights_.tiles - kAheadTiles, jump = (count - 1) * all.apart;
      if (wide_) {
        body(all, int64_t{0}, weights_.tiles, Prefetch<_MM_HINT_T0>{last, jump});
      } else {
        body(all, int64_t{0}, weights_.tiles, Prefetch<_MM_HINT_T1>{last, jump});
      }
    }

   private:
    const TiledWeights& weights_;
    const bool wide_;
  };
};

// The whole product.
//
// Rows are x, or its digits, kDigits rows for each: `take(region, begin, end)` gives their bytes and the distance between
// them, and `put(region, row, block, sums)` takes 16 outputs of one row of x, of each digit. Weights give tiles [first, last) along the inputs of `count` blocks,
// `part(block, count, first, last, scratch)`, and a Stream of whole blocks; whether that is work, kUnpacked says.
template <class Format, class Weights, class Rows>
void multiply_amx(const Weights& weights, const Rows& source, int64_t rows, int64_t outputs, int64_t inputs, void* workspace) {
  const int64_t tiles = ceil_div(source.bytes(), kTileBytes), blocks = ceil_div(outputs, kBlock);
  const int64_t groups = ceil_div(rows, kBlock), columns = std::min(rows, kBlock), line = 4 * columns;
  const int64_t x_apart = tiles * 64 * columns;
  const int64_t padded = ceil_div(inputs, kInt4Group) * kInt4Group, private_bytes = padded * 64;
  const bool packed = rows > 1 || (!Rows::kPadded && source.bytes() % kTileBytes != 0);
  // Groups of 16 rows that pass by a weight together, and tiles of it along the inputs: all of them, or as many as let
  // all those groups' x stay in the cache. The sums of all outputs are then kept from one such slab to the next, where
  // x as bytes would be.
  int64_t chunk = std::clamp<int64_t>(kCachedBytes / x_apart / 2 * 2, 2, kCachedGroups), slab = tiles;
  Sums* kept = nullptr;
  const int64_t room = Rows::kPadded ? 0 : groups * 32 * padded;
  if (chunk < std::min(groups, kCachedGroups) && ceil_div(blocks, 2) * kCachedGroups / 2 * int64_t{sizeof(Sums)} <= room) {
    chunk = kCachedGroups;
    slab = kCachedBytes / (kCachedGroups * kTile) / kPartTiles * kPartTiles;
    kept = reinterpret_cast<Sums*>(static_cast<uint8_t*>(workspace) + room);
  }
  // What the columns of some groups of rows are, in a region.
  const auto prepare = [&](const Region& region, int64_t first, int64_t last) {
    Columns x{region.columns, 64 * columns, line};
    for (int64_t group = first; group < last; ++group) {
      const int64_t begin = group * kBlock, end = std::min(rows, begin + kBlock);
      const auto [bytes, stride] = source.take(region, begin, end);
      if (packed) pack_columns(region.columns + group * x_apart, bytes, stride, source.bytes(), end - begin, columns);
      if (!packed) x.data = bytes;
    }
    return x;
  };
  // A few rows every part prepares for itself, which is sooner done than waiting for others.
  const bool shared = groups > 1;
  const Region common(static_cast<uint8_t*>(workspace), groups, padded);
  if (shared) {
    parallel_for(groups, rows * inputs * 4, [&](int64_t first, int64_t last) { prepare(common, first, last); });
  }

  parallel_parts(ceil_div(blocks, 2), blocks * tiles * kTile * groups, [&](int64_t number, int64_t total) {
    uint8_t* const scratch = static_cast<uint8_t*>(workspace) + (groups + number) * private_bytes;
    const Region region = shared ? common : Region(scratch, groups, padded);
    const Columns x = shared ? Columns{common.columns, 64 * columns, line} : prepare(region, 0, 1);

    const Tiles configured(static_cast<int>(columns));
    const int64_t units = ceil_div(blocks, 2);
    const int64_t first = 2 * (units * number / total), last = std::min(blocks, 2 * (units * (number + 1) / total));
    const auto finish = [&](const uint32_t* tile, int64_t block, int64_t group) {
      each_row<Rows::kDigits>(tile, std::min(kBlock, rows - group * kBlock), line, [&](int64_t row, const __m512i* lanes) {
        source.put(region, (group * kBlock + row) / Rows::kDigits, block, lanes);
      });
    };
    const auto finish_all = [&](Sums& sums, int count, bool wide, int64_t block, int64_t group) {
      store_sums(sums, wide ? 2 * count : count, columns == 1 ? 4 : 64);
      for (int i = 0; i < count; ++i) {
        finish(sums.tiles[wide ? 2 * i : i], block + i, group);
        if (wide) finish(sums.tiles[2 * i + 1], block + i, group + 1);
      }
    };
    // Weights that are used once are multiplied as they come.
    if (groups <= 2) {
      const bool wide = groups == 2;
      // What is unpacked of four blocks, twice, would not leave room in the first-level cache.
      const int64_t step = wide || Weights::kUnpacked ? 2 : 4;
      typename Weights::Stream stream(weights, first, last, step, wide);
      Sums sums;
      for (int64_t block = first; block < last; block += step) {
        const int count = static_cast<int>(std::min(step, last - block));
        zero_sums();
        stream.next(block, count, [&](Blocks part, int64_t begin, int64_t number_of_tiles, const auto& beside) {
          const Columns there{x.data + begin * x.step, x.step, x.line};
          multiply_tiles<Format>(count, wide, part, there, x_apart, number_of_tiles, beside);
        });
        finish_all(sums, count, wide, block, 0);
      }
      return;
    }
    // Others are cut along the inputs: the sums of each group of rows after one part are kept for the next, which leaves
    // their order as it is. Memory is asked for the next part's weights beside all groups' products, a few lines at each.
    Sums all_sums[kCachedGroups / 2];
    for (int64_t begin = 0; begin < groups; begin += chunk) {
      const int64_t end = std::min(groups, begin + chunk);
      const int lines = static_cast<int>(ceil_div(16, ceil_div(end - begin, 2)));
      const auto multiply_pair = [&](int64_t block, int64_t slab_begin) {
        const int count = static_cast<int>(std::min<int64_t>(2, last - block));
        const int64_t slab_end = std::min(tiles, slab_begin + slab);
        Sums* const sums_of_pair = kept == nullptr ? all_sums : kept + block / 2 * (kCachedGroups / 2);
        for (int64_t tile = slab_begin; tile < slab_end; tile += kPartTiles) {
          const int64_t tile_end = std::min(slab_end, tile + kPartTiles);
          const Blocks pair = weights.part(block, count, tile, tile_end, scratch);
          PrefetchLines ahead{(tile_end < slab_end ? kPartTiles : 2 * tiles - (tile - slab_begin)) * kTile, 0, lines};
          for (int64_t group = begin; group < end; group += 2) {
            Sums& sums = sums_of_pair[(group - begin) / 2];
            const Columns there{x.data + group * x_apart + tile * x.step, x.step, x.line};
            const bool wide = group + 1 < end;
            if (tile == 0) {
              zero_sums();
            } else {
              load_sums(sums, wide ? 2 * count : count);
            }
            if constexpr (Weights::kUnpacked) {
              multiply_tiles<Format>(count, wide, pair, there, x_apart, tile_end - tile, Nothing{});
            } else {
              multiply_tiles<Format>(count, wide, pair, there, x_apart, tile_end - tile, ahead);
              ahead.first = std::min(16, ahead.first + lines);
              ahead.last = std::min(16, ahead.last + lines);
            }
            if (tile_end < tiles) {
              store_sums(sums, wide ? 2 * count : count, 64);
            } else {
              finish_all(sums, count, wide, block, group);
            }
          }
        }
      };
      for (int64_t tile = 0; tile < tiles; tile += slab) {
        for (int64_t block = first; block < last; block += 2) multiply_pair(block, tile);
      }
    }
  });
}

}  // namespace roundhouse

#endif
