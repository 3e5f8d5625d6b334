// The second half of LoRA: what x A^T is, times B, is added to the output.
//
// A block has 16 rows and kColumns columns of the output, a warp 64 of them. Lanes load B straight into registers, 16 bytes
// of each of several ranks, and take neighbouring columns as columns of different matrix products: a lane then has 16
// neighbouring columns of the sums. B of the next ranks is loaded while the splits of x A^T are added up.
#pragma once

#include "roundhouse/lora/tables.cuh"
#include "roundhouse/ptx/mma.cuh"

namespace roundhouse::cuda {

constexpr int kExpandRanks = 64;  // that are in shared memory at a time

// What x A^T is for the rows of a block. Rows begin in other banks.
using Shrunk = float[16][kExpandRanks + 8];

// sums += shrunk times ranks of B, 16 by 64. With g = lane / 4 and t = lane % 4, sums[j][i] is row g + i / 2 * 8, column
// 16 t + j + i % 2 * 8; b[i] is 16 bytes of rank `rank(i)` from column `column(i)` on.
template <class T>
struct ExpandProduct;

template <>
struct ExpandProduct<bfloat16> {
  static constexpr int kRanks = 16;

  static ROUNDHOUSE_DEVICE int rank(int i) { return lane_of_thread() % 4 * 2 + i % 2 + i / 2 * 8; }
  static ROUNDHOUSE_DEVICE int column(int) { return lane_of_thread() / 4 * 8; }

  // A number is two bf16, which is as good as fp32 here: B has no more digits.
  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[8][4], const Shrunk& shrunk, int first, const uint4 (&b)[4]) {
    const int lane = lane_of_thread();
    uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(&shrunk[lane / 4 + i % 2 * 8][first + lane % 4 * 2 + i / 2 * 8]);
      high[i] = ptx::pack_bf16(pair.x, pair.y);
      low[i] = ptx::pack_bf16(pair.x - ptx::low_bf16(high[i]), pair.y - ptx::high_bf16(high[i]));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t columns[2] = {pair(word(b[0], j / 2), word(b[1], j / 2), j % 2), pair(word(b[2], j / 2), word(b[3], j / 2), j % 2)};
      ptx::mma_bf16(sums[j], low, columns);
      ptx::mma_bf16(sums[j], high, columns);
    }
  }

  static ROUNDHOUSE_DEVICE uint32_t word(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  // The lower or the upper halves of two words.
  static ROUNDHOUSE_DEVICE uint32_t pair(uint32_t first, uint32_t second, int upper) {
    return upper == 0 ? (first & 0xffffu) | second << 16 : first >> 16 | (second & 0xffff0000u);
  }
};

template <>
struct ExpandProduct<float> {
  static constexpr int kRanks = 1;

  static ROUNDHOUSE_DEVICE int rank(int) { return 0; }
  static ROUNDHOUSE_DEVICE int column(int i) { return lane_of_thread() % 4 * 16 + i * 4; }

  static ROUNDHOUSE_DEVICE void multiply(float (&sums)[8][4], const Shrunk& shrunk, int first, const uint4 (&b)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float number = shrunk[lane_of_thread() / 4 + half * 8][first];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = ptx::bits<float4>(b[i]);
        const float columns[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& sum = sums[(i * 4 + j) % 8][i / 2 + half * 2];
          sum = fmaf(number, columns[j], sum);
        }
      }
    }
  }
};

template <class T>
struct ExpandBody {
  using Params = AdaptRows<T>;
  using Product = ExpandProduct<T>;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kOfWarp = 64, kColumns = kWarps * kOfWarp;

  struct Shared {
    Shrunk shrunk;
  };
  static constexpr size_t kSharedBytes = sizeof(Shared);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* memory) {
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int groups = p.tiles.rows / 16, first_row = static_cast<int>(blockIdx.x) % groups * 16;
    const LoraTile tile(p, static_cast<int64_t>(blockIdx.x) / groups);
    if (tile.site == nullptr || first_row >= tile.count) return;
    const int64_t begin = static_cast<int64_t>(blockIdx.y) * kColumns, end = begin + kColumns;
    int before = 0;  // ranks of the spans before
    for (const LoraSpan* span = tile.site->spans; span < tile.site->spans + tile.site->count; ++span) {
      if (span->begin < end && span->end > begin) {
        const bool whole = p.aligned && p.columns % kVector<T> == 0 && span->begin % kVector<T> == 0 && span->end % kVector<T> == 0;
        whole ? expand<true>(p, tile, *span, before, first_row, shared) : expand<false>(p, tile, *span, before, first_row, shared);
      }
      before += static_cast<int>(span->rank);
    }
  }

  template <bool kWhole>
  static ROUNDHOUSE_DEVICE void expand(const Params& p, const LoraTile& tile, const LoraSpan& span, int before, int first_row,
                                       Shared& shared) {
    const LoraImage<T> image(p, tile.adapter);
    const int ranks = static_cast<int>(span.rank);
    const int64_t own = static_cast<int64_t>(blockIdx.y) * kColumns + warp_of_thread() * kOfWarp;
    uint4 next[4];
    load_ranks<kWhole>(next, image, span, tile.expert, own, 0);
    float sums[8][4] = {};
    for (int first = 0; first < ranks; first += kExpandRanks) {
      __syncthreads();  // the ranks before are used no more
      add_splits(p, tile, before + first, min(kExpandRanks, ranks - first), first_row, shared);
      __syncthreads();
      for (int rank = 0; rank < min(kExpandRanks, ranks - first); rank += Product::kRanks) {
        const uint4 b[4] = {next[0], next[1], next[2], next[3]};
        load_ranks<kWhole>(next, image, span, tile.expert, own, first + rank + Product::kRanks);
        Product::multiply(sums, shared.shrunk, rank, b);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = tile.row(p, first_row + half * 8 + lane_of_thread() / 4);
      if (row < 0) continue;
      const int64_t first = own + lane_of_thread() % 4 * 16;
      if (p.exact != nullptr) {
        store<kWhole>(p.exact + row * p.columns, image, *tile.site, span, first, sums, half);
      } else {
        store<kWhole>(p.out + row * p.columns, image, *tile.site, span, first, sums, half);
      }
    }
  }

  // This lane's part of B, of ranks from `first` on and 64 columns of the output from `own` on; zeros for what is not there.
  template <bool kWhole>
  static ROUNDHOUSE_DEVICE void load_ranks(uint4 (&b)[4], const LoraImage<T>& image, const LoraSpan& span, int expert,
                                           int64_t own, int first) {
    const int64_t columns = span.end - span.begin;
    if (span.rank == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t rank = first + Product::rank(i), column = own - span.begin + Product::column(i);
      const int64_t at = (expert * span.rank + rank) * columns + column;
      if constexpr (kWhole) {
        const bool inside = rank < span.rank && column >= 0 && column < columns;
        b[i] = keep_if(inside, image.load(span.up + (inside ? at : 0)));
      } else {
        b[i] = image.load_some(span.up + at, -column, rank < span.rank ? columns - column : 0);
      }
    }
  }

  // Adds up the splits of some ranks, in order. There are zeros up to a whole product, and for rows that are not there.
  static ROUNDHOUSE_DEVICE void add_splits(const Params& p, const LoraTile& tile, int first, int count, int first_row,
                                           Shared& shared) {
    const int splits = p.splits;
    for (int i = static_cast<int>(threadIdx.x); i < 16 * kExpandRanks; i += kThreads) {
      const int rank = i % kExpandRanks;
      const int64_t row = tile.row(p, first_row + i / kExpandRanks);
      float sum = 0.0f;
      if (row >= 0 && rank < count) {
        const float* from = p.scratch + row * p.room + first + rank;
        for (int split = 0; split < splits; ++split) sum += from[split * tile.site->ranks];
      }
      shared.shrunk[i / kExpandRanks][rank] = sum;
    }
  }

  // Adds 16 columns of a row to the output, as far as they are the span's.
  template <bool kWhole, class Out>
  static ROUNDHOUSE_DEVICE void store(Out* out, const LoraImage<T>& image, const LoraSite& site, const LoraSpan& span, int64_t first,
                                      const float (&sums)[8][4], int half) {
    constexpr int kPer = kWhole ? kVector<Out> : 1;
#pragma unroll
    for (int i = 0; i < 16; i += kPer) {
      if (first + i < span.begin || first + i >= span.end) continue;
      auto values = Vector<Out, kPer>::load(out + first + i);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        float total = values.get(j) + sums[(i + j) % 8][(i + j) / 8 + half * 2];
        if (site.scale >= 0) total *= image.number(site.scale, first + i + j);
        if (site.offset >= 0) total += image.number(site.offset, first + i + j);
        values.set(j, total);
      }
      values.store(out + first + i);
    }
  }
};

}  // namespace roundhouse::cuda
