// Between formats: rows of x to digits in int8, weights back from int4.
#pragma once

#include "roundhouse/linear/formats.cuh"
#include "roundhouse/tile/reduce.cuh"

namespace roundhouse::cuda {

// A block for a row, which is read twice: the second time from the cache.
struct QuantizeRowsBody {
  using Params = QuantizeRows;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = kThreads / kWarp * sizeof(float);

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* shared) {
    const int64_t row = blockIdx.x;
    const bfloat16* x = p.x + row * p.x_stride;
    // Bits without the sign are in the order of what they stand for, NaN the last, which a maximum of floats might lose.
    const auto* bits = reinterpret_cast<const uint16_t*>(x);
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < p.inputs; i += kThreads) most = Max()(most, bits[i] & uint32_t{0x7fff});
    most = reduce_block<kThreads / kWarp>(most, Max(), reinterpret_cast<uint32_t*>(shared));
    const float highest = ptx::low_bf16(most);
    // A row below counts as zeros: its factor would not be finite.
    const bool none = highest <= 1e-30f;
    const float limit = static_cast<float>(p.limit), inverse = none ? 0.0f : limit / highest;
    // The difference is zero, or NaN if the row is not finite.
    if (threadIdx.x == 0) p.scales[row] = none ? 0.0f : highest * (1.0f / limit) + (highest - highest);
    for (int64_t i = threadIdx.x; i < p.out_stride; i += kThreads) {
      const int number = i < p.inputs ? __float2int_rn(to_float(x[i]) * inverse) : 0, high = (number + 64) >> 7;
      int8_t* const out = p.out + row * 2 * p.out_stride + i;
      out[0] = static_cast<int8_t>(high);
      out[p.out_stride] = static_cast<int8_t>(number - high * 128);
    }
  }
};

// A warp for a tile of 16 outputs and 64 inputs.
struct DequantizeInt4Body {
  using Params = DequantizeInt4;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  static constexpr size_t kSharedBytes = 0;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char*) {
    constexpr int kChunks = kGroup / kChunk;
    const int groups = static_cast<int>((p.inputs + kGroup - 1) / kGroup), lane = lane_of_thread();
    const int chunk = static_cast<int>(blockIdx.x) * kWarps + warp_of_thread(), tile = static_cast<int>(blockIdx.y);
    if (chunk >= groups * kChunks) return;
    const int64_t group = static_cast<int64_t>(tile) * groups + chunk / kChunks;
    const Int4::Scales scales = static_cast<const Int4::Scales*>(p.scales)[group * 8 + lane / 4];
    const auto* words = reinterpret_cast<const uint32_t*>(p.tiles) + ((group * kChunks + chunk % kChunks) * kWarp + lane) * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output = static_cast<int64_t>(tile) * kTileOutputs + lane / 4 + half * 8;
      const uint32_t both = scales.step_and_zero[half];
      const uint32_t step = (both & 0xffffu) | both << 16, zero = both >> 16 | (both & 0xffff0000u);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          const int64_t input = static_cast<int64_t>(chunk) * kChunk + lane % 4 * 16 + k * 4 + right * 2;
          const uint32_t pair = ptx::fma_bf16(ptx::levels_bf16(words[k] >> (4 * (half + 2 * right))), step, zero);
          if (output < p.outputs && input < p.inputs) *reinterpret_cast<uint32_t*>(p.out + output * p.inputs + input) = pair;
        }
      }
    }
  }
};

}  // namespace roundhouse::cuda
