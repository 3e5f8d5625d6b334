// Launching a kernel body: on a CUDA stream, or in the emulator.
//
// A body is a struct with `Params` (plain data), `kThreads` (of a block), `kSharedBytes` and the device function
// `run(const Params&, unsigned char* shared)`. Nothing is allocated and nothing waits, so a launch can be captured.
#pragma once

#include <stdexcept>
#include <string>

#include "roundhouse/platform.cuh"

namespace roundhouse::cuda {

// What a block can have on sm_80; later GPUs have more.
constexpr size_t kMostSharedBytes = 163 * 1024;

#if defined(ROUNDHOUSE_EMULATOR)

template <class Body>
void launch(dim3 blocks, const typename Body::Params& params, Stream) {
  static_assert(Body::kSharedBytes <= kMostSharedBytes, "a block has less shared memory");
  emulator::run(
      blocks, Body::kThreads, Body::kSharedBytes,
      [](const void* p, unsigned char* shared) { Body::run(*static_cast<const typename Body::Params*>(p), shared); }, &params);
}

#else

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// Of so many threads that a multiprocessor has room for one block at least; else the compiler spills to fit in more. The
// numbers are in the name for kernels/resources.py.
template <class Body, int kThreads, size_t kSharedBytes>
__global__ __launch_bounds__(kThreads, 1) void kernel(const __grid_constant__ typename Body::Params params) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Body::run(params, shared);
}

template <class Body>
void launch(dim3 blocks, const typename Body::Params& params, Stream stream) {
  static_assert(Body::kSharedBytes <= kMostSharedBytes, "a block has less shared memory");
  constexpr auto run = kernel<Body, Body::kThreads, Body::kSharedBytes>;
  int device = 0;
  check(cudaGetDevice(&device));
  if (device != stream.device) check(cudaSetDevice(stream.device));
  // More than a block has without asking. Asking is cheap, and is no part of a graph.
  if constexpr (Body::kSharedBytes > 48 * 1024) {
    check(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Body::kSharedBytes)));
  }
  run<<<blocks, Body::kThreads, Body::kSharedBytes, static_cast<cudaStream_t>(stream.handle)>>>(params);
  const cudaError_t error = cudaGetLastError();
  if (device != stream.device) check(cudaSetDevice(device));
  check(error);
}

#endif

}  // namespace roundhouse::cuda
