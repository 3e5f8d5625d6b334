// The threads that share the work of an op, made for many small ops behind each other with little in between.
//
// Work is cut into parts. Whoever calls does parts itself, and threads that are awake take others; one that sleeps, or
// that the system has taken off its core, is missed by nobody: the others do its parts. A thread that finds nothing to
// do looks out for more for a while (kLookout), which is longer than what lies between two ops of a step, and sleeps
// then, so that engines that share a machine's cores do not spend them on waiting. OpenMP's threads either sleep at once,
// and take longer to wake than most ops last, or spin on, and hold up whoever else has work for the core.
#pragma once

#include <cstdint>

namespace roundhouse {

// Calls run(body, part, parts) for each part in [0, parts), on up to `parts` threads at once, and returns when all are
// done. Called by several threads at once, or from within a part, all parts are run by the caller.
void run_parts(int64_t parts, void (*run)(const void* body, int64_t part, int64_t parts), const void* body);

}  // namespace roundhouse
