#include "cpu/stored_blocks.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/parallel.h"

namespace roundhouse {
namespace {

constexpr int64_t kSpan = 2 * kLine;
// What the numbers of IQ4_NL and IQ4_XS stand for.
constexpr float kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Block {
  BlockSize size;
  GroupLayout layout;
};

constexpr Block block(int64_t bytes, int64_t bits, bool offsets, int64_t zero) {
  return {{32, bytes}, {bits, false, 32, 0, ScaleType::kFloat16, offsets, false, zero}};
}
constexpr Block super_block(int64_t bytes, int64_t bits, int64_t group, ScaleType type, bool offsets, int64_t zero) {
  return {{kSpan, bytes}, {bits, false, group, offsets ? 2 : 1, type, offsets, false, zero}};
}

constexpr Block kBlocks[kBlockTypes] = {
    block(18, 4, false, 8),  // Q4_0
    block(20, 4, true, 0),
    block(22, 5, false, 16),
    block(24, 5, true, 0),
    block(34, 8, false, 0),
    super_block(84, 4, 16, ScaleType::kUint8, true, 0),  // Q2_K
    super_block(110, 4, 16, ScaleType::kInt8, false, 4),
    super_block(144, 4, 32, ScaleType::kUint8, true, 0),
    super_block(176, 5, 32, ScaleType::kUint8, true, 0),
    super_block(210, 6, 16, ScaleType::kInt8, false, 32),
    block(18, 4, false, 0),  // IQ4_NL
    super_block(136, 4, 32, ScaleType::kInt8, false, 0),
};

// What a record has of one output, scales and offsets as their bytes.
struct OfOutput {
  uint8_t numbers[kSpan];
  uint16_t steps[2];
  uint8_t scales[kSpan / 16], offsets[kSpan / 16];
};

uint16_t half(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
// As a factor of what is subtracted.
uint16_t negative_half(const uint8_t* p) { return static_cast<uint16_t>(half(p) ^ 0x8000); }

// The low four bits of `run` bytes, then their high ones.
void digits(uint8_t* to, const uint8_t* from, int run) {
  for (int i = 0; i < run; ++i) to[i] = from[i] & 15;
  for (int i = 0; i < run; ++i) to[run + i] = from[i] >> 4;
}
// The lowest `bits` bits of 32 bytes, then the next ones, up to the highest; shifted to the left.
void add_fields(uint8_t* to, const uint8_t* from, int bits, int shift) {
  const int mask = (1 << bits) - 1;
  for (int field = 0; field < 8 / bits; ++field, to += 32) {
    for (int i = 0; i < 32; ++i) to[i] = static_cast<uint8_t>(to[i] | (from[i] >> (field * bits) & mask) << shift);
  }
}
void add_fifth_bits(uint8_t* to, const uint8_t* from) {
  for (int i = 0; i < 32; ++i) to[i] = static_cast<uint8_t>(to[i] | (from[i / 8] >> i % 8 & 1) << 4);
}
void six_bit_factors(OfOutput& to, const uint8_t* factors) {
  for (int i = 0; i < 4; ++i) {
    const uint8_t scale = factors[i], least = factors[4 + i], high = factors[8 + i];
    to.scales[i] = scale & 63;
    to.scales[4 + i] = static_cast<uint8_t>((high & 15) | (scale >> 2 & 48));
    to.offsets[i] = least & 63;
    to.offsets[4 + i] = static_cast<uint8_t>(high >> 4 | (least >> 2 & 48));
  }
}

// A block of 32 inputs, which is the k-th of a record.
void unpack_32(BlockType type, const uint8_t* block, int k, OfOutput& to) {
  uint8_t* const numbers = to.numbers + 32 * k;
  const bool offset = type == BlockType::kQ4_1 || type == BlockType::kQ5_1;
  std::memcpy(to.scales + 2 * k, block, 2);
  block += 2;
  if (offset) {
    std::memcpy(to.offsets + 2 * k, block, 2);
    block += 2;
  }
  if (type == BlockType::kQ8_0) {
    std::memcpy(numbers, block, 32);
  } else if (type == BlockType::kQ5_0 || type == BlockType::kQ5_1) {
    digits(numbers, block + 4, 16);
    add_fifth_bits(numbers, block);
  } else {
    digits(numbers, block, 16);
  }
}

void unpack_256(BlockType type, const uint8_t* block, OfOutput& to) {
  uint8_t* const numbers = to.numbers;
  switch (type) {
    case BlockType::kQ2_K:
      digits(numbers, block, 16);
      std::memcpy(to.scales, numbers, 16);
      std::memcpy(to.offsets, numbers + 16, 16);
      std::memset(numbers, 0, kSpan);
      for (int i = 0; i < 2; ++i) add_fields(numbers + 128 * i, block + 16 + 32 * i, 2, 0);
      to.steps[0] = half(block + 80);
      to.steps[1] = negative_half(block + 82);
      return;
    case BlockType::kQ3_K:
      std::memset(numbers, 0, kSpan);
      for (int i = 0; i < 2; ++i) add_fields(numbers + 128 * i, block + 32 + 32 * i, 2, 0);
      add_fields(numbers, block, 1, 2);
      for (int i = 0; i < 16; ++i) {
        const int low = block[96 + i % 8] >> (i / 8 * 4) & 15, high = block[104 + i % 4] >> (i / 4 * 2) & 3;
        to.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
      }
      to.steps[0] = half(block + 108);
      return;
    case BlockType::kQ4_K:
    case BlockType::kQ5_K:
      to.steps[0] = half(block);
      to.steps[1] = negative_half(block + 2);
      six_bit_factors(to, block + 4);
      for (int i = 0; i < 4; ++i) digits(numbers + 64 * i, block + (type == BlockType::kQ4_K ? 16 : 48) + 32 * i, 32);
      if (type == BlockType::kQ5_K) add_fields(numbers, block + 16, 1, 4);
      return;
    case BlockType::kQ6_K:
      for (int i = 0; i < 2; ++i) digits(numbers + 128 * i, block + 64 * i, 64);
      for (int i = 0; i < 2; ++i) add_fields(numbers + 128 * i, block + 128 + 32 * i, 2, 4);
      std::memcpy(to.scales, block + 192, 16);
      to.steps[0] = half(block + 208);
      return;
    default:  // IQ4_XS
      to.steps[0] = half(block);
      for (int i = 0; i < 8; ++i) {
        const int high = block[2 + i / 4] >> (i % 4 * 2) & 3, low = block[4 + i / 2] >> (i % 2 * 4) & 15;
        to.scales[i] = static_cast<uint8_t>((low | high << 4) - 32);
        digits(numbers + 32 * i, block + 8 + 16 * i, 16);
      }
  }
}

// The part of a row that a record has, whose first block is at `from`.
OfOutput unpack(BlockType type, const uint8_t* from, int64_t inputs) {
  const BlockSize size = block_size(type);
  OfOutput to = {};
  if (size.inputs == kSpan) {
    unpack_256(type, from, to);
  } else {
    for (int k = 0; k < inputs / size.inputs; ++k) unpack_32(type, from + k * size.bytes, k, to);
  }
  return to;
}

float to_float(uint16_t half) { return _cvtsh_ss(half); }

// The k-th scale or offset, times a step if there is one.
float factor(const GroupLayout& layout, const uint8_t* values, uint16_t step, int64_t k) {
  if (layout.steps == 0) return to_float(half(values + 2 * k));
  const float number = layout.type == ScaleType::kInt8 ? static_cast<float>(static_cast<int8_t>(values[k])) : values[k];
  return to_float(step) * number;
}

// Weights that a record has of one output, times `scale`.
template <class T>
void put_numbers(BlockType type, const GroupLayout& layout, const OfOutput& from, int64_t inputs, float scale, T* to) {
  const bool table = type == BlockType::kIQ4_NL || type == BlockType::kIQ4_XS;
  for (int64_t begin = 0; begin < inputs; begin += layout.group) {
    const float times = factor(layout, from.scales, from.steps[0], begin / layout.group);
    const float added = layout.offsets ? factor(layout, from.offsets, from.steps[1], begin / layout.group) : 0;
    for (int64_t i = begin; i < begin + layout.group; ++i) {
      float number = static_cast<float>(from.numbers[i] - layout.zero);
      if (table) number = kTable[from.numbers[i]];
      if (layout.bits == 8) number = static_cast<int8_t>(from.numbers[i]);
      to[i] = from_float<T>((times * number + added) * scale);
    }
  }
}

// A line's numbers of output n, of which each digit has so many inputs, to where its steps begin.
void put_line(uint8_t* to, const uint8_t* numbers, int64_t digit, int64_t n, int64_t bits) {
  if (bits == 8) {
    for (int64_t i = 0; i < digit / 2; ++i) {
      for (int64_t j = 0; j < 4; ++j) std::memcpy(to + ((i * 4 + j) * kBlock + n) * 2, numbers + j * digit + 2 * i, 2);
    }
    return;
  }
  const int more = static_cast<int>(bits - 4);
  uint16_t low[kLine / 4], high[kLine / 4];
  for (int64_t i = 0; i < digit; ++i) {
    int word = 0, rest = 0;
    for (int j = 0; j < 4; ++j) {
      word |= (numbers[j * digit + i] & 15) << (4 * j);
      rest |= numbers[j * digit + i] >> 4 << (more * j);
    }
    low[i] = static_cast<uint16_t>(word);
    high[i] = static_cast<uint16_t>(rest);
  }
  const int64_t steps = more == 0 ? 1 : 4 / more;  // that share words of the rest
  to += 4 * n;
  for (int64_t i = 0; i < digit; i += 2 * steps) {
    uint16_t rest[2] = {};
    for (int64_t r = 0; r < steps; ++r, to += 4 * kBlock) {
      std::memcpy(to, low + i + 2 * r, 4);
      for (int k = 0; k < 2; ++k) rest[k] = static_cast<uint16_t>(rest[k] | high[i + 2 * r + k] << (4 * more * r));
    }
    if (more == 0) continue;
    std::memcpy(to, rest, 4);
    to += 4 * kBlock;
  }
}

// A record's part of output n.
void put_output(const GroupLayout& layout, uint8_t* record, const OfOutput& from, int64_t inputs, int64_t n) {
  uint8_t* to = record;
  for (int64_t i = 0; i < layout.steps; ++i, to += 2 * kBlock) std::memcpy(to + 2 * n, from.steps + i, 2);
  const int64_t size = layout.scale_bytes();
  const auto put_groups = [&](const uint8_t* values) {
    for (int64_t g = 0; g < layout.span() / layout.group; ++g, to += size * kBlock) std::memcpy(to + size * n, values + size * g, size);
  };
  put_groups(from.scales);
  if (layout.offsets) put_groups(from.offsets);
  to = record + layout.header_bytes();
  for (int64_t begin = 0; begin < inputs; begin += kLine) {
    const int64_t digit = std::min(kLine, inputs - begin) / 4;
    put_line(to, from.numbers + begin, digit, n, layout.bits);
    to += kBlock * 4 * digit * layout.bits / 8;
  }
}

}  // namespace

BlockSize block_size(BlockType type) { return kBlocks[static_cast<int64_t>(type)].size; }
GroupLayout block_layout(BlockType type) { return kBlocks[static_cast<int64_t>(type)].layout; }

void pack_blocks(const PackBlocks& p) {
  const GroupLayout layout = block_layout(p.type);
  const BlockSize size = block_size(p.type);
  const int64_t blocks = ceil_div(p.outputs, kBlock), bytes = layout.block_bytes(p.inputs), span = layout.span();
  parallel_parts(blocks, blocks * bytes, [&](int64_t number, int64_t total) {
    for (int64_t block = blocks * number / total; block < blocks * (number + 1) / total; ++block) {
      for (int64_t begin = 0; begin < p.inputs; begin += span) {
        uint8_t* const record = p.out + block * bytes + begin / span * layout.record_bytes();
        const int64_t rest = p.inputs - begin;
        const int64_t inputs = rest < span && GroupLayout::ends_with_half(p.inputs) ? kLine / 2 : span;
        std::memset(record, 0, static_cast<size_t>(layout.header_bytes()));
        for (int64_t n = 0; n < kBlock; ++n) {
          const int64_t output = block * kBlock + n;
          const uint8_t* const from = p.rows + output * p.stride + begin / size.inputs * size.bytes;
          put_output(layout, record, output < p.outputs ? unpack(p.type, from, std::min(rest, span)) : OfOutput(), inputs, n);
        }
      }
    }
  });
}

template <class T>
bool look_up_blocks(const LookUpBlocks<T>& p) {
  for (int64_t i = 0; i < p.count; ++i) {
    if (p.tokens[i] < 0 || p.tokens[i] >= p.height) return false;
  }
  const GroupLayout layout = block_layout(p.type);
  const BlockSize size = block_size(p.type);
  parallel_for(p.count, 16 * p.count * p.inputs, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < p.inputs; i += layout.span()) {
        const int64_t inputs = std::min(layout.span(), p.inputs - i);
        const OfOutput of_row = unpack(p.type, p.rows + p.tokens[row] * p.stride + i / size.inputs * size.bytes, inputs);
        put_numbers(p.type, layout, of_row, inputs, p.scale, p.out + row * p.inputs + i);
      }
    }
  });
  return true;
}

template bool look_up_blocks(const LookUpBlocks<float>& p);
template bool look_up_blocks(const LookUpBlocks<bfloat16>& p);

}  // namespace roundhouse
