#include "cpu/activation.h"

#include "cpu/exp.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
// Elements that one thread takes at least, of a row.
constexpr int64_t kPiece = 1024;

// x / (1 + e^-t), which is x times the logistic function of t. Far below zero it is the denormal or zero that it should
// be, and never infinity over infinity.
inline Vector times_logistic(Vector x, Vector t) { return x / (Vector::all(1.0f) + exp(Vector::zero() - t)); }

// The complementary error function of z >= 0, relative error 1.2e-7 and what e^(-z^2) adds (Numerical Recipes, `erfcc`).
inline Vector erfc(Vector z) {
  static constexpr float kCoefficients[] = {0.17087277f, -0.82215223f, 1.48851587f,  -1.13520398f, 0.27886807f,
                                            -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f,  -1.26551223f};
  const Vector t = Vector::all(1.0f) / multiply_add(z, Vector::all(0.5f), Vector::all(1.0f));
  Vector sum = Vector::all(kCoefficients[0]);
  for (int i = 1; i < 10; ++i) sum = multiply_add(sum, t, Vector::all(kCoefficients[i]));
  return t * exp(multiply_add(Vector::zero() - z, z, sum));
}

struct Silu {
  static Vector of(Vector x) { return times_logistic(x, x); }
};

struct Gelu {
  static Vector of(Vector x) {
    // max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2: what is small is never a difference of what is large.
    const Vector size = max(x, Vector::zero() - x);
    const Vector tail = size * Vector::all(0.5f) * erfc(size * Vector::all(0.70710678118654752f));
    return max(Vector::zero(), x) - tail;
  }
};

struct GeluTanh {
  static Vector of(Vector x) {
    // (1 + tanh(t)) / 2 is the logistic function of 2 t.
    const Vector cube = x * x * x;
    const Vector t = multiply_add(cube, Vector::all(0.044715f), x) * Vector::all(1.5957691216057308f);
    return times_logistic(x, t);
  }
};

template <class Function, class T>
void rows(const ActivateAndMultiply<T>& p) {
  const int64_t whole = p.width / kWidth * kWidth;
  const int rest = static_cast<int>(p.width - whole);
  // Rows are long and few: a piece of one is what a thread takes.
  const int64_t pieces = (p.width + kPiece - 1) / kPiece;
  parallel_for(p.rows * pieces, 3 * p.rows * p.width * static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* gate = p.x + i / pieces * p.stride;
      const T* up = gate + p.width;
      T* out = p.out + i / pieces * p.width;
      const int64_t last = std::min(whole, (i % pieces + 1) * kPiece);
      for (int64_t j = i % pieces * kPiece; j < last; j += kWidth) {
        (Function::of(Vector::load(gate + j)) * Vector::load(up + j)).store(out + j);
      }
      if (rest != 0 && i % pieces == pieces - 1) {
        (Function::of(Vector::load(gate + whole, rest)) * Vector::load(up + whole, rest)).store(out + whole, rest);
      }
    }
  });
}

}  // namespace

template <class T>
void activate_and_multiply(const ActivateAndMultiply<T>& p) {
  switch (p.activation) {
    case Activation::kSilu:
      return rows<Silu>(p);
    case Activation::kGelu:
      return rows<Gelu>(p);
    case Activation::kGeluTanh:
      return rows<GeluTanh>(p);
  }
}

template void activate_and_multiply<float>(const ActivateAndMultiply<float>&);
template void activate_and_multiply<bfloat16>(const ActivateAndMultiply<bfloat16>&);

}  // namespace roundhouse
