// AMX tiles: how they are configured, and 16 x 16 transposes for what goes in and comes out.
//
// Products are computed as C^T = W X^T: the weight is the first operand in its natural order, x the second with its rows
// as columns, so that one row of x is as good as sixteen and needs no other code.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include <immintrin.h>

#include <array>
#include <cstdint>

namespace roundhouse {

// The operand of LDTILECFG (Intel SDM, volume 1, chapter 18).
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};
};

// Sums in tiles 0 to 3, x in tile 4 and weights in 5 to 7, for `columns` rows of x; with all sixteen the tiles are alike
// and may be used in any way.
constexpr TileConfig tile_config(int columns) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.bytes[tile] = static_cast<uint16_t>(tile <= 4 ? 4 * columns : 64);
  }
  return config;
}

constexpr std::array<TileConfig, 17> tile_configs() {
  std::array<TileConfig, 17> all{};
  for (int columns = 1; columns <= 16; ++columns) all[columns] = tile_config(columns);
  return all;
}

// In static storage: compilers have dropped stores to one on the stack, which LDTILECFG reads behind their back.
inline constexpr std::array<TileConfig, 17> kTileConfigs = tile_configs();

// Configures this thread's tiles for as long as it lives.
class Tiles {
 public:
  explicit Tiles(int columns) { _tile_loadconfig(&kTileConfigs[columns]); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Transposes 16 registers of 16 numbers of 32 bits.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

}  // namespace roundhouse

#endif
