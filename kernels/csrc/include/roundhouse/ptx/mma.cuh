// Products of small matrices by a warp (mma.sync), accumulated in fp32 or int32.
//
// Lane l has g = l / 4 and t = l % 4. Of the sum C [16, 8] it holds rows g (c[0], c[1]) and g + 8 (c[2], c[3]), columns
// 2 t and 2 t + 1.
#pragma once

#include "roundhouse/ptx/convert.cuh"

namespace roundhouse::cuda::ptx {

#if defined(ROUNDHOUSE_EMULATOR)

// C += A B for A [16, kDepth] and B [kDepth, 8], whose registers `unpack(register, i)` takes apart into kPer values.
template <int kDepth, class T, class Unpack>
void emulate_mma(T (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Unpack) {
  struct Lane {
    T* c;
    const uint32_t *a, *b;
  } own{c, a, b};
  emulator::together(kAllLanes, &own, [](void* const* all, uint32_t) {
    constexpr int kPer = kDepth / 8;
    T left[16][kDepth], right[kDepth][8];
    for (int l = 0; l < kWarp; ++l) {
      const Lane& lane = *static_cast<Lane*>(all[l]);
      const int g = l / 4, t = l % 4;
      for (int i = 0; i < kPer; ++i) {
        const int k = t * kPer + i;
        left[g][k] = Unpack()(lane.a[0], i);
        left[g + 8][k] = Unpack()(lane.a[1], i);
        left[g][k + kDepth / 2] = Unpack()(lane.a[2], i);
        left[g + 8][k + kDepth / 2] = Unpack()(lane.a[3], i);
        right[k][g] = Unpack()(lane.b[0], i);
        right[k + kDepth / 2][g] = Unpack()(lane.b[1], i);
      }
    }
    for (int l = 0; l < kWarp; ++l) {
      for (int i = 0; i < 4; ++i) {
        const int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
        T sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += left[row][k] * right[k][column];
        static_cast<Lane*>(all[l])->c[i] += sum;
      }
    }
  });
}

#endif

// A [16, 16] has bf16 pairs of columns 2 t and 2 t + 1 in a[0] (row g) and a[1] (row g + 8), of columns 8 more in a[2]
// and a[3]. B [16, 8] has those of rows 2 t, 2 t + 1 in b[0] and 8 more in b[1], column g.
ROUNDHOUSE_DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(ROUNDHOUSE_EMULATOR)
  struct Unpack {
    float operator()(uint32_t pair, int i) const { return i == 0 ? low_bf16(pair) : high_bf16(pair); }
  };
  emulate_mma<16>(c, a, b, Unpack());
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// A [16, 32] has four int8 of columns 4 t to 4 t + 3 in a[0] (row g) and a[1] (row g + 8), of columns 16 more in a[2] and
// a[3]. B [32, 8] has those of rows 4 t to 4 t + 3 in b[0] and 16 more in b[1], column g.
ROUNDHOUSE_DEVICE void mma_int8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(ROUNDHOUSE_EMULATOR)
  struct Unpack {
    int32_t operator()(uint32_t four, int i) const { return static_cast<int8_t>(four >> (8 * i)); }
  };
  emulate_mma<32>(c, a, b, Unpack());
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace roundhouse::cuda::ptx
