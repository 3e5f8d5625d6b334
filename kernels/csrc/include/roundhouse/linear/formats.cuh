// What the formats of quantised weights differ in.
#pragma once

#include "roundhouse/linear.h"
#include "roundhouse/ptx/cp_async.cuh"
#include "roundhouse/ptx/mma.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// Levels of 4 bits: word i of a lane's 16 bytes of a tile are its inputs 4 i to 4 i + 3, of output g and then of g + 8,
// such that bits 4 r to 4 r + 3 and the same 16 higher are register r of the product's left side.
struct Int4 {
  using Sum = float;
  using X = bfloat16;
  static constexpr int kTileBytes = 16;  // of a lane

  struct Scales {
    uint32_t step_and_zero[2];  // of outputs g and g + 8
  };
  static constexpr bool kGroupScales = true, kRowScales = false;
  static constexpr int kDigits = 1;  // of a number of x, each a row of its own

  // Of 16 inputs of 8 rows, by a lane: row g, its inputs.
  struct Columns {
    uint32_t words[8];
  };

  // sums += 16 outputs times 8 rows, over the 64 inputs of a tile.
  template <int kEights>
  static ROUNDHOUSE_DEVICE void multiply(Sum (&sums)[kEights][4], const unsigned char* tile, const Scales& scales,
                                         const Columns (&columns)[kEights]) {
    const uint4 words = *reinterpret_cast<const uint4*>(tile);
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
    uint32_t step[2], zero[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t both = scales.step_and_zero[i];
      step[i] = (both & 0xffffu) | both << 16;
      zero[i] = both >> 16 | (both & 0xffff0000u);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t a[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = ptx::fma_bf16(ptx::levels_bf16(all[k] >> (4 * r)), step[r % 2], zero[r % 2]);
#pragma unroll
      for (int n = 0; n < kEights; ++n) ptx::mma_bf16(sums[n], a, {columns[n].words[2 * k], columns[n].words[2 * k + 1]});
    }
  }
};

// Bytes: a lane's 32 of a tile are inputs 0 to 7 of output g, the same of g + 8, then inputs 8 to 15 of both.
struct Int8 {
  using Sum = int32_t;
  using X = int8_t;
  static constexpr int kTileBytes = 32;

  struct Scales {};
  static constexpr bool kGroupScales = false, kRowScales = true;
  static constexpr int kDigits = 2;

  struct Columns {
    uint32_t words[4];
  };

  template <int kEights>
  static ROUNDHOUSE_DEVICE void multiply(Sum (&sums)[kEights][4], const unsigned char* tile, const Scales&,
                                         const Columns (&columns)[kEights]) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 words = reinterpret_cast<const uint4*>(tile)[k];
      const uint32_t a[4] = {words.x, words.z, words.y, words.w};
#pragma unroll
      for (int n = 0; n < kEights; ++n) ptx::mma_int8(sums[n], a, {columns[n].words[2 * k], columns[n].words[2 * k + 1]});
    }
  }
};

// Bytes as those of Int8, but of each four inputs the second and the third have changed places: bytes that become a
// register of bf16 at once are then neighbours.
struct W8A16 {
  using Sum = float;
  using X = bfloat16;
  static constexpr int kTileBytes = 32;

  struct Scales {};
  static constexpr bool kGroupScales = false, kRowScales = false;
  static constexpr int kDigits = 1;

  using Columns = Int4::Columns;

  template <int kEights>
  static ROUNDHOUSE_DEVICE void multiply(Sum (&sums)[kEights][4], const unsigned char* tile, const Scales&,
                                         const Columns (&columns)[kEights]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 words = reinterpret_cast<const uint4*>(tile)[half];
      const uint32_t of[2][2] = {{words.x, words.z}, {words.y, words.w}};  // of outputs g and g + 8
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k = 2 * half + i;
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = ptx::widen_bf16<int8_t>(of[i][r % 2] >> (8 * (r / 2)));
#pragma unroll
        for (int n = 0; n < kEights; ++n) ptx::mma_bf16(sums[n], a, {columns[n].words[2 * k], columns[n].words[2 * k + 1]});
      }
    }
  }
};

}  // namespace roundhouse::cuda
