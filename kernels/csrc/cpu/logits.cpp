#include "cpu/logits.h"

#include <cmath>
#include <limits>

#include "cpu/exp.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The bits of minus infinity.
uint32_t no_chance(float) { return 0xff800000u; }
uint16_t no_chance(bfloat16) { return 0xff80u; }

template <class T>
float maximum(const T* row, int64_t count) {
  // Four at a time: one after the other each would wait for the one before. Where x is not a number, max keeps the rest.
  Vector most[4] = {Vector::all(-kInfinity), Vector::all(-kInfinity), Vector::all(-kInfinity), Vector::all(-kInfinity)};
  int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    for (int j = 0; j < 4; ++j) most[j] = max(Vector::load(row + i + j * kWidth), most[j]);
  }
  float found = max(max(most[0], most[1]), max(most[2], most[3])).max();
  for (; i < count; ++i) found = to_float(row[i]) > found ? to_float(row[i]) : found;
  return found;
}

template <class Word>
void mask_row(Word* row, const uint32_t* bits, int64_t vocabulary, Word never) {
  for (int64_t i = 0; i < vocabulary; i += 32) {
    const uint32_t word = bits[i / 32];
    if (word == 0xffffffffu) continue;
    const int64_t count = std::min<int64_t>(32, vocabulary - i);
    for (int64_t j = 0; j < count; ++j) row[i + j] = word >> j & 1 ? row[i + j] : never;
  }
}

}  // namespace

template <class T>
int64_t first_maximum(const T* row, int64_t count) {
  const float most = maximum(row, count);
  constexpr int64_t kBlock = 256;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t end = std::min(count, i + kBlock);
    if (maximum(row + i, end - i) != most) continue;
    for (int64_t j = i; j < end; ++j) {
      if (to_float(row[j]) == most) return j;
    }
  }
  return 0;
}

template <class T>
void argmax(int64_t* out, const T* x, int64_t rows, int64_t count) {
  parallel_for(rows, rows * count * static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = first_maximum(x + i * count, count);
  });
}

template <class T>
void apply_token_bitmask(const TokenBitmask<T>& p) {
  using Word = decltype(no_chance(T{}));
  parallel_for(p.count, p.count * p.vocabulary * static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = p.logits + (p.rows == nullptr ? i : p.rows[i]) * p.vocabulary;
      mask_row(reinterpret_cast<Word*>(row), p.bits + i * p.words, p.vocabulary, no_chance(T{}));
    }
  });
}

void apply_penalties(const TokenPenalties& p) {
  for (int64_t i = 0; i < p.vocabulary; ++i) {
    const float x = p.logits[i], penalised = x > 0.0f ? x / p.repetition : x * p.repetition;
    const float repeated = p.seen[i] ? penalised : x;
    const float counted = std::fma(-p.frequency, p.counts[i], repeated);
    p.logits[i] = counted - (p.counts[i] > 0.0f ? p.presence : 0.0f);
  }
}

template <class T>
void log_sum_exp(double* out, const T* x, int64_t rows, int64_t count) {
  parallel_for(rows, 2 * rows * count * static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* numbers = x + row * count;
      const float largest = maximum(numbers, count);
      const Vector most = Vector::all(largest);
      double sum = 0;
      // In fp32 for a few registers, which leaves an error of some 1e-7, and then in fp64.
      constexpr int64_t kBlock = 16 * kWidth;
      for (int64_t i = 0; i < count; i += kBlock) {
        const int64_t last = std::min(count, i + kBlock);
        Vector sums = Vector::zero();
        int64_t j = i;
        for (; j + kWidth <= last; j += kWidth) sums = sums + exp(Vector::load(numbers + j) - most);
        sum += sums.sum();
        if (j < last) {
          float rest[kWidth];
          exp(Vector::load(numbers + j, static_cast<int>(last - j)) - most).store(rest);
          for (int64_t k = 0; k < last - j; ++k) sum += rest[k];
        }
      }
      out[row] = static_cast<double>(largest) + std::log(sum);
    }
  });
}

template int64_t first_maximum<float>(const float*, int64_t);
template int64_t first_maximum<bfloat16>(const bfloat16*, int64_t);
template void argmax<float>(int64_t*, const float*, int64_t, int64_t);
template void argmax<bfloat16>(int64_t*, const bfloat16*, int64_t, int64_t);
template void apply_token_bitmask<float>(const TokenBitmask<float>&);
template void apply_token_bitmask<bfloat16>(const TokenBitmask<bfloat16>&);
template void log_sum_exp<float>(double*, const float*, int64_t, int64_t);
template void log_sum_exp<bfloat16>(double*, const bfloat16*, int64_t, int64_t);

}  // namespace roundhouse
