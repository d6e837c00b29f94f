// gemm.hpp in AVX-512 with VNNI. A whole tile of 64 columns lies in four registers a group, as interleaving the bytes
// of four rows leaves it: register j holds in its quarter i the columns from 16·i + 4·j on. A narrower one has its
// columns in order, 16 to a register.
#include "kernels/products/gemm_isa.hpp"
#include "kernels/requantize/lanes_avx512.hpp"

#if QDQTOOL_X86
#include <algorithm>

#define QDQTOOL_TARGET QDQTOOL_AVX512
#define QDQTOOL_OP QDQTOOL_TARGET QDQTOOL_INLINE

namespace qdqtool {
namespace avx512 {

namespace {

constexpr size_t kBytes = 64;            // of a register
constexpr size_t kGroupBytes = kGroup;  // of a row in one group

size_t groups_in(size_t depth) { return (depth + kGroup - 1) / kGroup; }
size_t registers_in(size_t width) { return (width + kLanes - 1) / kLanes; }

struct Piece {
  __mmask64 mask;
  int64_t offset;
};

QDQTOOL_OP __m512i gathered(const uint8_t* row, const Piece* pieces, size_t count) {
  // The address may lie before the array; what the mask leaves out is not read.
  const auto base = reinterpret_cast<uintptr_t>(row);
  const auto at = [base](const Piece& piece) {
    return reinterpret_cast<const void*>(base + static_cast<uintptr_t>(piece.offset));
  };
  __m512i value = _mm512_maskz_loadu_epi8(pieces[0].mask, at(pieces[0]));
  for (size_t i = 1; i < count; ++i) value = _mm512_mask_loadu_epi8(value, pieces[i].mask, at(pieces[i]));
  return value;
}

QDQTOOL_AVX512 QDQTOOL_INLINE void store_group(const __m512i (&rows)[4], size_t registers, uint8_t* to) {
  const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]), high01 = _mm512_unpackhi_epi8(rows[0], rows[1]);
  const __m512i low23 = _mm512_unpacklo_epi8(rows[2], rows[3]), high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
  const __m512i columns[4] = {_mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
                              _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
  if (registers == 4) {
    for (size_t j = 0; j < 4; ++j) _mm512_store_si512(to + j * kBytes, columns[j]);
    return;
  }
  for (size_t j = 0; j < 4; ++j) {
    auto* quarter = reinterpret_cast<__m128i*>(to + j * 16);
    _mm_store_si128(quarter, _mm512_castsi512_si128(columns[j]));
    if (registers > 1) _mm_store_si128(quarter + 4, _mm512_extracti32x4_epi32(columns[j], 1));
    if (registers > 2) _mm_store_si128(quarter + 8, _mm512_extracti32x4_epi32(columns[j], 2));
  }
}

template <size_t fixed_count>
QDQTOOL_AVX512 void pack(const Columns& columns, const Piece* pieces, size_t piece_count, size_t registers,
                         size_t first, size_t last, uint8_t* panel) {
  const size_t count = fixed_count ? fixed_count : piece_count;
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(columns.how.flip));
  for (size_t g = first; g < last; ++g) {
    const size_t k = g * kGroup;
    const size_t there = std::min(kGroup, columns.depth - k);
    __m512i rows[4];
    if (there == kGroup) {
      for (size_t i = 0; i < 4; ++i) rows[i] = _mm512_xor_si512(gathered(columns.row(k + i), pieces, count), flip);
    } else {
      for (size_t i = 0; i < 4; ++i) {
        rows[i] = i < there ? _mm512_xor_si512(gathered(columns.row(k + i), pieces, count), flip) : _mm512_setzero_si512();
      }
    }
    store_group(rows, registers, panel + g * registers * kBytes);
  }
}

template <bool rows_unsigned>
struct Bytes {
  QDQTOOL_OP static Int32s add(Int32s sum, Int32s row, Int32s columns) {
    const __m512i a = (__m512i)(rows_unsigned ? row : columns), b = (__m512i)(rows_unsigned ? columns : row);
    return (Int32s)_mm512_dpbusd_epi32((__m512i)sum, a, b);
  }
};

#include "kernels/products/sum_block.inc"
#include "kernels/products/sums.inc"

template <class Products>
SumPacked select(size_t height, size_t registers) {
  switch (registers) {
    case 1: return kSumPacked<Products, 1>[height - 1];
    case 2: return kSumPacked<Products, 2>[height - 1];
    case 3: return kSumPacked<Products, 3>[height - 1];
    default: return kSumPacked<Products, 4>[height - 1];
  }
}

SumPacked select(bool rows_unsigned, size_t height, size_t registers) {
  return rows_unsigned ? select<Bytes<true>>(height, registers) : select<Bytes<false>>(height, registers);
}

// A row of a whole tile.
QDQTOOL_AVX512 void finish_whole(const Epilogue& e, size_t row, size_t width, const int32_t* sums, uint8_t* y) {
  Int32s value[4];
  finish(e, row, 0, sums, value);
  _mm512_mask_storeu_epi8(y, ~__mmask64{0} >> (kTile - width), bytes(e.requantizer->output, value));
}

}  // namespace

void pack_columns(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first, size_t last,
                  void* panel) {
  Piece pieces[kTile];
  for (size_t i = 0; i < run_count; ++i) {
    const auto length = static_cast<unsigned>(runs[i].end - runs[i].begin);
    pieces[i].mask = (~__mmask64{0} >> (kTile - length)) << runs[i].begin;
    pieces[i].offset = runs[i].offset;
  }
  auto* to = static_cast<uint8_t*>(panel);
  const size_t registers = registers_in(width);
  switch (run_count) {
    case 1: return pack<1>(columns, pieces, 1, registers, first, last, to);
    case 2: return pack<2>(columns, pieces, 2, registers, first, last, to);
    case 3: return pack<3>(columns, pieces, 3, registers, first, last, to);
    default: return pack<0>(columns, pieces, run_count, registers, first, last, to);
  }
}

void multiply(bool rows_unsigned, const void* packed, size_t rows, const void* panel, size_t width, size_t depth,
              const Epilogue& epilogue, uint8_t* y, size_t y_stride) {
  const size_t groups = groups_in(depth), registers = registers_in(width);
  const auto* from = static_cast<const uint8_t*>(packed);
  alignas(64) int32_t sums[kRowBlock * kTile];
  for (size_t begin = 0; begin < rows; begin += kRowBlock) {
    const size_t height = std::min(kRowBlock, rows - begin);
    select(rows_unsigned, height, registers)(from, static_cast<const uint8_t*>(panel), groups, sums);
    for (size_t r = 0; r < height; ++r) {
      uint8_t* to = y + (begin + r) * y_stride;
      if (epilogue.path == Requantizer::Path::scalar) {
        finish_row(Form::bytes_avx512, epilogue, begin + r, width, sums + r * kTile, to);
      } else if (registers == 4) {
        finish_whole(epilogue, begin + r, width, sums + r * kTile, to);
      } else {
        finish_parts(epilogue, begin + r, width, sums + r * kTile, to);
      }
    }
    from += groups * height * kGroup;
  }
}

void sum_columns(bool rows_unsigned, const void* panel, size_t width, size_t depth, int32_t* sums) {
  const size_t groups = groups_in(depth), registers = registers_in(width);
  const auto* from = static_cast<const uint8_t*>(panel);
  // Ones as rows, a part of the depth at a time.
  constexpr size_t part = 64;
  uint8_t ones[part * kGroup];
  std::fill(std::begin(ones), std::end(ones), uint8_t{1});
  std::fill(sums, sums + registers * kLanes, 0);
  alignas(64) int32_t held[kTile];
  for (size_t g = 0; g < groups; g += part) {
    const size_t count = std::min(part, groups - g);
    select(rows_unsigned, 1, registers)(ones, from + g * registers * kBytes, count, held);
    for (size_t lane = 0; lane < registers * kLanes; ++lane) {
      sums[lane] = static_cast<int32_t>(static_cast<uint32_t>(sums[lane]) + static_cast<uint32_t>(held[lane]));
    }
  }
}

}  // namespace avx512
}  // namespace qdqtool

#undef QDQTOOL_OP
#undef QDQTOOL_TARGET
#endif
