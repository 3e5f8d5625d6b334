// Products of bf16 with weights of int4, with AVX2 alone.
//
// To look up what levels stand for takes longer there than to multiply. So the numbers of a group of x become int16, which
// times a scale of the group are what they were to half of the last of the largest one's 16 bits, and are multiplied with the
// levels themselves. Each group adds to out
//   step * scale * sum(level * number) + zero * scale * sum(number)
// whose sums are exact.
#include "cpu/int16.h"
#include "cpu/int8.h"
#include "cpu/linear_vector.h"

#if defined(ROUNDHOUSE_AVX2)

namespace roundhouse {
namespace {

constexpr int kHalves = kBlock / Vector::kWidth;  // registers of a block's outputs

// A group, once its levels are int16, is four tiles.
struct Levels : Int16 {
  using Weight = int16_t;
  static constexpr int64_t kInputs = 32, kPart = kInt4Group / kInputs;
  static constexpr int kRegisters = 2;
  static Vector weights(const int16_t* line, int i) {
    return {_mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(line + i * kWidth)))};
  }
};

// Half of an output's words of 16 bits -> 16 levels from each of their lowest digits.
template <int kDigits>
inline void read_levels(const uint8_t* words, __m256i (&levels)[kDigits]) {
  const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), mask = _mm256_set1_epi16(15);
  for (int j = 0; j < kDigits; ++j) {
    const __m256i shifted = j == 0 ? all : _mm256_srli_epi16(all, 4 * j);
    levels[j] = j == 3 ? shifted : _mm256_and_si256(shifted, mask);
  }
}

// A group of one block. The last one may have fewer digits than four, a digit being 32 inputs.
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

  template <int kDigits>
  void unpack(int16_t* tiles) const {
    for (int n = 0; n < kBlock; ++n) {
      _mm_prefetch(reinterpret_cast<const char*>(line(n)) + 2 * kInt4GroupBytes, _MM_HINT_T0);
      for (int half = 0; half < 2; ++half) {
        __m256i levels[kDigits];
        read_levels(line(n) + 32 * half, levels);
        for (int j = 0; j < kDigits; ++j) {
          int16_t* const to = tiles + (j * kBlock + n) * Levels::kInputs + 16 * half;
          _mm256_store_si256(reinterpret_cast<__m256i*>(to), levels[j]);
        }
      }
    }
  }

  // Eight outputs' sums of level * number.
  template <int kDigits>
  Vector multiply(int eight, const int16_t* x) const {
    Vector sums[Vector::kWidth];
#pragma GCC unroll 8
    for (int n = 0; n < Vector::kWidth; ++n) {
      __m256i sum = _mm256_setzero_si256();
      for (int half = 0; half < 2; ++half) {
        __m256i levels[kDigits];
        read_levels(line(eight * Vector::kWidth + n) + 32 * half, levels);
        for (int j = 0; j < kDigits; ++j) {
          const __m256i numbers = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + 32 * j + 16 * half));
          sum = _mm256_add_epi32(sum, _mm256_madd_epi16(levels[j], numbers));
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

  const int16_t* group(int64_t row, int64_t g) const { return numbers + parts.place(row, g * Levels::kPart); }
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

// Rows [begin, end) of x times one block. sums [rows][kBlock].
template <class GroupOf>
void multiply_rows(const Operand& x, int64_t begin, int64_t end, int64_t groups, const GroupOf& group_of, float* sums) {
  alignas(64) int16_t tiles[kBlock * kInt4Group];
  alignas(64) Vector exact[kRows * kBlock];
  const int64_t parts = ceil_div(end - begin, kRows);
  for (int64_t g = 0; g < groups; ++g) {
    const Group group = group_of(g);
    with_constant<Levels::kPart>(group.digits, [&](auto digits) { group.template unpack<decltype(digits)::value>(tiles); });
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = begin + (end - begin) * part / parts, last = begin + (end - begin) * (part + 1) / parts;
      const int16_t* const numbers = x.group(first, g);
      with_constant<kRows>(last - first, [&](auto of_part) {
        constexpr int kCount = decltype(of_part)::value;
        multiply_block<Levels, kCount, false>(tiles, numbers, kInt4Group, 2 * group.digits, nullptr, true, exact);
      });
      for (int64_t row = first; row < last; ++row) {
        for (int half = 0; half < kHalves; ++half) {
          const Vector eight = add_lanes<Levels>(exact + (row - first) * kBlock + half * Vector::kWidth);
          x.scale(row, g).add(group, half, eight, sums + (row - begin) * kBlock + half * Vector::kWidth);
        }
      }
    }
  }
}

}  // namespace

void linear_int4(const LinearInt4& p) {
  const int64_t groups = ceil_div(p.inputs, kInt4Group), blocks = ceil_div(p.outputs, kBlock), rows = p.rows;
  const Operand x = quantize(p, groups);
  const int64_t row_bytes = groups * kInt4Group * static_cast<int64_t>(sizeof(int16_t));
  const int64_t chunk = std::max<int64_t>(kWaitingRows, kCachedBytes / row_bytes / kWaitingRows * kWaitingRows);
  parallel_parts(blocks, blocks * groups * kInt4GroupBytes * ceil_div(rows, kRows), [&](int64_t number, int64_t total) {
    const int64_t first = blocks * number / total, last = blocks * (number + 1) / total;
    alignas(64) float sums[kWaitingRows * kBlock];
    const auto group = [&](int64_t block, int64_t g) {
      const int64_t inputs = std::min(kInt4Group, p.inputs - g * kInt4Group);
      return Group{p.weight + (block * groups + g) * kInt4GroupBytes, static_cast<int>(ceil_div(inputs, Levels::kInputs))};
    };
    const auto finish = [&](int64_t row, int64_t block, const float* of_row) {
      const int64_t begin = block * kBlock, end = std::min(begin + kBlock, p.outputs);
      for (int64_t n = begin; n < end; n += Vector::kWidth) {
        const int count = static_cast<int>(std::min<int64_t>(Vector::kWidth, p.outputs - n));
        finish_sums(p, Vector::load(of_row + n - begin), n, count).store(p.out + row * p.outputs + n, count);
      }
    };
    if (rows == 1) {
      for (int64_t block = first; block < last; block += kStreams) {
        const int64_t count = std::min(kStreams, last - block);
        std::fill(sums, sums + count * kBlock, 0.0f);
        for (int64_t g = 0; g < groups; ++g) {
          for (int64_t i = 0; i < count; ++i) {
            const Group of_block = group(block + i, g);
            with_constant<Levels::kPart>(of_block.digits, [&](auto digits) {
              for (int half = 0; half < kHalves; ++half) {
                const Vector exact = of_block.multiply<decltype(digits)::value>(half, x.group(0, g));
                x.scale(0, g).add(of_block, half, exact, sums + i * kBlock + half * Vector::kWidth);
              }
            });
          }
        }
        for (int64_t i = 0; i < count; ++i) finish(0, block + i, sums + i * kBlock);
      }
      return;
    }
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t end = std::min(rows, begin + chunk);
      for (int64_t block = first; block < last; ++block) {
        for (int64_t row = begin; row < end; row += kWaitingRows) {
          const int64_t next = std::min(end, row + kWaitingRows);
          std::fill(sums, sums + (next - row) * kBlock, 0.0f);
          multiply_rows(x, row, next, groups, [&](int64_t g) { return group(block, g); }, sums);
          for (int64_t i = row; i < next; ++i) finish(i, block, sums + (i - row) * kBlock);
        }
      }
    }
  });
}

}  // namespace roundhouse

#endif
