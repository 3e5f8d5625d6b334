// How attention lays out a thread's AMX tiles.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include <cstdint>

namespace roundhouse {

// The operand of LDTILECFG (Intel SDM, volume 1, chapter 18).
struct alignas(64) AttentionTiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr AttentionTiles kWholeTiles = [] {
  AttentionTiles tiles;
  for (int tile = 0; tile < 8; ++tile) tiles.row_bytes[tile] = 64, tiles.rows[tile] = 16;
  return tiles;
}();

// For `columns` columns: scores in tiles 0 and 1, keys in 2 and 3, queries in 4.
constexpr AttentionTiles score_tiles(int columns) {
  AttentionTiles tiles = kWholeTiles;
  for (int tile : {0, 1, 4}) tiles.row_bytes[tile] = static_cast<uint16_t>(4 * columns);
  return tiles;
}

// Sums in tiles 0 to 3, weights in 4, values in 5 to 7.
constexpr AttentionTiles sum_tiles(int columns) {
  AttentionTiles tiles = kWholeTiles;
  for (int tile = 0; tile < 5; ++tile) tiles.rows[tile] = static_cast<uint8_t>(columns);
  return tiles;
}

template <int columns>
inline constexpr AttentionTiles kScoreTiles = score_tiles(columns);
template <int columns>
inline constexpr AttentionTiles kSumTiles = sum_tiles(columns);

}  // namespace roundhouse

#endif
