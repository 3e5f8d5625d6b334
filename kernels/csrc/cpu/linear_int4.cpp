// Products of bf16 with weights of int4, with AVX2 alone.
//
// To look up what levels stand for takes longer there than to multiply. So the numbers of a group of x become int16, which
// times a scale of the group are what they were to half of the last of the largest one's 16 bits, and are multiplied with the
// levels themselves. Each group adds to out
//   step * scale * sum(level * number) + zero * scale * sum(number)
// whose sums are exact.
#include "cpu/int8.h"
#include "cpu/linear_pairs.h"

#if defined(ROUNDHOUSE_AVX2)

namespace roundhouse {
namespace {

constexpr int64_t kDigitInputs = 32;

// A group is four tiles, one per digit.
struct Levels : Int16 {
  using Weight = int16_t;
  static constexpr int64_t kPart = 4;
  static constexpr int kRegisters = 2;
};

// The j-th lowest 4 bits of words.
inline __m256i digit(__m256i words, int j) {
  const __m256i shifted = j == 0 ? words : _mm256_srli_epi16(words, 4 * j);
  return j == 3 ? shifted : _mm256_and_si256(shifted, _mm256_set1_epi16(15));
}

// A group of one block. The last one may have fewer digits than four.
struct Group {
  const uint8_t* begin;
  int digits;

  const uint8_t* line(int n) const { return begin + 4 * kBlock + kTileBytes * n; }
  // Those of the first or last eight outputs.
  Vector steps(int half) const { return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs(half), 16))}; }
  Vector zeros(int half) const {
    return {_mm256_castsi256_ps(_mm256_and_si256(pairs(half), _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  __m256i pairs(int half) const { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(begin) + half); }

  // -> [pair of inputs][16 outputs][2].
  template <int kDigits>
  void unpack(int16_t* weight) const {
    constexpr int64_t kPairs = kTileBytes / 4;  // of a digit
    for (int half = 0; half < kHalves; ++half) {
      for (int64_t pair = 0; pair < kPairs; pair += Vector::kWidth) {
        Vector words[Vector::kWidth];
        for (int n = 0; n < Vector::kWidth; ++n) {
          words[n] = Vector::load(reinterpret_cast<const float*>(line(half * Vector::kWidth + n)) + pair);
        }
        transpose(words);
        for (int n = 0; n < Vector::kWidth; ++n) {
          for (int j = 0; j < kDigits; ++j) {
            int16_t* const to = weight + ((j * kPairs + pair + n) * kHalves + half) * Levels::kWidth;
            _mm256_store_si256(reinterpret_cast<__m256i*>(to), digit(Levels::bits(words[n]), j));
          }
        }
      }
    }
    for (int n = 0; n < kBlock; ++n) _mm_prefetch(reinterpret_cast<const char*>(line(n)) + kInt4GroupBytes, _MM_HINT_T0);
  }

  // Eight outputs' sums of level * number.
  template <int kDigits>
  Vector multiply(int eight, const int16_t* x) const {
    Vector sums[Vector::kWidth];
#pragma GCC unroll 8
    for (int n = 0; n < Vector::kWidth; ++n) {
      __m256i sum = _mm256_setzero_si256();
      for (int half = 0; half < 2; ++half) {
        const uint8_t* const from = line(eight * Vector::kWidth + n) + 32 * half;
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        for (int j = 0; j < kDigits; ++j) {
          const __m256i numbers = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + 32 * j + 16 * half));
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(digit(words, j), numbers));
        }
      }
      sums[n].lanes = _mm256_castsi256_ps(sum);
    }
    return add_lanes<Levels>(sums);
  }
};

// Of a group of one row of x: what its numbers are multiplied with, and that times their sum.
struct Scale {
  float scale, total;

  // Adds to eight outputs what a group of theirs gives.
  void add(const Group& group, int half, Vector exact, float* sums) const {
    const Vector offset = multiply_add(group.zeros(half), Vector::all(total), Vector::load(sums));
    multiply_add(Levels::to_floats(exact), group.steps(half) * Vector::all(scale), offset).store(sums);
  }
};

// A group of x [kInt4Group] -> int16 numbers. The scale is NaN if x is not finite.
Scale quantize_group(int16_t* numbers, const bfloat16* x) {
  const float magnitude = largest_magnitude(x, kInt4Group);
  const bool none = magnitude <= 1e-30f;  // below, 32767 / magnitude would be infinite
  const Vector factor = Vector::all(none ? 0.0f : 32767.0f / magnitude);
  __m256i total = _mm256_setzero_si256();
  for (int i = 0; i < kInt4Group; i += 16) {
    const __m256i low = (Vector::load(x + i) * factor).rounded(), high = (Vector::load(x + i + 8) * factor).rounded();
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    _mm256_store_si256(reinterpret_cast<__m256i*>(numbers + i), packed);
    total = _mm256_add_epi32(total, _mm256_madd_epi16(packed, _mm256_set1_epi16(1)));
  }
  const float scale = none ? 0.0f : magnitude * (1.0f / 32767.0f) + (magnitude - magnitude);
  return {scale, scale * Levels::to_floats({_mm256_castsi256_ps(total)}).sum()};
}

// x as it is multiplied: numbers as `parts` says, and behind them scales [group][row].
struct Operand {
  Parts<Levels> parts;
  int16_t* numbers;
  Scale* scales;

  const Scale& scale(int64_t row, int64_t g) const { return scales[g * parts.rows + row]; }
};

Operand quantize(const LinearInt4& p, int64_t groups) {
  int16_t* const numbers = static_cast<int16_t*>(p.workspace);
  const Operand to{{p.rows, groups * kInt4Group}, numbers, reinterpret_cast<Scale*>(numbers + p.rows * groups * kInt4Group)};
  parallel_for(p.rows, p.rows * groups * kInt4Group * 6, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        const bfloat16* from = p.x + row * p.x_stride + g * kInt4Group;
        bfloat16 last[kInt4Group] = {};
        if ((g + 1) * kInt4Group > p.inputs) {
          std::copy(from, p.x + row * p.x_stride + p.inputs, last);
          from = last;
        }
        int16_t* const place = numbers + to.parts.place(row, g * Levels::kPart);
        to.scales[g * p.rows + row] = quantize_group(place, from);
      }
    }
  });
  return to;
}

// The one row of x times all blocks, as many in turn as `multiply_row` (linear_vector.h) takes.
template <class GroupOf, class Finish>
void multiply_one(const Operand& x, int64_t groups, int64_t outputs, const GroupOf& group_of, const Finish& finish) {
  const int64_t blocks = ceil_div(outputs, kBlock);
  parallel_parts(blocks, blocks * groups * kInt4GroupBytes, [&](int64_t number, int64_t total) {
    const int64_t last = blocks * (number + 1) / total;
    for (int64_t block = blocks * number / total; block < last; block += kStreams) {
      const int64_t count = std::min(kStreams, last - block);
      alignas(64) float sums[kStreams * kBlock] = {};
      for (int64_t g = 0; g < groups; ++g) {
        for (int64_t i = 0; i < count; ++i) {
          const Group group = group_of(block + i, g);
          with_constant<Levels::kPart>(group.digits, [&](auto digits) {
            for (int half = 0; half < kHalves; ++half) {
              const Vector exact = group.multiply<decltype(digits)::value>(half, x.numbers + g * kInt4Group);
              x.scale(0, g).add(group, half, exact, sums + i * kBlock + half * Vector::kWidth);
            }
          });
        }
      }
      const int64_t end = std::min((block + count) * kBlock, outputs);
      for (int64_t n = block * kBlock; n < end; n += Vector::kWidth) finish(0, n, Vector::load(sums + n - block * kBlock));
    }
  });
}

}  // namespace

void linear_int4(const LinearInt4& p) {
  const int64_t groups = ceil_div(p.inputs, kInt4Group);
  const Operand x = quantize(p, groups);
  const auto group_of = [&](int64_t block, int64_t g) {
    const int64_t inputs = std::min(kInt4Group, p.inputs - g * kInt4Group);
    return Group{p.weight + (block * groups + g) * kInt4GroupBytes, static_cast<int>(ceil_div(inputs, kDigitInputs))};
  };
  const auto finish = [&](int64_t row, int64_t n, Vector sums) {
    const int count = static_cast<int>(std::min<int64_t>(Vector::kWidth, p.outputs - n));
    store_outputs(p, finish_sums(p, sums, n, count), row, n, count);
  };
  if (p.rows == 1) return multiply_one(x, groups, p.outputs, group_of, finish);
  const auto unpack = [&](int64_t block, int64_t tile, int16_t* weight) {
    const Group group = group_of(block, tile / Levels::kPart);
    with_constant<Levels::kPart>(group.digits, [&](auto digits) { group.unpack<decltype(digits)::value>(weight); });
    return group.digits * (kDigitInputs / 2);
  };
  const auto fold = [&](int64_t row, int64_t block, int64_t tile, int half, Vector exact, float* sums) {
    const int64_t g = tile / Levels::kPart;
    x.scale(row, g).add(group_of(block, g), half, exact, sums);
  };
  multiply_all_pairs(x.parts, p.outputs, x.numbers, unpack, fold, finish);
}

}  // namespace roundhouse

#endif
