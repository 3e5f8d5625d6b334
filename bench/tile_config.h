// Included ahead of every C++ file when llama.cpp is compiled (see bench/peers.toml).
//
// gcc 12 declares only the first 8 of the 64 bytes that `_tile_loadconfig` reads, so that stores to the rest of a tile
// configuration on the stack may be removed; AMX instructions then end in SIGILL. The barrier keeps all of them.
#pragma once

#if defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config)                                \
  do {                                                          \
    __asm__ volatile("" : : "r"(config) : "memory");            \
    _tile_loadconfig(config);                                   \
  } while (0)
#endif
