// Products of int8 in vector registers. Sums of integers are exact in any order.
#include "cpu/int8.h"
#include "cpu/linear_pairs.h"
#include "cpu/linear_vector.h"

#if !defined(ROUNDHOUSE_AMX)

namespace roundhouse {
namespace {

#if defined(ROUNDHOUSE_AVX2)

// x as int16: products of two bytes are summed without saturation only so.
struct Int8 : Int16 {
  using Weight = int8_t;
  static constexpr int64_t kPart = 8, kScratch = 1;
  static constexpr int kRegisters = 4, kDigits = 1, kOffset = 0;

  static void store_numbers(int16_t* to, int64_t, __m256i numbers) {
    const __m128i low = _mm256_castsi256_si128(numbers), high = _mm256_extracti128_si256(numbers, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(low, high));
  }
  static Vector weights(const int8_t* line, int i) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + i * kWidth));
    return {_mm256_castsi256_ps(_mm256_cvtepi8_epi16(bytes))};
  }
  static Vector to_floats(Vector sums, const int32_t*, int) { return Int16::to_floats(sums); }
};

// Eight lines of a tile, half of each -> eight outputs of sixteen pairs of inputs.
void unpack_pairs(const int8_t* lines, int16_t* weight) {
  Vector units[Vector::kWidth];  // of two pairs
  for (int n = 0; n < Vector::kWidth; ++n) units[n] = Vector::load(reinterpret_cast<const float*>(lines + n * kTileBytes));
  transpose(units);
  // Bytes as the upper halves of words, which a shift extends.
  const __m256i first = _mm256_setr_epi32(0x01800080, 0x05800480, 0x09800880, 0x0d800c80,  //
                                          0x01800080, 0x05800480, 0x09800880, 0x0d800c80);
  const __m256i second = _mm256_add_epi8(first, _mm256_set1_epi32(0x02000200));
  for (int u = 0; u < Vector::kWidth; ++u, weight += 4 * kBlock) {
    const __m256i unit = Int16::bits(units[u]);
    const auto store = [&](int16_t* to, __m256i places) {
      const __m256i words = _mm256_srai_epi16(_mm256_shuffle_epi8(unit, places), 8);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to), words);
    };
    store(weight, first);
    store(weight + 2 * kBlock, second);
  }
}

#else

struct Int8 {
  using Weight = int8_t;
  static constexpr int64_t kPart = 8, kScratch = 1;
  // Digits of x as uint8, 128 too large, which VPDPBUSD asks for; the sums are put right with those of the weights.
  using Number = uint8_t;
  static constexpr int kWidth = 64, kRegisters = 1, kDigits = kInt8Digits, kMostRows = 4, kOffset = 128;

  // The high digits to `to`, the low ones `stride` numbers further.
  static void store_numbers(uint8_t* to, int64_t stride, __m512i numbers) {
    const Digits digits(numbers);
    const auto store = [](uint8_t* place, __m512i digit) {
      const __m512i shifted = _mm512_add_epi32(digit, _mm512_set1_epi32(kOffset));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(place), _mm512_cvtepi32_epi8(shifted));
    };
    store(to, digits.high);
    store(to + stride, digits.low);
  }
  static Vector from_digits(Vector high, Vector low) {
    return {_mm512_castsi512_ps(roundhouse::from_digits(bits(high), bits(low)))};
  }
  static Vector weights(const int8_t* line, int) { return {_mm512_castsi512_ps(_mm512_loadu_si512(line))}; }
  static Vector numbers(const uint8_t* x) { return {_mm512_castsi512_ps(_mm512_loadu_si512(x))}; }
  static Vector add(Vector sum, Vector weights, Vector numbers) {
    return {_mm512_castsi512_ps(_mm512_dpbusd_epi32(bits(sum), bits(numbers), bits(weights)))};
  }
  static __m512i bits(Vector x) { return _mm512_castps_si512(x.lanes); }
  static Vector plus(Vector a, Vector b) { return {_mm512_castsi512_ps(_mm512_add_epi32(bits(a), bits(b)))}; }
  // `totals`: of the weights of `count` outputs, to each of which both digits' offsets have been added that often.
  static Vector to_floats(Vector sums, const int32_t* totals, int count) {
    const __m512i of_weights = _mm512_maskz_loadu_epi32(Vector::mask(count), totals);
    const __m512i added = _mm512_mullo_epi32(of_weights, _mm512_set1_epi32(128 * kOffset + kOffset));
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(bits(sums), added))};
  }
};

#endif

}  // namespace

void linear_int8(const LinearInt8& p) {
  constexpr int kWidth = Vector::kWidth;
  const int64_t tiles = ceil_div(p.inputs, kTileBytes);
  const Parts<Int8> parts{p.rows * Int8::kDigits, p.inputs};
  float* const scales = static_cast<float*>(p.workspace);
  Int8::Number* const x = reinterpret_cast<Int8::Number*>(scales + ceil_div(p.rows, kBlock) * kBlock);
  parallel_for(p.rows, p.rows * tiles * kTileBytes * 6, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t last = (tiles - 1) / Int8::kPart * Int8::kPart;
      int64_t first = 0, next = 0, stride = parts.stride(last);  // of the part that `to` is, `next` of the one behind it
      Int8::Number* to = nullptr;
      for (int64_t digit = 0; digit < Int8::kDigits; ++digit) {
        to = x + parts.place(row * Int8::kDigits + digit, last);
        std::fill(to + (p.inputs - last * kTileBytes) / kWidth * kWidth, to + stride, static_cast<Int8::Number>(Int8::kOffset));
      }
      scales[row] = quantize_row(p.x + row * p.x_stride, p.inputs, static_cast<float>(p.limit), [&](int64_t at, auto values) {
        if (at == next) {
          to = x + parts.place(row * Int8::kDigits, at / kTileBytes);
          stride = parts.stride(at / kTileBytes);
          first = at;
          next = at + Int8::kPart * kTileBytes;
        }
        Int8::store_numbers(to + at - first, stride, values);
      });
    }
  });
  const auto tiles_of = [&](int64_t block, int64_t tile, int64_t, auto*) {
    return p.weight + (block * tiles + tile) * kBlock * kTileBytes;
  };
  const auto finish = [&](int64_t row, int64_t n, Vector sums) {
    const int count = static_cast<int>(std::min<int64_t>(kWidth, p.outputs - n));
    const Vector exact = Int8::to_floats(sums, p.totals + n, count);
    const bfloat16* const bias = p.bias == nullptr ? nullptr : p.bias + n;
    store_outputs(p, scale_sums(exact, scales[row], p.scales + n, bias, count), row, n, count);
  };
#if defined(ROUNDHOUSE_AVX2)
  if (p.rows >= kManyRows) {
    const auto unpack = [&](int64_t block, int64_t tile, int16_t* weight) {
      constexpr int64_t kPairs = kTileBytes / 4;  // of half a tile
      const int64_t count = parts.count(tile), halves = parts.halves(tile, count);
      const int8_t* from = tiles_of(block, tile, count, weight);
      for (int64_t half = 0; half < halves; ++half, from += half % 2 == 0 ? kBlock * kTileBytes : 0) {
        for (int eight = 0; eight < kHalves; ++eight) {
          const int8_t* const lines = from + eight * Vector::kWidth * kTileBytes + half % 2 * (kTileBytes / 2);
          unpack_pairs(lines, weight + half * kPairs * 2 * kBlock + eight * 2 * Vector::kWidth);
          for (int i = 0; i < Vector::kWidth / 2; ++i) {
            const int8_t* const line = from + ((half % 2 * kHalves + eight) * Vector::kWidth / 2 + i) * kTileBytes;
            _mm_prefetch(reinterpret_cast<const char*>(line) + count * kBlock * kTileBytes, _MM_HINT_T1);
          }
        }
      }
      return halves * kPairs;
    };
    multiply_all_pairs(parts, p.outputs, x, unpack, [](int64_t, int64_t, int64_t, int, Vector exact, float* sums) {
      Int16::plus(Vector::load(sums), exact).store(sums);
    }, finish);
    return;
  }
#endif
  multiply_all(parts, p.outputs, x, tiles_of, finish);
}

}  // namespace roundhouse

#endif
