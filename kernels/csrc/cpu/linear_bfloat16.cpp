// Products of bf16 with weights of bf16, int8 and int4 in vector registers: numbers become fp32 and so are their sums.
#include "cpu/int4.h"
#include "cpu/int8.h"
#include "cpu/linear_vector.h"

#if !defined(ROUNDHOUSE_AMX)

namespace roundhouse {
namespace {

// What the kinds of weights have in common.
struct Floats {
  using Number = float;
  static constexpr int kWidth = Vector::kWidth;
  static Vector numbers(const float* x) {
    Vector loaded = Vector::load(x);
    asm("" : "+v"(loaded.lanes));  // once: compilers would load it again for each line
    return loaded;
  }
  static Vector add(Vector sum, Vector weights, Vector numbers) { return multiply_add(weights, numbers, sum); }
  static Vector plus(Vector a, Vector b) { return a + b; }
};

// Numbers at even places of two registers' width, then those at odd ones.
struct BFloat16 : Floats {
  using Weight = bfloat16;
  static constexpr int kRegisters = 32 / kWidth;
  static constexpr int64_t kInputs = 32, kPart = 12, kScratch = 1;
  static Vector weights(const bfloat16* line, int i) {
    Vector even, odd;
    Vector::load_even_odd(line + i / 2 * 2 * kWidth, even, odd);
    return i % 2 == 0 ? even : odd;
  }
  // `size` numbers of a row of x as fp32, zero if it has no more than `inputs`.
  static void spread(float* to, const bfloat16* x, int64_t inputs, int64_t size) {
    int64_t i = 0;
    for (; i + 2 * kWidth <= std::min(inputs, size); i += 2 * kWidth) {
      Vector even, odd;
      Vector::load_even_odd(x + i, even, odd);
      even.store(to + i);
      odd.store(to + i + kWidth);
    }
    for (; i < size; i += 2 * kWidth) {
      for (int64_t j = 0; j < 2 * kWidth; ++j) {
        to[i + j % 2 * kWidth + j / 2] = i + j < inputs ? to_float(x[i + j]) : 0.0f;
      }
    }
  }
};

struct Int8 : Floats {
  using Weight = int8_t;
  static constexpr int kRegisters = 64 / kWidth;
  static constexpr int64_t kInputs = 64, kPart = 6, kScratch = 1;
  static Vector weights(const int8_t* line, int i) {
#if defined(ROUNDHOUSE_AVX2)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(line + i * kWidth));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
#else
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + i * kWidth));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
#endif
  }
  static void spread(float* to, const bfloat16* x, int64_t inputs, int64_t size) {
    int64_t i = 0;
    for (; i + kWidth <= std::min(inputs, size); i += kWidth) Vector::load(x + i).store(to + i);
    for (; i < size; ++i) to[i] = i < inputs ? to_float(x[i]) : 0.0f;
  }
};

#if !defined(ROUNDHOUSE_AVX2)

// As bf16 once they are unpacked, in an order that suits that.
struct Int4 : BFloat16 {
  static constexpr int64_t kScratch = kPart * kBlock * kInputs;
  static void spread(float* to, const bfloat16* x, int64_t inputs, int64_t size) {
    for (int64_t i = 0; i < size; i += kInt4Group) {
      if (i + kInt4Group <= inputs) {
        order_int4(to + i, x + i);
      } else {
        bfloat16 last[kInt4Group] = {};
        std::copy(x + i, x + inputs, last);
        order_int4(to + i, last);
      }
    }
  }
};

#endif

template <class Kind, class P, class TilesOf>
void multiply_floats(const P& p, int64_t inputs, const TilesOf& tiles_of) {
  float* const x = static_cast<float*>(p.workspace);
  const Parts<Kind> parts{p.rows, inputs};
  parallel_for(p.rows, p.rows * inputs * 6, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t tile = 0; tile < parts.tiles; tile += Kind::kPart) {
        const int64_t first = tile * Kind::kInputs;
        Kind::spread(x + parts.place(row, tile), p.x + row * p.x_stride + first, p.inputs - first, parts.stride(tile));
      }
    }
  });
  multiply_all(parts, p.outputs, x, tiles_of, [&](int64_t row, int64_t n, Vector sums) {
    const int count = static_cast<int>(std::min<int64_t>(Vector::kWidth, p.outputs - n));
    store_outputs(p, finish_sums(p, sums, n, count), row, n, count);
  });
}

// With weights that lie as they are multiplied.
template <class Kind, class P>
void multiply_tiles(const P& p) {
  const int64_t tiles = ceil_div(p.inputs, Kind::kInputs);
  multiply_floats<Kind>(p, p.inputs, [&](int64_t block, int64_t tile, int64_t, auto*) {
    return p.weight + (block * tiles + tile) * kBlock * Kind::kInputs;
  });
}

}  // namespace

template <>
void linear<bfloat16>(const Linear<bfloat16>& p) {
  multiply_tiles<BFloat16>(p);
}

void linear_w8a16(const LinearW8A16& p) { multiply_tiles<Int8>(p); }

#if !defined(ROUNDHOUSE_AVX2)

void linear_int4(const LinearInt4& p) {
  constexpr int64_t kTiles = kInt4Group / Int4::kInputs;  // of a group
  const int64_t groups = ceil_div(p.inputs, kInt4Group);
  multiply_floats<Int4>(p, groups * kInt4Group, [&](int64_t block, int64_t tile, int64_t count, bfloat16* scratch) {
    const uint8_t* group = p.weight + (block * groups + tile / kTiles) * kInt4GroupBytes;
    for (int64_t t = 0; t < count; t += kTiles, group += kInt4GroupBytes) {
      unpack_int4(scratch + t * kBlock * Int4::kInputs, group);
    }
    return static_cast<const bfloat16*>(scratch);
  });
}

#endif

}  // namespace roundhouse

#endif
