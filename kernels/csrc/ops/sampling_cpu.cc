#include "cpu/sampling.h"

#include "cpu/logits.h"
#include "cpu/types.h"
#include "ops/check.h"

namespace roundhouse {
namespace {

void check_logits(const TensorView& logits) {
  check_cpu(logits, "logits");
  ROUNDHOUSE_CHECK(is(logits, kFloat32) || is(logits, kBfloat16)) << "logits must be float32 or bfloat16";
  check_dimensions(logits, 2, "logits");
  check_dense(logits, "logits");
  ROUNDHOUSE_CHECK(logits.size(1) > 0) << "logits must have a vocabulary";
}

void check_vector(const TensorView& tensor, DLDataType type, int64_t size, const char* name) {
  check_cpu(tensor, name);
  check_type(tensor, type, name);
  check_dimensions(tensor, 1, name);
  check_dense(tensor, name);
  check_size(tensor, 0, size, name);
}

void argmax_op(TensorView out, TensorView x) {
  check_logits(x);
  check_vector(out, kInt64, x.size(0), "out");
  if (is(x, kFloat32)) return argmax(data<int64_t>(out), data<float>(x), x.size(0), x.size(1));
  argmax(data<int64_t>(out), data<bfloat16>(x), x.size(0), x.size(1));
}

template <class T>
void mask(TensorView logits, TensorView bits, const int64_t* rows) {
  apply_token_bitmask(TokenBitmask<T>{data<T>(logits), data<uint32_t>(bits), rows, bits.size(0), logits.size(1),
                                      bits.size(1)});
}

// Row i of bits is for row rows[i] of the logits; `rows` is empty if they have the same rows.
void apply_token_bitmask_op(TensorView logits, TensorView bits, TensorView rows) {
  check_logits(logits);
  check_cpu(bits, "bits");
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
    for (int64_t i = 0; i < bits.size(0); ++i) {
      ROUNDHOUSE_CHECK(index[i] >= 0 && index[i] < logits.size(0)) << "rows has a row that logits does not have";
    }
  }
  if (is(logits, kFloat32)) return mask<float>(logits, bits, index);
  mask<bfloat16>(logits, bits, index);
}

void apply_penalties_op(TensorView logits, TensorView counts, TensorView seen, double repetition, double presence,
                        double frequency) {
  check_cpu(logits, "logits");
  check_dimensions(logits, 1, "logits");
  check_vector(logits, kFloat32, logits.size(0), "logits");
  check_vector(counts, kFloat32, logits.size(0), "counts");
  check_vector(seen, DLDataType{kDLBool, 8, 1}, logits.size(0), "seen");
  apply_penalties({data<float>(logits), data<float>(counts), data<bool>(seen), logits.size(0),
                   static_cast<float>(repetition), static_cast<float>(presence), static_cast<float>(frequency)});
}

void log_sum_exp_op(TensorView out, TensorView logits) {
  check_logits(logits);
  check_vector(out, DLDataType{kDLFloat, 64, 1}, logits.size(0), "out");
  if (is(logits, kFloat32)) return log_sum_exp(data<double>(out), data<float>(logits), logits.size(0), logits.size(1));
  log_sum_exp(data<double>(out), data<bfloat16>(logits), logits.size(0), logits.size(1));
}

template <class T>
void run(TensorView tokens, TensorView logits, TensorView draws, TensorView scratch) {
  const int64_t threads = scratch.numel() / sample_scratch(logits.size(1));
  ROUNDHOUSE_CHECK(threads > 0) << "scratch has " << scratch.numel() << " elements instead of at least "
                                << sample_scratch(logits.size(1));
  sample(Sample<T>{data<int64_t>(tokens), data<T>(logits), data<Draw>(draws), logits.size(0), logits.size(1),
                   data<float>(scratch), threads});
}

void sample_op(TensorView tokens, TensorView logits, TensorView draws, TensorView scratch) {
  check_logits(logits);
  check_vector(tokens, kInt64, logits.size(0), "tokens");
  check_cpu(draws, "draws");
  check_type(draws, DLDataType{kDLFloat, 64, 1}, "draws");
  check_dimensions(draws, 2, "draws");
  check_dense(draws, "draws");
  check_size(draws, 0, logits.size(0), "draws");
  check_size(draws, 1, sizeof(Draw) / sizeof(double), "draws");
  check_cpu(scratch, "scratch");
  check_type(scratch, kFloat32, "scratch");
  check_dense(scratch, "scratch");
  if (is(logits, kFloat32)) return run<float>(tokens, logits, draws, scratch);
  run<bfloat16>(tokens, logits, draws, scratch);
}

}  // namespace
}  // namespace roundhouse

TVM_FFI_DLL_EXPORT_TYPED_FUNC(argmax, roundhouse::argmax_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_token_bitmask, roundhouse::apply_token_bitmask_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(apply_penalties, roundhouse::apply_penalties_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(log_sum_exp, roundhouse::log_sum_exp_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample, roundhouse::sample_op);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(sample_scratch, roundhouse::sample_scratch);
