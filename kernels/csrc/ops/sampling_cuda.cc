#include "roundhouse/sampling.h"

#include "ops/cuda.h"

namespace roundhouse::cuda {
namespace {

constexpr DLDataType kFloat64{kDLFloat, 64, 1};

void check_logits(const TensorView& logits) {
  check_cuda(logits, "logits");
  ROUNDHOUSE_CHECK(is(logits, kFloat32) || is(logits, kBfloat16)) << "logits must be float32 or bfloat16";
  check_dimensions(logits, 2, "logits");
  check_dense(logits, "logits");
  ROUNDHOUSE_CHECK(logits.size(1) > 0 && logits.size(1) < int64_t{1} << 31) << "logits must have a vocabulary of less than 2^31";
}

void check_vector(const TensorView& tensor, DLDataType type, int64_t size, const char* name) {
  check_cuda(tensor, name);
  check_type(tensor, type, name);
  check_dimensions(tensor, 1, name);
  check_dense(tensor, name);
  check_size(tensor, 0, size, name);
}

void reduce(TensorView x, int64_t* first_maximum, double* log_sum_exp) {
  const int64_t rows = x.size(0), width = x.size(1);
  if (is(x, kFloat32)) return reduce_logits<float>({first_maximum, log_sum_exp, data<float>(x), rows, width}, stream_of(x));
  reduce_logits<bfloat16>({first_maximum, log_sum_exp, data<bfloat16>(x), rows, width}, stream_of(x));
}

void argmax_op(TensorView out, TensorView x) {
  check_logits(x);
  check_vector(out, kInt64, x.size(0), "out");
  reduce(x, data<int64_t>(out), nullptr);
}

void log_sum_exp_op(TensorView out, TensorView logits) {
  check_logits(logits);
  check_vector(out, kFloat64, logits.size(0), "out");
  reduce(logits, nullptr, data<double>(out));
}

// Row i of bits is for row rows[i] of the logits, which is not looked at here; `rows` is empty if they have the same rows.
void apply_token_bitmask_op(TensorView logits, TensorView bits, TensorView rows) {
  check_logits(logits);
  check_cuda(bits, "bits");
  check_type(bits, kInt32, "bits");
  check_dimensions(bits, 2, "bits");
  check_dense(bits, "bits");
  check_size(bits, 1, (logits.size(1) + 31) / 32, "bits");
  const int64_t* index = nullptr;
  if (rows.numel() == 0) {
    check_size(bits, 0, logits.size(0), "bits");
  } else {
    check_vector(rows, kInt64, bits.size(0), "rows");
    index = data<int64_t>(rows);
  }
  const int64_t count = bits.size(0), vocabulary = logits.size(1), words = bits.size(1);
  const auto* masks = data<uint32_t>(bits);
  if (is(logits, kFloat32)) {
    return apply_token_bitmask<float>({data<float>(logits), masks, index, count, vocabulary, words}, stream_of(logits));
  }
  apply_token_bitmask<bfloat16>({data<bfloat16>(logits), masks, index, count, vocabulary, words}, stream_of(logits));
}

void apply_penalties_op(TensorView logits, TensorView counts, TensorView seen, double repetition, double presence,
                        double frequency) {
  check_cuda(logits, "logits");
  check_dimensions(logits, 1, "logits");
  check_vector(logits, kFloat32, logits.size(0), "logits");
  check_vector(counts, kFloat32, logits.size(0), "counts");
  check_vector(seen, DLDataType{kDLBool, 8, 1}, logits.size(0), "seen");
  apply_penalties({data<float>(logits), data<float>(counts), data<bool>(seen), logits.size(0), static_cast<float>(repetition),
                   static_cast<float>(presence), static_cast<float>(frequency)},
                  stream_of(logits));
}

// `draws` is on the device.
void sample_op(TensorView tokens, TensorView logits, TensorView draws) {
  check_logits(logits);
  check_vector(tokens, kInt64, logits.size(0), "tokens");
  check_cuda(draws, "draws");
  check_type(draws, kFloat64, "draws");
  check_dimensions(draws, 2, "draws");
  check_dense(draws, "draws");
  check_size(draws, 0, logits.size(0), "draws");
  check_size(draws, 1, sizeof(Draw) / sizeof(double), "draws");
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  const auto* numbers = data<Draw>(draws);
  if (is(logits, kFloat32)) {
    return sample<float>({data<int64_t>(tokens), data<float>(logits), numbers, rows, vocabulary}, stream_of(logits));
  }
  sample<bfloat16>({data<int64_t>(tokens), data<bfloat16>(logits), numbers, rows, vocabulary}, stream_of(logits));
}

}  // namespace
}  // namespace roundhouse::cuda

TVM_FFI_DLL_EXPORT_TYPED_FUNC(argmax, roundhouse::cuda::argmax_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_token_bitmask, roundhouse::cuda::apply_token_bitmask_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_penalties, roundhouse::cuda::apply_penalties_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(log_sum_exp, roundhouse::cuda::log_sum_exp_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample, roundhouse::cuda::sample_op);
