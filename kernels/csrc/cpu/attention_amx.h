// The scores and sums of one split on AMX tiles, for bf16 and head dimensions that are multiples of 16 from 32 on.
//
// Both products are transposed: scores [keys][columns] = keys * queries^T, sums [dim][columns] = values^T * weights. Half
// a block of keys by 32 dimensions is then an operand of TDPBF16PS as it lies in the cache, the weights become one by
// interleaving two rows, and only the values have to be transposed.
//
// Keys and values of eight bits become bf16 without rounding; scales are multiplied into scores and weights. Vectors are
// filled up with zeros to multiples of 64 dimensions, and within 64 queries have the keys' order, which is the one that
// the conversion leaves.
#pragma once

#if defined(ROUNDHOUSE_AMX)

#include "cpu/attention_amx_few.h"
#include "cpu/attention_amx_tiles.h"
#include "cpu/transpose.h"

namespace roundhouse {

template <class C>
class AmxAttention {
 public:
  using Query = bfloat16;
  static constexpr int64_t kPair = 2 * kBlock;  // keys of one product: a tile holds 32 numbers in a row
  static constexpr int64_t kAlign = kPair;
  static constexpr int64_t kTile = 512;  // elements

  static bool fits(int64_t dim) { return dim >= 32 && dim % 16 == 0; }
  static int64_t few(int64_t) { return kFew; }
  static int64_t few_dim(int64_t dim) { return padded(dim); }
  static int64_t query_size(int64_t dim) { return (padded(dim) + 31) / 32 * kTile * 2; }
  static int64_t scratch(int64_t dim) {
    return kSplit * kColumns * 4 + kSplit * kColumns * 2 + (2 * kSplit + kPair) * padded(dim) * 2 + 2 * kSplit * 4;
  }

  AmxAttention(int64_t dim, uint8_t* memory)
      : dim_(dim),
        padded_dim_(padded(dim)),
        scores_(reinterpret_cast<float*>(memory)),
        weights_(reinterpret_cast<bfloat16*>(scores_ + kSplit * kColumns)),
        values_(weights_ + kSplit * kColumns),
        keys_(values_ + kSplit * padded_dim_),
        padded_(keys_ + kSplit * padded_dim_),
        key_scales_(reinterpret_cast<float*>(padded_ + kPair * padded_dim_)),
        value_scales_(key_scales_ + kSplit) {}
  ~AmxAttention() { _tile_release(); }
  AmxAttention(const AmxAttention&) = delete;
  AmxAttention& operator=(const AmxAttention&) = delete;

  // Tiles [chunk of dimensions][register][16 pairs of dimensions][16 columns][2] of the vectors at query[i], zeros where
  // those are null. Where 32 does not divide the dimensions the last chunk overlaps the one before, with zeros there.
  void pack(const bfloat16* const* query, int registers, Query* packed) const {
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      for (int r = 0; r < registers; ++r, packed += kTile) {
        Vector pairs[16];
        for (int i = 0; i < 16; ++i) {
          const bfloat16* from = query[r * 16 + i];
          pairs[i] = from == nullptr ? Vector::zero() : Vector{_mm512_castsi512_ps(chunk_of(from, chunk))};
        }
        transpose(pairs);
        for (int i = 0; i < 16; ++i) _mm512_store_ps(packed + i * 32, pairs[i].lanes);
      }
    }
  }

  // Tiles [chunk of dimensions][16 pairs of dimensions][few_width(columns)][2].
  void pack_few(const bfloat16* const* query, int columns, Query* packed) const {
    const int width = few_width(columns);
    for (int64_t chunk = 0; chunk < chunks(); ++chunk, packed += 32 * width) {
      std::memset(packed, 0, 64 * width);
      for (int column = 0; column < columns; ++column) {
        alignas(64) uint32_t pairs[16];
        _mm512_store_si512(pairs, chunk_of(query[column], chunk));
        for (int i = 0; i < 16; ++i) std::memcpy(packed + (i * width + column) * 2, pairs + i, sizeof(pairs[i]));
      }
    }
  }

  // Makes keys [begin, end) ready, whose blocks are those from `table` on.
  void load(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end) {
    begin_ = begin;
    key_stride_ = kConverts ? padded_dim_ : cache.token_stride;
    if (kScaled) gather_scales(cache, head, table, begin, end, key_scales_, value_scales_);
    for (int64_t key = begin; key < end; key += kPair) {
      const int64_t index = (key - begin) / kBlock, count = end - key;
      // Of the last pair of blocks the second may be missing; its keys are masked, so any memory will do.
      const int64_t low = cache.place(table[index], head);
      const int64_t high = cache.place(table[count > kBlock ? index + 1 : index], head);
      for (int64_t ahead = kAhead; ahead < kAhead + 2; ++ahead) {
        if (count > ahead * kBlock) prefetch(cache, cache.place(table[index + ahead], head));
      }
      if constexpr (kConverts) {
        key_blocks_[index] = keys_ + index * kBlock * padded_dim_;
        key_blocks_[index + 1] = keys_ + (index + 1) * kBlock * padded_dim_;
        convert_keys(cache.keys + low, cache.token_stride, kBlock, dim_, keys_ + index * kBlock * padded_dim_);
        convert_keys(cache.keys + high, cache.token_stride, kBlock, dim_, keys_ + (index + 1) * kBlock * padded_dim_);
      } else {
        key_blocks_[index] = cache.keys + low;
        key_blocks_[index + 1] = cache.keys + high;
        if (count >= kPair) {
          transpose_values(cache.values + low, cache.values + high, key_stride_, index / 2);
          continue;
        }
      }
      // What lies behind the last value is no number to calculate with.
      if (count < kPair) std::fill_n(padded_, kPair * padded_dim_, bfloat16{0});
      convert_values(cache.values + low, cache.token_stride, std::min(count, kBlock), dim_, padded_);
      convert_values(cache.values + high, cache.token_stride, std::min(count - kBlock, kBlock), dim_,
                     padded_ + kBlock * padded_dim_);
      transpose_values(padded_, padded_ + kBlock * padded_dim_, padded_dim_, index / 2);
    }
    configure(&kWholeTiles);
  }

  template <int registers>
  void attend(const Query* query, int64_t begin, int64_t end, Scale scale, const Visible& visible, float* sums,
              float* exponent, float* total) {
    constexpr int ld = registers * 16;
    const int64_t first = (begin - begin_) / kBlock, blocks = (end - begin + kPair - 1) / kPair * 2;
    for (int64_t i = 0; i < blocks; i += 2) score<registers>(first + i, query, scores_ + i * kBlock * ld);
    __m512 even[registers];
    const KeyScales scales{key_scales_ + (begin - begin_), value_scales_ + (begin - begin_)};
    softmax<false, kScaled, registers>(scores_, begin, begin + blocks * kBlock, scale, visible, scales, exponent, total,
                                       [&](int64_t row, int r, Vector weight) {
                                         if (row % 2 == 0) {
                                           even[r] = weight.lanes;
                                         } else {
                                           interleave_weights(even[r], weight.lanes, weights_ + (row / 2 * registers + r) * 32);
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

  // The same for `columns` columns, of which the i-th sees keys [oldest[i], newest[i]]: sums [columns][few_dim] in the
  // order of `Interleave`, over keys [begin, end), whose blocks are those from `table` on.
  void attend_few(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
                  const Ahead& ahead, const Query* query, int columns, Scale scale, const int64_t* oldest,
                  const int64_t* newest, float* sums, float* exponent, float* total) {
    if (kScaled) gather_scales(cache, head, table, begin, end, key_scales_, value_scales_);
    const KeyScales scales{key_scales_, value_scales_};
    const int64_t last = begin + (end - begin + kPair - 1) / kPair * kPair;
    const auto run = [&](auto width) {
      constexpr int kCount = decltype(width)::value;
      score_few<kCount>(cache, head, table, begin, end, query);
      if constexpr (kCount == 1) {
        Vector even = Vector::zero();
        softmax_of_column<false, kScaled>(scores_, begin, last, scale, *oldest, *newest, scales, exponent, total,
                                          [&](int64_t place, Vector weight) {
                                            if (place % 32 == 0) {
                                              even = weight;
                                            } else {
                                              _mm512_store_si512(weights_ + place - 16,
                                                                 (__m512i)_mm512_cvtne2ps_pbh(weight.lanes, even.lanes));
                                            }
                                          });
      } else {
        int64_t from[kCount], to[kCount];
        for (int i = 0; i < kCount; ++i) {
          const int column = std::min(i, columns - 1);
          from[i] = oldest[column], to[i] = newest[column];
        }
        softmax_of_columns<kScaled, kCount>(scores_, begin, last, scale, from, to, scales, exponent, total, weights_);
      }
      sum_few<kCount>(cache, head, table, begin, end, ahead, sums);
    };
    switch (few_width(columns)) {
      case 1: return run(std::integral_constant<int, 1>{});
      case 4: return run(std::integral_constant<int, 4>{});
      default: return run(std::integral_constant<int, 8>{});
    }
  }

  // Calls store(first dimension, sixteen sums) for a column of `attend_few`.
  template <class Store>
  static void in_order(const float* sums, int64_t dim, const Store& store) {
    Interleave<C>::in_order(sums, dim, store);
  }

 private:
  static constexpr int64_t kAhead = 4;  // blocks that are asked for before they are needed
  static constexpr int64_t kBatch = 4;  // pairs of blocks whose values are made ready at a time
  static constexpr bool kConverts = !std::is_same<C, bfloat16>::value;
  static constexpr bool kScaled = std::is_same<C, int8_t>::value;

  static int64_t padded(int64_t dim) { return kConverts ? (dim + 63) / 64 * 64 : dim; }
  static int few_width(int columns) { return columns == 1 ? 1 : columns <= 4 ? 4 : 8; }
  int64_t chunks() const { return (padded_dim_ + 31) / 32; }
  int64_t chunk_begin(int64_t chunk) const { return std::min(chunk * 32, padded_dim_ - 32); }

  // What the tiles are from now on.
  void configure(const AttentionTiles* tiles) {
    if (tiles_ == tiles) return;
    tiles_ = tiles;
    _tile_loadconfig(tiles);
  }

  // A chunk of a query, in the keys' order.
  __m512i chunk_of(const bfloat16* query, int64_t chunk) const {
    if constexpr (kConverts) {
      const int64_t offset = chunk / 2 * 64;
      const auto load = [&](int64_t from) {
        const int64_t count = std::clamp(dim_ - from, int64_t{0}, int64_t{32});
        return _mm512_maskz_loadu_epi16(_bzhi_u32(~0u, static_cast<unsigned>(count)), query + from);
      };
      const __m512i low = load(offset), high = load(offset + 32);
      return chunk % 2 == 0 ? _mm512_shuffle_i32x4(low, high, 0x88) : _mm512_shuffle_i32x4(low, high, 0xdd);
    } else {
      const int64_t offset = chunk_begin(chunk), skipped = (chunk * 32 - offset) / 2;
      return _mm512_maskz_loadu_epi32(static_cast<__mmask16>(0xffffu << skipped), query + offset);
    }
  }

  // One head's part of a block.
  void prefetch(const PagedCache<C>& cache, int64_t place) const {
    prefetch_block(cache.keys + place, cache.token_stride, dim_);
    prefetch_block(cache.values + place, cache.token_stride, dim_);
  }

  // values_ is [pair of blocks][dim][32 keys].
  void transpose_values(const bfloat16* low, const bfloat16* high, int64_t stride, int64_t pair) {
    bfloat16* target = values_ + pair * dim_ * kPair;
    for (int64_t i = 0; i < dim_; i += 8) transpose_8x32(low + i, high + i, stride, target + i * kPair);
  }

  // Scores [keys][columns] of a split.
  template <int columns>
  void score_few(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
                 const Query* query) {
    configure(&kScoreTiles<columns>);
    const int64_t step = (kConverts ? padded_dim_ : cache.token_stride) * static_cast<int64_t>(sizeof(bfloat16));
    bfloat16* converted = keys_;
    float* scores = scores_;
    for (int64_t key = begin; key < end; key += kPair, table += 2, scores += kPair * columns) {
      const int64_t count = end - key, low = cache.place(table[0], head);
      const int64_t high = cache.place(table[count > kBlock ? 1 : 0], head);  // if missing, masked
      for (int64_t i = kAhead; i < kAhead + 2; ++i) {
        if (count > i * kBlock) prefetch_block<1>(cache.keys + cache.place(table[i], head), cache.token_stride, dim_);
      }
      prefetch_block(cache.values + low, cache.token_stride, dim_);
      prefetch_block(cache.values + high, cache.token_stride, dim_);
      const bfloat16 *first, *second;
      if constexpr (kConverts) {
        // Two places by turns: tiles of one pair may be loaded while the next one is converted.
        first = converted, second = converted + kBlock * padded_dim_;
        convert_keys(cache.keys + low, cache.token_stride, kBlock, dim_, converted);
        convert_keys(cache.keys + high, cache.token_stride, kBlock, dim_, converted + kBlock * padded_dim_);
        converted = converted == keys_ ? keys_ + kPair * padded_dim_ : keys_;
      } else {
        first = cache.keys + low, second = cache.keys + high;
      }
      _tile_zero(0);
      _tile_zero(1);
      for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
        const int64_t offset = chunk_begin(chunk);
        _tile_loadd(2, first + offset, step);
        _tile_loadd(3, second + offset, step);
        _tile_loadd(4, query + chunk * 32 * columns, columns * 4);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, scores, columns * 4);
      _tile_stored(1, scores + kBlock * columns, columns * 4);
    }
  }

  // Sums [columns][padded dim] of the values of a split, 64 dimensions at a time.
  template <int columns>
  void sum_few(const PagedCache<C>& cache, int64_t head, const int32_t* table, int64_t begin, int64_t end,
               const Ahead& ahead, float* sums) {
    configure(&kSumTiles<columns>);
    const Interleave<C> interleave;
    for (int64_t d = 0; d < padded_dim_; d += 64) {
      const int64_t tiles = std::min<int64_t>(4, (padded_dim_ - d) / 16), dims = std::min<int64_t>(64, dim_ - d);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t batch = begin; batch < end; batch += kBatch * kPair) {
        const int64_t stop = std::min(end, batch + kBatch * kPair);
        bfloat16* target = values_;
        for (int64_t key = batch; key < stop; key += kPair, target += 4 * kTile) {
          const int64_t index = (key - begin) / kBlock;
          if (d == 0) {
            ahead.prefetch(cache, key - begin, dim_);
            ahead.prefetch(cache, key - begin + kBlock, dim_);
          }
          for (int64_t i = kAhead; i < kAhead + 2; ++i) {
            if (end - key > i * kBlock) {
              prefetch_block<1>(cache.values + cache.place(table[index + i], head) + d, cache.token_stride, dims);
            }
          }
          const C* low = cache.values + cache.place(table[index], head) + d;
          const C* high = end - key > kBlock ? cache.values + cache.place(table[index + 1], head) + d : nullptr;
          interleave_blocks(interleave, low, high, cache.token_stride, end - key, dims, target);
        }
        const bfloat16 *values = values_, *weights = weights_ + (batch - begin) * columns;
        for (int64_t key = batch; key < stop; key += kPair, values += 4 * kTile, weights += kPair * columns) {
          _tile_loadd(4, weights, 64);
          _tile_loadd(5, values, 64);
          _tile_dpbf16ps(0, 4, 5);
          if (tiles > 1) {
            _tile_loadd(6, values + kTile, 64);
            _tile_dpbf16ps(1, 4, 6);
          }
          if (tiles > 2) {
            _tile_loadd(7, values + 2 * kTile, 64);
            _tile_dpbf16ps(2, 4, 7);
          }
          if (tiles > 3) {
            _tile_loadd(5, values + 3 * kTile, 64);
            _tile_dpbf16ps(3, 4, 5);
          }
        }
      }
      const int64_t stride = padded_dim_ * static_cast<int64_t>(sizeof(float));
      _tile_stored(0, sums + d, stride);
      if (tiles > 1) _tile_stored(1, sums + d + 16, stride);
      if (tiles > 2) _tile_stored(2, sums + d + 32, stride);
      if (tiles > 3) _tile_stored(3, sums + d + 48, stride);
    }
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
    for (int64_t chunk = 0; chunk < chunks(); ++chunk, query += registers * kTile) {
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

  int64_t dim_, padded_dim_;
  float* scores_;
  bfloat16* weights_;
  bfloat16* values_;
  bfloat16* keys_;
  bfloat16* padded_;
  float* key_scales_;
  float* value_scales_;
  int64_t begin_ = 0, key_stride_ = 0;
  const AttentionTiles* tiles_ = nullptr;
  const bfloat16* key_blocks_[kSplit / kBlock + 1];
};

}  // namespace roundhouse

#endif
