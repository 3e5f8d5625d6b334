#include "cpu/sampling.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/exp.h"
#include "cpu/logits.h"
#include "cpu/parallel.h"
#include "cpu/vector.h"

namespace roundhouse {
namespace {

constexpr int kWidth = Vector::kWidth;
constexpr int64_t kBlock = 512;       // numbers that are summed up together, to find where a sum is passed
constexpr int kDigits = 1 << 8;       // values of the bits that one step of a select looks at
constexpr int kShifts[] = {23, 15, 7, 0};  // where those bits begin; the last step sees one bit again
constexpr float kCuts[] = {-4.0f, -9.0f};

// Tokens with their scores, which are 0 at most, and e^score; by token.
struct Candidates {
  float* scores;
  float* weights;
  int32_t* tokens;  // null: token i is number i
  int64_t count;
};

// The order of scores by their bits: smaller for larger ones.
uint32_t key(float score) {
  uint32_t bits;
  std::memcpy(&bits, &score, sizeof(bits));
  return bits & 0x7fffffffu;
}

float score_of(uint32_t key) {
  const uint32_t bits = key | 0x80000000u;
  float score;
  std::memcpy(&score, &bits, sizeof(score));
  return score;
}

// Sums of the weights whose scores are at least `least`, each of one block; and the sum of all.
double sum_blocks(const Candidates& some, float least, double* sums) {
  double total = 0;
  for (int64_t i = 0; i < some.count; i += kBlock) {
    const int64_t last = std::min(some.count, i + kBlock);
    double lanes[8] = {};
    int64_t j = i;
    for (; j + 8 <= last; j += 8) {
      for (int lane = 0; lane < 8; ++lane) {
        lanes[lane] += some.scores[j + lane] >= least ? static_cast<double>(some.weights[j + lane]) : 0.0;
      }
    }
    for (; j < last; ++j) lanes[0] += some.scores[j] >= least ? static_cast<double>(some.weights[j]) : 0.0;
    const double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    if (sums != nullptr) sums[i / kBlock] = sum;
    total += sum;
  }
  return total;
}

// Copies those with scores of at least `least`, at most `most` of them; false if there are more.
bool keep(const Candidates& from, float least, int64_t most, Candidates& to) {
  to.count = 0;
  for (int64_t i = 0; i < from.count; i += 32) {
    const int64_t end = std::min(from.count, i + 32);
    int any = 0;
    for (int64_t j = i; j < end; ++j) any |= from.scores[j] >= least;
    if (any == 0) continue;
    if (to.count + 32 > most) return false;
    for (int64_t j = i; j < end; ++j) {
      to.scores[to.count] = from.scores[j];
      to.weights[to.count] = from.weights[j];
      to.tokens[to.count] = static_cast<int32_t>(j);
      to.count += from.scores[j] >= least;
    }
  }
  return true;
}

// Of candidates by score, largest first: how many and how much weight there is before a key, and at it.
struct Selected {
  uint32_t key;
  int64_t count_before, count;
  double weight_before, weight;
};

// The last key for which `reached(count before it, weight before it)` is false, where the first has no count before it.
template <class Reached>
Selected select(const Candidates& some, const Reached& reached) {
  Selected found{0, 0, 0, 0, 0};
  uint32_t mask = 0;
  for (const int shift : kShifts) {
    int64_t counts[kDigits] = {};
    double weights[kDigits] = {};
    for (int64_t i = 0; i < some.count; ++i) {
      const uint32_t bits = key(some.scores[i]);
      if ((bits & mask) != found.key) continue;
      const uint32_t digit = bits >> shift & (kDigits - 1);
      ++counts[digit];
      weights[digit] += some.weights[i];
    }
    int64_t count = found.count_before;
    double weight = found.weight_before;
    uint32_t last = 0;
    for (uint32_t digit = 0; digit < kDigits; ++digit) {
      if (counts[digit] == 0) continue;
      if (count > 0 && reached(count, weight)) break;
      last = digit, found.count_before = count, found.weight_before = weight;
      found.count = counts[digit], found.weight = weights[digit];
      count += counts[digit];
      weight += weights[digit];
    }
    found.key |= last << shift;
    mask |= (kDigits - 1u) << shift;
  }
  return found;
}

// The smallest score that top-k and then top-p keep. `total` is the weight of all tokens, also of those that are none of
// the candidates; these must be enough, as `enough` says.
float least_ranked(const Candidates& some, const Draw& draw, double total) {
  float least = -std::numeric_limits<float>::infinity();
  const auto k = static_cast<int64_t>(draw.top_k);
  if (k > 0 && k <= some.count) {
    const Selected last = select(some, [&](int64_t count, double) { return count >= k; });
    // Of those as likely as the k-th, only so many count as make k.
    total = last.weight_before + last.weight / last.count * (k - last.count_before);
    least = score_of(last.key);
  }
  if (draw.top_p < 1) {
    const double goal = draw.top_p * total;
    least = std::max(least, score_of(select(some, [&](int64_t, double weight) { return weight >= goal; }).key));
  }
  return least;
}

bool enough(const Candidates& some, const Draw& draw, double total) {
  if (draw.top_k > 0) return some.count >= draw.top_k;
  return draw.top_p < 1 && sum_blocks(some, -std::numeric_limits<float>::infinity(), nullptr) >= draw.top_p * total;
}

// The token where the sum of the weights, of scores of at least `least`, passes `uniform` of their total.
int64_t draw_token(const Candidates& some, float least, double uniform, double* sums) {
  const double goal = uniform * sum_blocks(some, least, sums);
  double before = 0;
  int64_t last = -1;
  for (int64_t i = 0; i < some.count; i += kBlock) {
    if (before + sums[i / kBlock] <= goal) {
      before += sums[i / kBlock];
      continue;
    }
    double sum = before;
    for (int64_t j = i; j < std::min(some.count, i + kBlock); ++j) {
      if (!(some.scores[j] >= least) || some.weights[j] == 0) continue;
      last = j;
      sum += some.weights[j];
      if (sum > goal) break;
    }
    // In another order the block's sum may have passed what it now does not: then it is its last token.
    if (last >= 0) break;
  }
  // Logits that are not numbers have no sums.
  if (last < 0) return 0;
  return some.tokens == nullptr ? last : some.tokens[last];
}

template <class T>
int64_t sample_row(const T* logits, int64_t vocabulary, const Draw& draw, float* scratch) {
  const int64_t first = first_maximum(logits, vocabulary);
  if (!(static_cast<float>(draw.temperature) > 0)) return first;
  const int64_t padded = (vocabulary + kWidth - 1) / kWidth * kWidth;
  Candidates all{scratch, scratch + padded, nullptr, vocabulary};
  const Vector most = Vector::all(to_float(logits[first])), temperature = Vector::all(static_cast<float>(draw.temperature));
  for (int64_t i = 0; i < vocabulary; i += kWidth) {
    const int rest = static_cast<int>(std::min<int64_t>(kWidth, vocabulary - i));
    const Vector logit = rest == kWidth ? Vector::load(logits + i) : Vector::load(logits + i, rest);
    const Vector score = (logit - most) / temperature;
    score.store(all.scores + i);
    exp(score).store(all.weights + i);
  }
  auto* sums = reinterpret_cast<double*>(scratch + 2 * padded);
  float* others = scratch + 2 * padded + 2 * (padded / kBlock + 1);
  Candidates some{others, others + padded, reinterpret_cast<int32_t*>(others + 2 * padded), 0};
  float least = static_cast<float>(std::log(static_cast<double>(static_cast<float>(draw.min_p))));
  const Candidates* from = &all;
  if (draw.top_k > 0 || draw.top_p < 1) {
    const double total = sum_blocks(all, -std::numeric_limits<float>::infinity(), nullptr);
    for (const float cut : kCuts) {
      if (keep(all, cut, vocabulary / 4, some) && enough(some, draw, total)) {
        from = &some;
        break;
      }
    }
    least = std::max(least, least_ranked(*from, draw, total));
  }
  return draw_token(*from, least, draw.uniform, sums);
}

}  // namespace

int64_t sample_scratch(int64_t vocabulary) {
  const int64_t padded = (vocabulary + kWidth - 1) / kWidth * kWidth;
  // Scores, weights, sums of blocks in fp64, and the candidates' scores, weights and tokens; room for whole cache lines.
  return (5 * padded + 2 * (padded / kBlock + 1) + 15) / 16 * 16;
}

template <class T>
void sample(const Sample<T>& p) {
  const int64_t size = sample_scratch(p.vocabulary), per_row = 8 * p.vocabulary * static_cast<int64_t>(sizeof(float));
  const int64_t parts = std::min(p.rows, p.threads);
  parallel_for(parts, p.rows * per_row, [&](int64_t begin, int64_t end) {
    for (int64_t i = p.rows * begin / parts; i < p.rows * end / parts; ++i) {
      p.tokens[i] = sample_row(p.logits + i * p.vocabulary, p.vocabulary, p.draws[i], p.scratch + begin * size);
    }
  });
}

template void sample<float>(const Sample<float>&);
template void sample<bfloat16>(const Sample<bfloat16>&);

}  // namespace roundhouse
