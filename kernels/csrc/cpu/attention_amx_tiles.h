// What lies in attention's AMX tiles.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include "cpu/vector.h"

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

// Rows 2i and 2i + 1 of the weights as pairs, as the second operand of TDPBF16PS takes them.
inline void interleave_weights(__m512 even, __m512 odd, bfloat16* target) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
  _mm512_store_si512(target, _mm512_permutexvar_epi16(order, both));
}

}  // namespace roundhouse

#endif
