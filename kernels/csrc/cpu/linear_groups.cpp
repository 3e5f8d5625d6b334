// Products with weights that have a scale per group of inputs, in vector registers on every instruction set.
//
// Weights of 256 inputs of a block become fp32 in the first-level cache, each rounded once, and are multiplied with all rows.
#include "cpu/int8.h"
#include "cpu/linear_vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int64_t kLine = 128;        // inputs
constexpr int64_t kTileInputs = 16;   // of a tile of fp32
constexpr int64_t kMostGroups = 16;   // of a record

struct Unpacked {
  using Weight = float;
  using Number = float;
  static constexpr int kWidth = Vector::kWidth;
  static constexpr int kRegisters = static_cast<int>(kTileInputs) / kWidth;
  static constexpr int64_t kInputs = kTileInputs, kPart = 16, kScratch = kPart * kBlock * kInputs;
  static Vector numbers(const float* x) {
    Vector loaded = Vector::load(x);
    asm("" : "+v"(loaded.lanes));  // once: compilers would load it again for each line
    return loaded;
  }
  static Vector weights(const float* line, int i) { return Vector::load(line + i * kWidth); }
  static Vector add(Vector sum, Vector weights, Vector numbers) { return multiply_add(weights, numbers, sum); }
  static Vector plus(Vector a, Vector b) { return a + b; }
};

#if defined(ROUNDHOUSE_AVX2)

inline Vector from_half(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline __m256i from_int8(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Vector from_uint8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline Vector signed_numbers(const uint8_t* p) { return {_mm256_cvtepi32_ps(from_int8(p))}; }

// The j-th lowest four bits of a register's width of words.
inline __m256i digits(const uint8_t* words, int j) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words)));
  return _mm256_and_si256(_mm256_srli_epi32(wide, 4 * j), _mm256_set1_epi32(15));
}

struct Table {
  __m256 low, high;
  explicit Table(const float* numbers) : low(_mm256_loadu_ps(numbers)), high(_mm256_loadu_ps(numbers + 8)) {}
  Vector operator()(__m256i places) const {
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));  // the fourth bit as a sign
    return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, places), _mm256_permutevar8x32_ps(high, places), upper)};
  }
};

struct Themselves {
  Vector operator()(__m256i numbers) const { return {_mm256_cvtepi32_ps(numbers)}; }
};

#else

inline Vector from_half(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline __m128i bytes(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline Vector from_uint8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(p)))}; }
inline Vector signed_numbers(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(p)))}; }

// The j-th lowest four bits of a register's width of words.
inline __m512i digits(const uint8_t* words, int j) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  return _mm512_and_si512(_mm512_srl_epi32(wide, _mm_cvtsi32_si128(4 * j)), _mm512_set1_epi32(15));
}

struct Table {
  __m512 all;
  explicit Table(const float* numbers) : all(_mm512_loadu_ps(numbers)) {}
  Vector operator()(__m512i places) const { return {_mm512_permutexvar_ps(places, all)}; }
};

struct Themselves {
  Vector operator()(__m512i numbers) const { return {_mm512_cvtepi32_ps(numbers)}; }
};

#endif

inline Vector load_scales(const uint8_t* p, ScaleType type) {
  switch (type) {
    case ScaleType::kFloat32: return Vector::load(reinterpret_cast<const float*>(p));
    case ScaleType::kFloat16: return from_half(p);
    case ScaleType::kBfloat16: return Vector::load(reinterpret_cast<const bfloat16*>(p));
    case ScaleType::kInt8: return signed_numbers(p);
    default: return from_uint8(p);
  }
}

// What numbers of a record's groups are multiplied with, and what is added then, [group][16 outputs].
struct Scales {
  alignas(64) float factors[kMostGroups * kBlock];
  alignas(64) float added[kMostGroups * kBlock];

  Scales(const GroupLayout& layout, const uint8_t* record) {
    const int64_t groups = layout.span() / layout.group, size = layout.scale_bytes();
    const uint8_t* const scales = record + 2 * kBlock * layout.steps;
    const uint8_t* const offsets = scales + groups * kBlock * size;
    const uint8_t* const zeros = offsets + (layout.offsets ? groups * kBlock * size : 0);
    for (int64_t n = 0; n < kBlock; n += kWidth) {
      const Vector step = layout.steps > 0 ? from_half(record + 2 * n) : Vector::all(1);
      const Vector other = layout.steps > 1 ? from_half(record + 2 * (kBlock + n)) : step;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t at = g * kBlock + n;
        const Vector factor = step * load_scales(scales + at * size, layout.type);
        Vector offset = Vector::zero();
        if (layout.offsets) offset = other * load_scales(offsets + at * size, layout.type);
        const Vector zero = layout.zeros ? signed_numbers(zeros + at) : Vector::all(static_cast<float>(layout.zero));
        (offset - factor * zero).store(added + at);
        factor.store(factors + at);
      }
    }
  }
};

// `count` tiles of fp32, [16 outputs][16 inputs] each, of a record.
template <class Values>
void unpack(const GroupLayout& layout, const uint8_t* record, int64_t count, const Values& values, float* to) {
  const Scales scales(layout, record);
  const uint8_t* const numbers = record + layout.header_bytes();
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t line = tile * kTileInputs / kLine, within = tile % (kLine / kTileInputs);
    const int64_t group = tile * kTileInputs / layout.group * kBlock;
    const uint8_t* const begin = numbers + line * kBlock * kLine * layout.bits / 8;
    for (int64_t n = 0; n < kBlock; ++n) {
      const Vector factor = Vector::all(scales.factors[group + n]), added = Vector::all(scales.added[group + n]);
      float* const weights = to + (tile * kBlock + n) * kTileInputs;
      for (int64_t i = 0; i < kTileInputs; i += kWidth) {
        Vector number;
        if (layout.bits == 4) {
          number = values(digits(begin + 64 * n + 32 * (within % 2) + 2 * i, static_cast<int>(within / 2)));
        } else {
          number = signed_numbers(begin + (within / 4 * kBlock + n) * 64 + within % 4 * kTileInputs + i);
        }
        multiply_add(number, factor, added).store(weights + i);
      }
    }
  }
  // The next record.
  for (int64_t i = 0; i < layout.record_bytes(); i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(record) + layout.record_bytes() + i, _MM_HINT_T0);
  }
}

// `size` numbers of a row of x as fp32, zero if it has no more than `inputs`.
template <class T>
void spread(float* to, const T* x, int64_t inputs, int64_t size) {
  int64_t i = 0;
  for (; i + kWidth <= std::min(inputs, size); i += kWidth) Vector::load(x + i).store(to + i);
  for (; i < size; ++i) to[i] = i < inputs ? to_float(x[i]) : 0.0f;
}

template <class T, class Values>
void multiply(const LinearGroups<T>& p, const Values& values) {
  const GroupLayout& layout = p.layout;
  const int64_t records = ceil_div(p.inputs, layout.span()), of_record = layout.span() / kTileInputs;
  float* const x = static_cast<float*>(p.workspace);
  const Parts<Unpacked> parts{p.rows, p.inputs};
  parallel_for(p.rows, p.rows * p.inputs * 6, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t tile = 0; tile < parts.tiles; tile += Unpacked::kPart) {
        const int64_t first = tile * kTileInputs;
        spread(x + parts.place(row, tile), p.x + row * p.x_stride + first, p.inputs - first, parts.stride(tile));
      }
    }
  });
  const auto tiles_of = [&](int64_t block, int64_t tile, int64_t count, float* scratch) {
    const uint8_t* record = p.weight + (block * records + tile / of_record) * layout.record_bytes();
    for (int64_t t = 0; t < count; t += of_record, record += layout.record_bytes()) {
      unpack(layout, record, std::min(of_record, count - t), values, scratch + t * kBlock * kTileInputs);
    }
    return static_cast<const float*>(scratch);
  };
  multiply_all(parts, p.outputs, x, tiles_of, [&](int64_t row, int64_t n, Vector sums) {
    const int count = static_cast<int>(std::min<int64_t>(kWidth, p.outputs - n));
    if (count > 0) store_outputs(p, finish_sums(p, sums, n, count), row, n, count);
  });
}

}  // namespace

template <class T>
void linear_groups(const LinearGroups<T>& p) {
  if (p.table != nullptr) return multiply(p, Table(p.table));
  multiply(p, Themselves());
}

template void linear_groups(const LinearGroups<float>& p);
template void linear_groups(const LinearGroups<bfloat16>& p);

}  // namespace roundhouse
