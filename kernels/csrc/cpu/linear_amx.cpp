#include "cpu/linear_amx.h"

#if defined(ROUNDHOUSE_AMX)

#include <utility>

#include "cpu/int4.h"
#include "cpu/int8.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

// Stores 16 outputs of a row, or as many as there are, after `last` has seen them and their number.
template <class P, class Last>
void store_outputs(const P& p, int64_t row, int64_t block, Vector sums, const Last& last) {
  const int64_t first = block * kBlock;
  const int count = static_cast<int>(std::min(kBlock, p.outputs - first));
  last(sums, first, count).store(p.out + row * p.outputs + first, count);
}

template <class P>
struct Bfloat16Rows {
  static constexpr bool kPadded = false;
  const P& p;

  int64_t bytes() const { return p.inputs * 2; }
  std::pair<const uint8_t*, int64_t> take(const Region&, int64_t begin, int64_t) const {
    return {reinterpret_cast<const uint8_t*>(p.x + begin * p.x_stride), p.x_stride * 2};
  }
  void put(const Region&, int64_t row, int64_t block, __m512i lanes) const {
    store_outputs(p, row, block, {_mm512_castsi512_ps(lanes)}, [&](Vector sums, int64_t first, int count) {
      return p.bias == nullptr ? sums : sums + Vector::load(p.bias + first, count);
    });
  }
};

struct Int8Rows {
  static constexpr bool kPadded = true;
  const LinearInt8& p;

  int64_t bytes() const { return p.inputs; }
  std::pair<const uint8_t*, int64_t> take(const Region& region, int64_t begin, int64_t end) const {
    const int64_t padded = ceil_div(p.inputs, kTileBytes) * kTileBytes;
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* const to = region.rows + row * padded;
      // What a register holds beyond the row's end is zero, which fills up all but whole registers.
      const int64_t filled = ceil_div(p.inputs, Vector::kWidth) * Vector::kWidth;
      std::fill(to + filled, to + padded, uint8_t{0});
      region.scales[row] = quantize_row(p.x + row * p.x_stride, p.inputs, [&](int64_t i, __m512i numbers) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtepi32_epi8(numbers));
      });
    }
    return {region.rows + begin * padded, padded};
  }
  void put(const Region& region, int64_t row, int64_t block, __m512i lanes) const {
    store_outputs(p, row, block, {_mm512_cvtepi32_ps(lanes)}, [&](Vector sums, int64_t first, int count) {
      return scale_sums(sums, region.scales[row], p.scales + first, p.bias == nullptr ? nullptr : p.bias + first, count);
    });
  }
};

struct Int4Weights {
  static constexpr bool kUnpacked = true;
  static constexpr int64_t kGroupTiles = 4;
  static constexpr int64_t kGroupTileBytes = kGroupTiles * kTile;
  const LinearInt4& p;

  const uint8_t* group_at(int64_t block, int64_t group) const {
    return p.weight + (block * ceil_div(p.inputs, kInt4Group) + group) * kInt4GroupBytes;
  }
  // One or two blocks, group by group. While the tiles of one are multiplied, those of the next are unpacked: a quarter of
  // a block's beside each.
  template <class Body>
  void parts(int64_t block, int count, const Body& body) const {
    alignas(64) uint8_t buffers[2][2 * kGroupTileBytes];
    const int64_t tiles = ceil_div(p.inputs, 32);
    for (int i = 0; i < count; ++i) {
      unpack_int4(reinterpret_cast<bfloat16*>(buffers[0] + i * kGroupTileBytes), group_at(block + i, 0));
    }
    for (int64_t begin = 0, group = 0; begin < tiles; begin += kGroupTiles, ++group) {
      const Blocks part{buffers[group % 2], kGroupTileBytes};
      if (begin + kGroupTiles >= tiles) return body(part, begin, tiles - begin, Nothing{});
      const uint8_t* const next = group_at(block, group + 1);
      const int64_t apart = group_at(1, 0) - group_at(0, 0);
      uint8_t* const to = buffers[(group + 1) % 2];
      body(part, begin, kGroupTiles, [&](int64_t t, int b, const uint8_t*) {
        const uint8_t* const from = next + b * apart;
        for (int64_t i = 0; i < 5; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(from + 4 * kInt4GroupBytes + (4 * t + i) * 64), _MM_HINT_T0);
        }
        unpack_int4_lines(reinterpret_cast<bfloat16*>(to + b * kGroupTileBytes), from, 4 * static_cast<int>(t), 4);
      });
    }
  }
  Blocks part(int64_t block, int64_t count, int64_t first, int64_t last, uint8_t* scratch) const {
    const int64_t begin = first / kGroupTiles, end = ceil_div(last, kGroupTiles), apart = (end - begin) * kGroupTileBytes;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t group = begin; group < end; ++group) {
        const uint8_t* const from = group_at(block + i, group);
        uint8_t* const to = scratch + i * apart + (group - begin) * kGroupTileBytes;
        unpack_int4(reinterpret_cast<bfloat16*>(to), from);
        // The same of the next part.
        for (int64_t at = 0; at < kInt4GroupBytes; at += 64) {
          const uint8_t* const next = from + kPartTiles / kGroupTiles * kInt4GroupBytes + at;
          _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
        }
      }
    }
    return {scratch, apart};
  }
};

}  // namespace

template <>
void linear<bfloat16>(const Linear<bfloat16>& p) {
  const TiledWeights weights{reinterpret_cast<const uint8_t*>(p.weight), ceil_div(p.inputs, 32) * kTile};
  multiply_amx<Bfloat16Product>(weights, Bfloat16Rows<Linear<bfloat16>>{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

void linear_int8(const LinearInt8& p) {
  const TiledWeights weights{reinterpret_cast<const uint8_t*>(p.weight), ceil_div(p.inputs, 64) * kTile};
  multiply_amx<Int8Product>(weights, Int8Rows{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

void linear_int4(const LinearInt4& p) {
  multiply_amx<Bfloat16Product>(Int4Weights{p}, Bfloat16Rows<LinearInt4>{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

}  // namespace roundhouse

#endif
