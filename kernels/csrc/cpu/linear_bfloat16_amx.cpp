#include "cpu/linear_amx.h"

#if defined(ROUNDHOUSE_AMX)

#include "cpu/vector.h"

namespace roundhouse {

void pack_columns(uint8_t* to, const uint8_t* x, int64_t stride, int64_t bytes, int64_t rows, int64_t begin, int64_t end) {
  const int64_t tiles = ceil_div(bytes, kTileBytes);
  const int64_t columns = std::min(rows, kBlock);
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffffu, static_cast<unsigned>(columns)));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t group = i / tiles, tile = i % tiles;
    const int64_t count = std::min(kBlock, rows - group * kBlock), width = std::min(kTileBytes, bytes - tile * kTileBytes);
    const __mmask64 within = _bzhi_u64(~uint64_t{0}, static_cast<unsigned>(width));
    const uint8_t* from = x + group * kBlock * stride + tile * kTileBytes;
    __m512i lines[16];
    for (int64_t row = 0; row < 16; ++row) {
      lines[row] = row < count ? _mm512_maskz_loadu_epi8(within, from + row * stride) : _mm512_setzero_si512();
    }
    transpose(lines);
    uint8_t* at = to + i * 64 * columns;
    for (int line = 0; line < 16; ++line) _mm512_mask_storeu_epi32(at + line * 4 * columns, mask, lines[line]);
  }
}

template <>
void linear<bfloat16>(const Linear<bfloat16>& p) {
  const auto put = [&](int64_t row, int64_t block, __m512i lanes) {
    Vector sum{_mm512_castsi512_ps(lanes)};
    bfloat16* to = p.out + row * p.outputs + block * kBlock;
    const int64_t count = p.outputs - block * kBlock;
    if (count >= kBlock) {
      if (p.bias != nullptr) sum = sum + Vector::load(p.bias + block * kBlock);
      sum.store(to);
    } else {
      if (p.bias != nullptr) sum = sum + Vector::load(p.bias + block * kBlock, static_cast<int>(count));
      sum.store(to, static_cast<int>(count));
    }
  };
  multiply_amx<Bfloat16Product>(reinterpret_cast<const uint8_t*>(p.weight), reinterpret_cast<const uint8_t*>(p.x),
                                p.x_stride * 2, p.inputs * 2, p.rows, p.outputs, static_cast<uint8_t*>(p.workspace), put);
}

}  // namespace roundhouse

#endif
