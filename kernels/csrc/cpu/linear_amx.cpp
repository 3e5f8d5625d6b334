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
void finish_outputs(const P& p, int64_t row, int64_t block, Vector sums, const Last& last) {
  const int64_t first = block * kBlock;
  const int count = static_cast<int>(std::min(kBlock, p.outputs - first));
  store_outputs(p, last(sums, first, count), row, first, count);
}

template <class P>
struct Bfloat16Rows {
  static constexpr bool kPadded = false;
  static constexpr int kDigits = 1;
  const P& p;

  int64_t bytes() const { return p.inputs * 2; }
  std::pair<const uint8_t*, int64_t> take(const Region&, int64_t begin, int64_t) const {
    return {reinterpret_cast<const uint8_t*>(p.x + begin * p.x_stride), p.x_stride * 2};
  }
  void put(const Region&, int64_t row, int64_t block, const __m512i* lanes) const {
    finish_outputs(p, row, block, {_mm512_castsi512_ps(*lanes)},
                  [&](Vector sums, int64_t first, int count) { return finish_sums(p, sums, first, count); });
  }
};

struct Int8Rows {
  static constexpr bool kPadded = true;
  static constexpr int kDigits = kInt8Digits;
  const LinearInt8& p;

  int64_t bytes() const { return p.inputs; }
  std::pair<const uint8_t*, int64_t> take(const Region& region, int64_t begin, int64_t end) const {
    const int64_t padded = ceil_div(p.inputs, kTileBytes) * kTileBytes;
    for (int64_t row = begin / kDigits; row < end / kDigits; ++row) {
      uint8_t *const high = region.rows + row * kDigits * padded, *const low = high + padded;
      // What a register holds beyond the row's end is zero, which fills up all but whole registers.
      const int64_t filled = ceil_div(p.inputs, Vector::kWidth) * Vector::kWidth;
      std::fill(high + filled, high + padded, uint8_t{0});
      std::fill(low + filled, low + padded, uint8_t{0});
      const auto put = [&](int64_t i, __m512i numbers) {
        const Digits digits(numbers);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(digits.high));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(digits.low));
      };
      region.scales[row] = quantize_row(p.x + row * p.x_stride, p.inputs, static_cast<float>(p.limit), put);
    }
    return {region.rows + begin * padded, padded};
  }
  void put(const Region& region, int64_t row, int64_t block, const __m512i* lanes) const {
    finish_outputs(p, row, block, {_mm512_cvtepi32_ps(from_digits(lanes[0], lanes[1]))}, [&](Vector sums, int64_t first, int count) {
      return scale_sums(sums, region.scales[row], p.scales + first, p.bias == nullptr ? nullptr : p.bias + first, count);
    });
  }
};

constexpr int64_t kLineInputs = 32;  // of bf16 in one line of a tile

// Groups of weights that become kTiles tiles of bf16 each. These lie line by line, `line` bytes apart, each with that of
// all tiles: stores one after the other are twice as fast as others.
struct Int4Group {
  static constexpr int64_t kTiles = 4, kBytes = kInt4GroupBytes;
  static void unpack(uint8_t* tiles, int64_t line, const uint8_t* group, int first, int count) {
    unpack_int4_lines(reinterpret_cast<bfloat16*>(tiles), line / 2, kLineInputs, group, first, count);
  }
};
struct Int8Tile {
  static constexpr int64_t kTiles = 2, kBytes = kTile;
  static void unpack(uint8_t* tiles, int64_t line, const uint8_t* tile, int first, int count) {
    unpack_int8_lines(reinterpret_cast<bfloat16*>(tiles), line / 2, reinterpret_cast<const int8_t*>(tile), first, count);
  }
};

template <class Group>
struct UnpackedWeights {
  static constexpr bool kUnpacked = true;
  static constexpr int64_t kTiles = Group::kTiles, kBytes = Group::kBytes;  // of a group
  const uint8_t* data;
  int64_t tiles, groups;  // of a block

  UnpackedWeights(const void* weight, int64_t inputs)
      : data(static_cast<const uint8_t*>(weight)), tiles(ceil_div(inputs, 32)), groups(ceil_div(tiles, kTiles)) {}

  const uint8_t* at(int64_t block, int64_t group) const { return data + (block * groups + group) * kBytes; }

  Blocks part(int64_t block, int64_t count, int64_t first, int64_t last, uint8_t* scratch) const {
    const int64_t begin = first / kTiles, end = ceil_div(last, kTiles);
    const int64_t line = (end - begin) * kTiles * 64, apart = kBlock * line;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t group = begin; group < end; ++group) {
        const uint8_t* const from = at(block + i, group);
        Group::unpack(scratch + i * apart + (group - begin) * kTiles * 64, line, from, 0, kBlock);
        // The same of the next part.
        for (int64_t line = 0; line < kBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(from + kPartTiles / kTiles * kBytes + line), _MM_HINT_T1);
        }
      }
    }
    return {scratch, apart, 64, line};
  }

  // Blocks one after the other, `step` (one or two) or less of [first, last) at a time. While the tiles of one group are
  // multiplied, those of the next are unpacked, an equal part beside each.
  class Stream {
   public:
    Stream(const UnpackedWeights& weights, int64_t first, int64_t last, int64_t step, bool)
        : weights_(weights), last_(last), step_(step) {
      for (int64_t i = 0; i < std::min(step, last - first); ++i) {
        Group::unpack(tiles_of(0, i), kLine, weights.at(first + i, 0), 0, kBlock);
      }
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    // The next `count` blocks, from `block` on: calls body(blocks, first tile, number of tiles, beside).
    template <class Body>
    void next(int64_t block, int count, const Body& body) {
      const int64_t groups = weights_.groups, apart = groups * kBytes;
      for (int64_t group = 0; group < groups; ++group, turn_ ^= 1) {
        const Blocks part{tiles_of(turn_, 0), kTiles * kTile, 64, kLine};
        const int64_t first = group * kTiles, tiles = std::min(kTiles, weights_.tiles - first);
        const bool more = group + 1 < groups;
        const int64_t left = more ? count : std::min(step_, last_ - block - step_);  // blocks that have a next group
        if (left <= 0) {
          body(part, first, tiles, Nothing{});
          continue;
        }
        const int64_t number = more ? group + 1 : 0;
        const uint8_t* const from = weights_.at(more ? block : block + step_, number);
        // Near the blocks' ends, of those that come next.
        const int64_t ahead = kAheadGroups * kBytes + (number + kAheadGroups < groups ? 0 : (count - 1) * apart);
        if (tiles < kTiles) {
          body(part, first, tiles, [&](int64_t t, int b, const uint8_t*) {
            const int begin = static_cast<int>(kBlock / 2 * t / tiles) * 2;
            const int end = static_cast<int>(kBlock / 2 * (t + 1) / tiles) * 2;
            if (b < left) Group::unpack(tiles_of(turn_ ^ 1, b), kLine, from + b * apart, begin, end - begin);
          });
          continue;
        }
        body(part, first, kTiles, [&](int64_t t, int b, const uint8_t*) {
          if (b >= left) return;
          const uint8_t* const lines = from + b * apart + ahead + t * kLines * 64;
          for (int64_t i = 0; i < ceil_div(kBytes, kTiles * 64); ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(lines + 64 * i), _MM_HINT_T0);
          }
          Group::unpack(tiles_of(turn_ ^ 1, b), kLine, from + b * apart, kLines * static_cast<int>(t), kLines);
        });
      }
    }

   private:
    static constexpr int64_t kLine = kTiles * 64;
    static constexpr int kLines = static_cast<int>(kBlock / kTiles);  // beside a tile
    static constexpr int64_t kAheadGroups = 4;  // as for tiles

    // Of block `i` in one of the buffers.
    uint8_t* tiles_of(int turn, int64_t i) { return buffers_[turn] + i * kTiles * kTile; }

    const UnpackedWeights& weights_;
    const int64_t last_, step_;
    int turn_ = 0;
    alignas(64) uint8_t buffers_[2][2 * kTiles * kTile];
  };
};

}  // namespace

template <>
void linear<bfloat16>(const Linear<bfloat16>& p) {
  const TiledWeights weights{reinterpret_cast<const uint8_t*>(p.weight), ceil_div(p.inputs, 32)};
  multiply_amx<Bfloat16Product>(weights, Bfloat16Rows<Linear<bfloat16>>{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

void linear_int8(const LinearInt8& p) {
  const TiledWeights weights{reinterpret_cast<const uint8_t*>(p.weight), ceil_div(p.inputs, 64)};
  multiply_amx<Int8Product>(weights, Int8Rows{p}, p.rows * kInt8Digits, p.outputs, p.inputs, p.workspace);
}

void linear_w8a16(const LinearW8A16& p) {
  const UnpackedWeights<Int8Tile> weights(p.weight, p.inputs);
  multiply_amx<Bfloat16Product>(weights, Bfloat16Rows<LinearW8A16>{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

void linear_int4(const LinearInt4& p) {
  const UnpackedWeights<Int4Group> weights(p.weight, p.inputs);
  multiply_amx<Bfloat16Product>(weights, Bfloat16Rows<LinearInt4>{p}, p.rows, p.outputs, p.inputs, p.workspace);
}

}  // namespace roundhouse

#endif
