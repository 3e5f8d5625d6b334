// Runs CUDA device code on the CPU, so that its logic is tested where no GPU is.
//
// Every CUDA thread is a fiber: it runs until it has to wait for others, at a barrier or in what a warp does together
// (a shuffle, ldmatrix, mma), and the last one to arrive does the work. The blocks of a grid run one after another.
//
// What makes faults visible: shared memory starts as NaN and is fenced by guard bytes; the order of threads, warps and
// blocks, how far one warp runs ahead of the others, and when an asynchronous copy arrives, all follow from a seed. A
// correct kernel gives the same bits for every seed. A thread that waits for ever is an error, not a hang.
// What it cannot show: speed, bank conflicts, and rounding that differs on the device.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace roundhouse::emulator {

// Of the running thread.
struct Position {
  uint3 thread, block;
  dim3 threads, blocks;
  unsigned lane, warp;
};

const Position& position();

// __syncthreads. Stricter than a GPU: every thread of the block must come, also those that have returned.
void barrier();

// Waits until all lanes of `mask` have called it, then runs `work` once with what each of them passed, by lane.
void together(uint32_t mask, void* argument, void (*work)(void* const* arguments, uint32_t mask));

// An asynchronous copy to shared memory: `bytes` of `source`, then zeros up to `size`. It arrives at the latest when its
// thread waits for its group, and at the earliest at once.
void copy_async(void* destination, const void* source, int size, int bytes);
void commit_copies();
// Until at most `pending` of the groups that were committed last are under way.
void wait_for_copies(int pending);

// Runs body(argument, shared) on every thread of a grid.
//
// Throws std::runtime_error when threads wait for ever, or when memory beyond the shared memory asked for was written.
void run(dim3 blocks, unsigned threads, size_t shared_bytes, void (*body)(const void* argument, unsigned char* shared),
         const void* argument);

// What the schedule of the next launches follows from. With 0 the threads advance in step and copies arrive as late as
// they may.
void set_seed(uint64_t seed);

}  // namespace roundhouse::emulator
