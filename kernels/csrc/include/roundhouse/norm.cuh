// Bodies of root mean square normalisation. The order of a row's sum depends on its width alone.
#pragma once

#include "roundhouse/norm.h"
#include "roundhouse/tile/reduce.cuh"
#include "roundhouse/tile/vector.cuh"

namespace roundhouse::cuda {

template <class T>
struct NormRow {
  T *out, *residual;
  const T *x, *weight;

  ROUNDHOUSE_DEVICE NormRow(const RmsNorm<T>& p, int64_t i)
      : out(p.out + i * p.width),
        residual(p.residual == nullptr ? nullptr : p.residual + i * p.width),
        x(p.x + i / p.group * p.stride + i % p.group * p.width),
        weight(p.weight + i % p.weight_rows * p.width) {}
};

// x + residual, rounded to T as it is stored, or x alone.
template <class V, class T>
ROUNDHOUSE_DEVICE V add_residual(V value, T* residual) {
  if (residual == nullptr) return value;
  const V before = V::load(residual);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(V) / sizeof(T)); ++i) value.set(i, value.get(i) + before.get(i));
  value.store(residual);
  return value;
}

// A row stays in the registers of `kThreadsOfRow` threads, so that it is read once: for widths that are multiples of
// kVector<T>, up to kMost, and rows aligned to 16 bytes.
template <class T, int kThreadsOfRow>
struct RmsNormInRegisters {
  using Params = RmsNorm<T>;
  using V = Vector<T, kVector<T>>;
  static constexpr int kLoads = 32 / kVector<T>;  // 32 elements of a thread
  static constexpr int kMost = 32 * kThreadsOfRow;
  static constexpr int kThreads = kThreadsOfRow > 128 ? kThreadsOfRow : 128;
  static constexpr int kRows = kThreads / kThreadsOfRow;
  static constexpr size_t kSharedBytes = sizeof(float) * kThreads / kWarp;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* shared) {
    const int thread = static_cast<int>(threadIdx.x) % kThreadsOfRow;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreadsOfRow;
    if (kRows > 1 && i >= p.rows) return;  // whole warps, which meet no barrier
    const NormRow<T> row(p, i);
    V values[kLoads];
    float squares = 0.0f;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int at = (load * kThreadsOfRow + thread) * kVector<T>;
      if (at < p.width) values[load] = V::load(row.x + at);
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int at = (load * kThreadsOfRow + thread) * kVector<T>;
      if (at >= p.width) continue;
      values[load] = add_residual(values[load], row.residual == nullptr ? nullptr : row.residual + at);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) squares = fmaf(values[load].get(j), values[load].get(j), squares);
    }
    if constexpr (kRows == 1) {
      squares = reduce_block<kThreads / kWarp>(squares, Sum(), reinterpret_cast<float*>(shared));
    } else {
      static_assert(kThreadsOfRow == kWarp, "a row of a warp");
      squares = reduce_warp(squares, Sum());
    }
    const float scale = rsqrtf(squares / static_cast<float>(p.width) + p.eps);
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int at = (load * kThreadsOfRow + thread) * kVector<T>;
      if (at >= p.width) continue;
      const V weight = V::load(row.weight + at);
      V out;
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) out.set(j, values[load].get(j) * scale * weight.get(j));
      out.store(row.out + at);
    }
  }
};

// Any width and alignment: a block per row, which is read twice.
template <class T>
struct RmsNormOfAnyRow {
  using Params = RmsNorm<T>;
  using V = Vector<T, 1>;
  static constexpr int kThreads = 256;
  static constexpr size_t kSharedBytes = sizeof(float) * kThreads / kWarp;

  static ROUNDHOUSE_DEVICE void run(const Params& p, unsigned char* shared) {
    const NormRow<T> row(p, blockIdx.x);
    float squares = 0.0f;
    for (int64_t at = threadIdx.x; at < p.width; at += kThreads) {
      const float value = add_residual(V::load(row.x + at), row.residual == nullptr ? nullptr : row.residual + at).get(0);
      squares = fmaf(value, value, squares);
    }
    squares = reduce_block<kThreads / kWarp>(squares, Sum(), reinterpret_cast<float*>(shared));
    const float scale = rsqrtf(squares / static_cast<float>(p.width) + p.eps);
    const T* source = row.residual == nullptr ? row.x : row.residual;
    for (int64_t at = threadIdx.x; at < p.width; at += kThreads) {
      row.out[at] = from_float<T>(to_float(source[at]) * scale * to_float(row.weight[at]));
    }
  }
};

}  // namespace roundhouse::cuda
