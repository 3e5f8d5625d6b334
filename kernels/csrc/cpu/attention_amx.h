// The scores and sums of one split on AMX tiles, for bf16 and head dimensions that are multiples of 16 from 32 on.
//
// Both products are transposed: scores [keys][columns] = keys * queries^T, sums [dim][columns] = values^T * weights. Half
// a block of keys by 32 dimensions is then an operand of TDPBF16PS as it lies in the cache, the weights become one by
// interleaving two rows, and only the values have to be transposed.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include "cpu/attention_few.h"
#include "cpu/attention_softmax.h"
#include "cpu/narrow.h"
#include "cpu/transpose.h"

namespace roundhouse {

// How a thread's tiles are laid out while it works with them.
struct alignas(64) AttentionTiles {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// For `columns` up to kFew: scores in tiles 0 and 1, queries in 4, sums in 5 and 6 and their weights in 7; keys and
// values in 2 and 3. For 0 all eight are 16 rows of 64 bytes.
constexpr AttentionTiles attention_tiles(int columns) {
  AttentionTiles tiles;
  for (int tile = 0; tile < 8; ++tile) {
    const bool narrow = columns > 0 && (tile < 2 || tile == 4), low = columns > 0 && tile > 4;
    tiles.row_bytes[tile] = static_cast<uint16_t>(narrow ? 4 * columns : 64);
    tiles.rows[tile] = static_cast<uint8_t>(low ? columns : 16);
  }
  return tiles;
}

inline constexpr AttentionTiles kAttentionTiles[kFew + 1] = {attention_tiles(0), attention_tiles(1), attention_tiles(2),
                                                             attention_tiles(3), attention_tiles(4)};

// Transposes 8 dimensions of 32 keys, half of them at `low` and half at `high`: target [8][32].
inline void transpose_8x32(const bfloat16* low, const bfloat16* high, int64_t stride, bfloat16* target) {
  const auto load = [](const bfloat16* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  __m512i r[8], a[8], b[8];
  // 128 bits of r[k] are the dimensions of keys k, k + 8, k + 16 and k + 24.
  for (int k = 0; k < 8; ++k) {
    __m512i row = _mm512_broadcast_i32x4(load(low + k * stride));
    row = _mm512_mask_broadcast_i32x4(row, 0x00f0, load(low + (k + 8) * stride));
    row = _mm512_mask_broadcast_i32x4(row, 0x0f00, load(high + k * stride));
    r[k] = _mm512_mask_broadcast_i32x4(row, 0xf000, load(high + (k + 8) * stride));
  }
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi32(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi32(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(target + 2 * i * 32, _mm512_unpacklo_epi64(b[i], b[i + 4]));
    _mm512_store_si512(target + (2 * i + 1) * 32, _mm512_unpackhi_epi64(b[i], b[i + 4]));
  }
}

template <class C>
class AmxAttention {
 public:
  using Query = bfloat16;
  static constexpr int64_t kPair = 2 * kBlock;  // keys of one product: a tile holds 32 numbers in a row
  static constexpr int64_t kAlign = kPair;
  static constexpr bool kNarrows = true;  // has `attend_few`
  static constexpr int64_t kTile = 512;  // elements

  static bool fits(int64_t dim) { return dim >= 32 && dim % 16 == 0; }
  static int64_t query_size(int64_t dim) { return (dim + 31) / 32 * kTile * 2; }
  static int64_t scratch(int64_t dim) {
    return kSplit * kColumns * 4 + kSplit * kColumns * 2 + 2 * kSplit * dim * 2 + kPair * dim * 2;
  }

  AmxAttention(int64_t dim, uint8_t* memory)
      : dim_(dim),
        scores_(reinterpret_cast<float*>(memory)),
        weights_(reinterpret_cast<bfloat16*>(scores_ + kSplit * kColumns)),
        values_(weights_ + kSplit * kColumns),
        keys_(values_ + kSplit * dim),
        padded_(keys_ + kSplit * dim) {}
  ~AmxAttention() { _tile_release(); }
  AmxAttention(const AmxAttention&) = delete;
  AmxAttention& operator=(const AmxAttention&) = delete;

  // Says how many columns the calls that follow have: up to kFew, or any number with 0.
  void set_columns(int columns) {
    if (columns_ == columns) return;
    columns_ = columns;
    _tile_loadconfig(&kAttentionTiles[columns]);
  }

  // Tiles [chunk of dimensions][register][16 pairs of dimensions][16 columns][2] of the vectors at query[i], zeros where
  // those are null. Where 32 does not divide the dimensions the last chunk overlaps the one before, with zeros there.
  void pack(const bfloat16* const* query, int registers, Query* packed) const {
    for (int64_t chunk = 0; chunk < (dim_ + 31) / 32; ++chunk) {
      const int64_t offset = chunk_begin(chunk), skipped = (chunk * 32 - offset) / 2;
      const __mmask16 mask = static_cast<__mmask16>(0xffffu << skipped);
      for (int r = 0; r < registers; ++r, packed += kTile) {
        Vector pairs[16];
        for (int i = 0; i < 16; ++i) {
          const bfloat16* from = query[r * 16 + i];
          pairs[i] = from == nullptr ? Vector::zero() : Vector{_mm512_maskz_loadu_ps(mask, from + offset)};
        }
        transpose(pairs);
        for (int i = 0; i < 16; ++i) _mm512_store_ps(packed + i * 32, pairs[i].lanes);
      }
    }
  }

  // Tiles [chunk of dimensions][16 pairs of dimensions][columns][2] of up to kFew vectors.
  void pack_few(const bfloat16* const* query, Query* packed) const {
    for (int64_t chunk = 0; chunk < (dim_ + 31) / 32; ++chunk) {
      const int64_t offset = chunk_begin(chunk), skipped = (chunk * 32 - offset) / 2;
      for (int64_t pair = 0; pair < 16; ++pair) {
        for (int column = 0; column < columns_; ++column, packed += 2) {
          uint32_t both = 0;
          if (pair >= skipped) std::memcpy(&both, query[column] + offset + 2 * pair, sizeof(both));
          std::memcpy(packed, &both, sizeof(both));
        }
      }
    }
  }

  // Makes keys [begin, end) ready, whose blocks are those from `table` on.
  void load(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end) {
    begin_ = begin;
    key_stride_ = kConverts ? dim_ : cache.token_stride;
    for (int64_t key = begin; key < end; key += kPair) {
      const int64_t index = (key - begin) / kBlock, count = end - key;
      const int64_t low = table[index], high = table[count > kBlock ? index + 1 : index];
      for (int64_t ahead = 0; ahead < 2; ++ahead) {
        if (count > (kAhead + ahead) * kBlock) fetch(cache, cache.place(table[index + kAhead + ahead], head));
      }
      if constexpr (kConverts) {
        convert(cache.keys, cache.key_scales, cache, low, head, count, keys_ + index * kBlock * dim_);
        convert(cache.keys, cache.key_scales, cache, high, head, count - kBlock, keys_ + (index + 1) * kBlock * dim_);
        key_blocks_[index] = keys_ + index * kBlock * dim_;
        key_blocks_[index + 1] = keys_ + (index + 1) * kBlock * dim_;
      } else {
        // Of the last pair of blocks the second may be missing; its keys are masked, so any memory will do.
        key_blocks_[index] = cache.keys + cache.place(low, head);
        key_blocks_[index + 1] = cache.keys + cache.place(high, head);
        if (count >= kPair) {
          arrange(cache.values + cache.place(low, head), cache.values + cache.place(high, head), key_stride_, index / 2);
          continue;
        }
      }
      // What lies behind the last value is no number to calculate with.
      if (count < kPair) std::fill_n(padded_, kPair * dim_, bfloat16{0});
      convert(cache.values, cache.value_scales, cache, low, head, count, padded_);
      convert(cache.values, cache.value_scales, cache, high, head, count - kBlock, padded_ + kBlock * dim_);
      arrange(padded_, padded_ + kBlock * dim_, dim_, index / 2);
    }
  }

  // As `attend`, for few columns: sums [columns][dim], in the order of `interleave_pair`. Column i sees keys
  // [oldest[i], newest[i]].
  void attend_few(const Query* query, int64_t begin, int64_t end, Scale scale, const int64_t* oldest,
                  const int64_t* newest, float* sums, float* exponent, float* total) {
    const int64_t pairs = (end - begin + kPair - 1) / kPair, stride = columns_ * 4;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t step = key_stride_ * static_cast<int64_t>(sizeof(bfloat16));
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t chunk = 0; chunk < (dim_ + 31) / 32; ++chunk) {
        const int64_t offset = chunk_begin(chunk);
        _tile_loadd(2, key_blocks_[2 * pair] + offset, step);
        _tile_loadd(3, key_blocks_[2 * pair + 1] + offset, step);
        _tile_loadd(4, query + chunk * 32 * columns_, stride);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, scores_ + pair * kPair * columns_, stride);
      _tile_stored(1, scores_ + (pair * kPair + kBlock) * columns_, stride);
    }
    for (int i = 0; i < columns_; ++i) {
      softmax_of_column(scores_ + i, columns_, begin, begin + pairs * kPair, scale, oldest[i], newest[i], exponent + i,
                        total + i, weights_ + i * kSplit);
    }
    for (int64_t tile = 0; tile < dim_ / 16; tile += 2) {
      const bool two = tile + 1 < dim_ / 16;
      const bfloat16* values = values_ + tile * kTile;
      _tile_zero(5);
      _tile_zero(6);
      for (int64_t pair = 0; pair < pairs; ++pair, values += dim_ * kPair) {
        _tile_loadd(7, weights_ + pair * kPair, kSplit * static_cast<int64_t>(sizeof(bfloat16)));
        _tile_loadd(2, values, 64);
        _tile_dpbf16ps(5, 7, 2);
        if (two) {
          _tile_loadd(3, values + kTile, 64);
          _tile_dpbf16ps(6, 7, 3);
        }
      }
      _tile_stored(5, sums + tile * 16, dim_ * 4);
      if (two) _tile_stored(6, sums + tile * 16 + 16, dim_ * 4);
    }
  }

  template <int registers>
  void attend(const Query* query, int64_t begin, int64_t end, Scale scale, const Visible& visible, float* sums,
              float* exponent, float* total) {
    constexpr int ld = registers * 16;
    const int64_t first = (begin - begin_) / kBlock, blocks = (end - begin + kPair - 1) / kPair * 2;
    for (int64_t i = 0; i < blocks; i += 2) score<registers>(first + i, query, scores_ + i * kBlock * ld);
    __m512 even[registers];
    softmax<false, registers>(scores_, begin, begin + blocks * kBlock, scale, visible, exponent, total,
                              [&](int64_t row, int r, Vector weight) {
                                if (row % 2 == 0) {
                                  even[r] = weight.lanes;
                                } else {
                                  interleave(even[r], weight.lanes, weights_ + (row / 2 * registers + r) * 32);
                                }
                              });
    const int64_t pairs = blocks / 2;
    const bfloat16* values = values_ + first / 2 * dim_ * kPair;
    int64_t tile = 0;
    for (; tile + 2 <= dim_ / 16; tile += 2) {
      sum<registers, 2>(values + tile * kTile, pairs, sums + tile * 16 * ld);
    }
    if (tile < dim_ / 16) sum<registers, 1>(values + tile * kTile, pairs, sums + tile * 16 * ld);
  }

 private:
  static constexpr int64_t kAhead = 4;  // blocks that are asked for before they are needed

  static constexpr bool kConverts = !std::is_same<C, bfloat16>::value;

  void fetch(const PagedCache<C>& cache, int64_t place) const {
    for (int64_t token = 0; token < kBlock; ++token, place += cache.token_stride) {
      for (int64_t i = 0; i < dim_; i += static_cast<int64_t>(64 / sizeof(C))) {
        _mm_prefetch(reinterpret_cast<const char*>(cache.keys + place + i), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(cache.values + place + i), _MM_HINT_T1);
      }
    }
  }

  // The first `count` tokens of a block, or all of it, as bf16 [16][dim].
  void convert(const C* source, const float* scales, const PagedCache<C>& cache, int64_t block, int64_t head,
               int64_t count, bfloat16* target) const {
    source += cache.place(block, head);
    for (int64_t token = 0; token < std::min(count, kBlock); ++token, source += cache.token_stride, target += dim_) {
      const float scale = std::is_same<C, int8_t>::value ? scales[cache.scale_place(block, head) + token] : 1.0f;
      widen(source, dim_, scale, target);
    }
  }

  int64_t chunk_begin(int64_t chunk) const { return std::min(chunk * 32, dim_ - 32); }

  // Rows 2i and 2i + 1 of the weights as pairs, as the second operand of TDPBF16PS takes them.
  static void interleave(__m512 even, __m512 odd, bfloat16* target) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                           5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(target, _mm512_permutexvar_epi16(order, both));
  }

  // values_ is [pair of blocks][dim][32 keys], for few columns [pair of blocks][tiles of `interleave_pair`].
  void arrange(const bfloat16* low, const bfloat16* high, int64_t stride, int64_t pair) {
    bfloat16* target = values_ + pair * dim_ * kPair;
    if (columns_ > 0) return interleave_pair(low, high, stride, dim_, target);
    for (int64_t i = 0; i < dim_; i += 8) transpose_8x32(low + i, high + i, stride, target + i * kPair);
  }

  // Scores [32][registers * 16] of the blocks `index` and the one behind it.
  template <int registers>
  void score(int64_t index, const Query* query, float* scores) const {
    constexpr int stride = registers * 64;
    const int64_t step = key_stride_ * static_cast<int64_t>(sizeof(bfloat16));
    _tile_zero(0);
    _tile_zero(1);
    if (registers == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t chunk = 0; chunk < (dim_ + 31) / 32; ++chunk, query += registers * kTile) {
      const int64_t offset = chunk_begin(chunk);
      _tile_loadd(4, key_blocks_[index] + offset, step);
      _tile_loadd(5, key_blocks_[index + 1] + offset, step);
      _tile_loadd(6, query, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if (registers == 2) {
        _tile_loadd(7, query + kTile, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, scores, stride);
    _tile_stored(1, scores + 16 * registers * 16, stride);
    if (registers == 2) {
      _tile_stored(2, scores + 16, stride);
      _tile_stored(3, scores + 16 * registers * 16 + 16, stride);
    }
  }

  // Sums [tiles * 16][registers * 16] over `pairs` pairs of blocks.
  template <int registers, int tiles>
  void sum(const bfloat16* values, int64_t pairs, float* sums) const {
    constexpr int stride = registers * 64;
    const bfloat16* weights = weights_;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t pair = 0; pair < pairs; ++pair, values += dim_ * kPair, weights += registers * kTile) {
      _tile_loadd(6, weights, stride);
      _tile_loadd(4, values, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (tiles == 2) {
        _tile_loadd(5, values + kTile, 64);
        _tile_dpbf16ps(1, 5, 6);
      }
      if (registers == 2) {
        _tile_loadd(7, weights + 32, stride);
        _tile_dpbf16ps(2, 4, 7);
        if (tiles == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, stride);
    if (tiles == 2) _tile_stored(1, sums + 16 * registers * 16, stride);
    if (registers == 2) {
      _tile_stored(2, sums + 16, stride);
      if (tiles == 2) _tile_stored(3, sums + 16 * registers * 16 + 16, stride);
    }
  }

  int64_t dim_;
  float* scores_;
  bfloat16* weights_;
  bfloat16* values_;
  bfloat16* keys_;
  bfloat16* padded_;
  int64_t begin_ = 0, key_stride_ = 0;
  int columns_ = -1;
  const bfloat16* key_blocks_[kSplit / kBlock + 1];
};

}  // namespace roundhouse

#endif
