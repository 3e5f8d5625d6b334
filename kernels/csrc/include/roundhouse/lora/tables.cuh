// Where the bodies of LoRA find rows and weights.
#pragma once

#include "roundhouse/lora.h"
#include "roundhouse/ptx/trap.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

// An adapter's image, whose offsets count elements. Eight from a multiple of 8 on are in one sector.
template <class T>
class LoraImage {
 public:
  ROUNDHOUSE_DEVICE LoraImage(const AdaptRows<T>& p, int adapter)
      : arena_(p.arena), sector_(static_cast<uint32_t>(p.sector / kLoraChunk)), pages_(p.tables + p.tables[2 * adapter + 1]) {}

  ROUNDHOUSE_DEVICE const T* find(int64_t at) const {
    // Divided as chunks: they are fewer than 2^32.
    const uint32_t chunk = static_cast<uint32_t>(at / kLoraChunk), page = chunk / sector_;
    return arena_ + (pages_[page] * sector_ + chunk % sector_) * kLoraChunk + at % kLoraChunk;
  }

  // Elements [at, at + kVector<T>), where `at` is a multiple of their number.
  ROUNDHOUSE_DEVICE uint4 load(int64_t at) const { return *reinterpret_cast<const uint4*>(find(at)); }

  // The same from anywhere; zeros in place of the first `begin` and from `end` on.
  ROUNDHOUSE_DEVICE uint4 load_some(int64_t at, int64_t begin, int64_t end) const {
    Vector<T, kVector<T>> values;
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) values.at[i] = i >= begin && i < end ? *find(at + i) : from_float<T>(0.0f);
    return ptx::bits<uint4>(values);
  }

  // Number i of a vector in fp32 that begins at an element of the image.
  ROUNDHOUSE_DEVICE float number(int64_t vector, int64_t i) const {
    constexpr int64_t kElements = sizeof(float) / sizeof(T);
    return *reinterpret_cast<const float*>(find(vector + i * kElements));
  }

 private:
  const T* arena_;
  uint32_t sector_;  // in chunks
  const int64_t* pages_;
};

// A piece of 16 bytes, or zeros. It is loaded anyway: what may be skipped is not begun early.
ROUNDHOUSE_DEVICE uint4 keep_if(bool wanted, uint4 piece) { return wanted ? piece : make_uint4(0, 0, 0, 0); }

// One tile, and what its adapter has for the site: null if nothing.
struct LoraTile {
  int adapter, count, expert;
  const int32_t* rows;
  const LoraSite* site;

  template <class T>
  ROUNDHOUSE_DEVICE LoraTile(const AdaptRows<T>& p, int64_t number) : site(nullptr) {
    const int32_t* numbers = p.tiles.numbers + number * (kTileHeader + p.tiles.rows);
    adapter = numbers[0];
    count = numbers[1];
    expert = numbers[2];
    rows = numbers + kTileHeader;
    if (count == 0) return;
    if (count > p.tiles.rows) ptx::trap();
    const int64_t* layout = p.tables + p.tables[2 * adapter];
    if (p.site >= layout[0] || layout[1 + p.site] == 0) return;
    site = reinterpret_cast<const LoraSite*>(layout + layout[1 + p.site]);
    const bool fits = site->columns == p.columns && site->ranks * p.splits <= p.room && expert < site->experts;
    if (!fits || (p.tokens == nullptr && site->width != p.width)) ptx::trap();
  }

  // Row i of the tile, as a row of x and out; -1 where there is none.
  template <class T>
  ROUNDHOUSE_DEVICE int64_t row(const AdaptRows<T>& p, int i) const {
    if (i >= count) return -1;
    if (rows[i] < 0 || rows[i] >= p.rows) ptx::trap();
    return rows[i];
  }
};

}  // namespace roundhouse::cuda
