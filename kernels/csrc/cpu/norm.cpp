#include "cpu/norm.h"

#include <cmath>

#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;

// x + residual, rounded to T as it is stored, or x alone.
template <class T, class... Count>
Vector take(const T* x, T* residual, Count... count) {
  Vector value = Vector::load(x, count...);
  if (residual == nullptr) return value;
  (value + Vector::load(residual, count...)).store(residual, count...);
  return Vector::load(residual, count...);
}

template <class T>
void row(T* out, const T* x, T* residual, const T* weight, int64_t width, float eps) {
  const int64_t whole = width / kWidth * kWidth;
  const int rest = static_cast<int>(width - whole);
  Vector squares = Vector::zero();
  for (int64_t i = 0; i < whole; i += kWidth) {
    const Vector value = take(x + i, residual == nullptr ? nullptr : residual + i);
    squares = multiply_add(value, value, squares);
  }
  if (rest != 0) {
    const Vector value = take(x + whole, residual == nullptr ? nullptr : residual + whole, rest);
    squares = multiply_add(value, value, squares);
  }
  const Vector scale = Vector::all(1.0f / std::sqrt(squares.sum() / static_cast<float>(width) + eps));
  const T* source = residual == nullptr ? x : residual;
  for (int64_t i = 0; i < whole; i += kWidth) (Vector::load(source + i) * scale * Vector::load(weight + i)).store(out + i);
  if (rest != 0) {
    (Vector::load(source + whole, rest) * scale * Vector::load(weight + whole, rest)).store(out + whole, rest);
  }
}

}  // namespace

template <class T>
void rms_norm(const RmsNorm<T>& p) {
  const int64_t bytes = (p.residual == nullptr ? 2 : 4) * p.rows * p.width * static_cast<int64_t>(sizeof(T));
  parallel_for(p.rows, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      row(p.out + i * p.width, p.x + i / p.group * p.stride + i % p.group * p.width, p.residual == nullptr ? nullptr : p.residual + i * p.width,
          p.weight + i % p.weight_rows * p.width, p.width, p.eps);
    }
  });
}

template void rms_norm<float>(const RmsNorm<float>&);
template void rms_norm<bfloat16>(const RmsNorm<bfloat16>&);

}  // namespace roundhouse
