#include "kernels/wide_products/wide_gemm.hpp"

#include <algorithm>
#include <cstring>

namespace qdqtool {

int64_t word_zero_point(DataType type, int64_t zero_point) {
  return type == DataType::uint16 ? zero_point - 32768 : zero_point;
}

int64_t word_most(DataType type) { return is_16_bit(type) ? 32768 : type == DataType::uint8 ? 255 : 128; }

WordForm word_form(DataType rows, DataType columns) {
  WordForm form;
  form.is_split = is_16_bit(rows) && is_16_bit(columns);
  const int64_t most = form.is_split ? 255 : word_most(rows);
  form.limit = static_cast<size_t>(((int64_t{1} << 31) - 1) / (2 * most * word_most(columns)));
  return form;
}

namespace {

void sum_words_plainly(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs,
                       int32_t* sums) {
  for (size_t r = 0; r < height; ++r, rows += pitch, sums += kWideLanes) {
    int32_t held[kWideLanes] = {};
    const int16_t* columns = panel;
    for (size_t p = 0; p < pairs; ++p, columns += kWideLanes * 2) {
      const int32_t a = rows[p * 2], b = rows[p * 2 + 1];
      for (size_t lane = 0; lane < kWideLanes; ++lane) held[lane] += a * columns[lane * 2] + b * columns[lane * 2 + 1];
    }
    std::memcpy(sums, held, sizeof held);
  }
}

void add_block_plainly(size_t height, const int32_t* sums, const int32_t* offsets, const float* scales,
                       float* totals) {
  for (size_t r = 0; r < height; ++r, sums += kWideLanes, totals += kWideLanes) {
    for (size_t lane = 0; lane < kWideLanes; ++lane) {
      const uint32_t sum = static_cast<uint32_t>(sums[lane]) + static_cast<uint32_t>(offsets[lane]);
      totals[lane] += static_cast<float>(static_cast<int32_t>(sum)) * scales[lane];
    }
  }
}

}  // namespace

SumWords sum_words_of(Isa isa) {
#if QDQTOOL_X86
  if (isa == Isa::avx512) return avx512::sum_words;
  if (isa == Isa::avx2) return avx2::sum_words;
#endif
  (void)isa;
  return sum_words_plainly;
}

AddBlock add_block_of(Isa isa) {
#if QDQTOOL_X86
  if (isa != Isa::portable) return avx2::add_block;
#endif
  (void)isa;
  return add_block_plainly;
}

namespace {

void add_part(Isa isa, const int32_t* part, size_t count, int shift, int64_t* sums) {
#if QDQTOOL_X86
  if (isa != Isa::portable) return avx2::add_part(part, count, shift, sums);
#endif
  (void)isa;
  for (size_t i = 0; i < count; ++i) sums[i] += part[i] * (int64_t{1} << shift);
}

}  // namespace

void multiply_words(Isa isa, const WordForm& form, const WordRows& rows, size_t first, size_t height,
                    const int16_t* panel, size_t pairs, int64_t* sums) {
  const SumWords sum_words = sum_words_of(isa);
  const size_t count = height * kWideLanes;
  alignas(32) int32_t part[kWideRows * kWideLanes];
  std::fill(sums, sums + count, int64_t{0});
  for (const int16_t* words : {rows.high, rows.low}) {
    if (!words) continue;
    const int shift = rows.low && words == rows.high ? 8 : 0;
    for (size_t begin = 0; begin < pairs; begin += form.limit) {
      const size_t length = std::min(form.limit, pairs - begin);
      sum_words(words + first * rows.pitch + begin * 2, rows.pitch, height, panel + begin * kWideLanes * 2, length,
                part);
      add_part(isa, part, count, shift, sums);
    }
  }
}

void sum_panel(const int16_t* panel, size_t pairs, int64_t* sums) {
  std::fill(sums, sums + kWideLanes, int64_t{0});
  for (size_t p = 0; p < pairs; ++p, panel += kWideLanes * 2) {
    for (size_t lane = 0; lane < kWideLanes; ++lane) sums[lane] += panel[lane * 2] + panel[lane * 2 + 1];
  }
}

}  // namespace qdqtool
