// gemm.hpp in AVX2, on pairs of int16 or on four bytes. Sixteen columns lie in two registers a group: the first holds
// columns 0-3 and 8-11, the second 4-7 and 12-15, as interleaving two rows of int16 leaves them. A tile is up to four
// such parts, each with all groups.
#include "kernels/products/gemm_isa.hpp"
#include "kernels/requantize/lanes_avx2.hpp"

#if QDQTOOL_X86
#include <algorithm>

#define QDQTOOL_TARGET QDQTOOL_AVX2
#define QDQTOOL_OP QDQTOOL_TARGET QDQTOOL_INLINE

namespace qdqtool {
namespace avx2 {

namespace {

constexpr size_t kPart = 64;       // bytes of a part in one group
constexpr size_t kGroupBytes = 4;  // of a row in one group

size_t parts_in(size_t width) { return (width + kLanes - 1) / kLanes; }

QDQTOOL_OP void put(uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

// Sixteen bytes as int16, less the zero point.
QDQTOOL_AVX2 QDQTOOL_INLINE __m256i widen(const uint8_t* bytes, bool is_signed, __m256i zero_point) {
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_sub_epi16(is_signed ? _mm256_cvtepi8_epi16(sixteen) : _mm256_cvtepu8_epi16(sixteen), zero_point);
}

// Copies `length` bytes, at most kTile, by two moves that may overlap.
QDQTOOL_AVX2 QDQTOOL_INLINE void copy(uint8_t* to, const uint8_t* from, size_t length) {
  if (length >= 32) {
    const __m256i first = (__m256i)load(from), last = (__m256i)load(from + length - 32);
    put(to, first), put(to + length - 32, last);
  } else if (length >= 16) {
    const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + length - 16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + length - 16), last);
  } else if (length >= 4) {
    uint64_t first = 0, last = 0;
    const size_t half = length >= 8 ? 8 : 4;
    __builtin_memcpy(&first, from, half == 8 ? 8 : 4), __builtin_memcpy(&last, from + length - half, half == 8 ? 8 : 4);
    __builtin_memcpy(to, &first, half == 8 ? 8 : 4), __builtin_memcpy(to + length - half, &last, half == 8 ? 8 : 4);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
  }
}

// The values of one row of a tile: where they lie, or gathered in `values`.
QDQTOOL_AVX2 QDQTOOL_INLINE const uint8_t* values_of(const uint8_t* row, const Run* runs, size_t run_count,
                                                     size_t width, uint8_t* values) {
  if (run_count == 1 && width % kLanes == 0) return row + runs[0].offset;
  for (size_t i = 0; i < run_count; ++i) {
    copy(values + runs[i].begin, row + runs[i].offset + runs[i].begin,
         static_cast<size_t>(runs[i].end - runs[i].begin));
  }
  return values;
}

QDQTOOL_AVX2 void pack_words(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                             size_t last, uint8_t* panel) {
  const size_t groups = (columns.depth + 1) / 2, parts = parts_in(width);
  const __m256i zero_point = _mm256_set1_epi16(static_cast<int16_t>(columns.how.subtract));
  alignas(32) uint8_t values[2][kTile] = {};
  for (size_t g = first; g < last; ++g) {
    const size_t k = g * 2;
    const bool is_pair = k + 1 < columns.depth;
    const uint8_t* first_row = values_of(columns.row(k), runs, run_count, width, values[0]);
    const uint8_t* second_row = is_pair ? values_of(columns.row(k + 1), runs, run_count, width, values[1]) : values[1];
    for (size_t part = 0; part < parts; ++part) {
      const __m256i a = widen(first_row + part * kLanes, columns.how.is_signed, zero_point);
      const __m256i b =
          is_pair ? widen(second_row + part * kLanes, columns.how.is_signed, zero_point) : _mm256_setzero_si256();
      uint8_t* to = panel + (part * groups + g) * kPart;
      put(to, _mm256_unpacklo_epi16(a, b));
      put(to + kPart / 2, _mm256_unpackhi_epi16(a, b));
    }
  }
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m128i load_half(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

QDQTOOL_AVX2 void pack_bytes(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                             size_t last, uint8_t* panel) {
  const size_t groups = (columns.depth + 3) / 4, parts = parts_in(width);
  const __m128i flip = _mm_set1_epi8(static_cast<char>(columns.how.flip));
  alignas(32) uint8_t values[4][kTile] = {};
  for (size_t g = first; g < last; ++g) {
    const size_t there = std::min<size_t>(4, columns.depth - g * 4);
    const uint8_t* from[4];
    for (size_t i = 0; i < there; ++i) from[i] = values_of(columns.row(g * 4 + i), runs, run_count, width, values[i]);
    for (size_t part = 0; part < parts; ++part) {
      __m128i rows[4];
      QDQTOOL_UNROLL
      for (size_t i = 0; i < 4; ++i) {
        rows[i] = i < there ? _mm_xor_si128(load_half(from[i] + part * kLanes), flip) : _mm_setzero_si128();
      }
      const __m128i low01 = _mm_unpacklo_epi8(rows[0], rows[1]), high01 = _mm_unpackhi_epi8(rows[0], rows[1]);
      const __m128i low23 = _mm_unpacklo_epi8(rows[2], rows[3]), high23 = _mm_unpackhi_epi8(rows[2], rows[3]);
      auto* to = reinterpret_cast<__m128i*>(panel + (part * groups + g) * kPart);
      _mm_storeu_si128(to, _mm_unpacklo_epi16(low01, low23));
      _mm_storeu_si128(to + 2, _mm_unpackhi_epi16(low01, low23));
      _mm_storeu_si128(to + 1, _mm_unpacklo_epi16(high01, high23));
      _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high01, high23));
    }
  }
}

QDQTOOL_OP Int32s add_pairs(Int32s sum, __m256i a, __m256i b) { return sum + (Int32s)_mm256_madd_epi16(a, b); }

struct Words {
  QDQTOOL_OP static Int32s add(Int32s sum, Int32s row, Int32s columns) { return add_pairs(sum, (__m256i)row, (__m256i)columns); }
};
// Those of columns are unsigned, and pairs have room in 16 bits.
struct Bytes {
  QDQTOOL_OP static Int32s add(Int32s sum, Int32s row, Int32s columns) {
    return add_pairs(sum, _mm256_maddubs_epi16((__m256i)columns, (__m256i)row), _mm256_set1_epi16(1));
  }
};

#include "kernels/products/sum_block.inc"
#include "kernels/products/sums.inc"

// What was taken from the weights of one row, on one part.
QDQTOOL_AVX2 void add_residues(const Residues& residues, size_t row, const uint8_t* columns, int32_t* sums) {
  Int32s low = load(sums), high = load(sums + kCount);
  for (size_t i = residues.begins[row]; i < residues.begins[row + 1]; ++i) {
    const uint8_t* group = columns + size_t{residues.groups[i]} * kPart;
    const Int32s weights = four_bytes(&residues.weights[i]);
    low = Bytes::add(low, weights, load(group));
    high = Bytes::add(high, weights, load(group + kPart / 2));
  }
  store(sums, low);
  store(sums + kCount, high);
}

}  // namespace

void pack_columns(Form form, const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                  size_t last, void* panel) {
  auto* to = static_cast<uint8_t*>(panel);
  if (form == Form::bytes_avx2) return pack_bytes(columns, runs, run_count, width, first, last, to);
  pack_words(columns, runs, run_count, width, first, last, to);
}

void multiply(Form form, const void* packed, size_t rows, const void* panel, size_t width, size_t depth,
              const Epilogue& epilogue, uint8_t* y, size_t y_stride) {
  const size_t groups = (depth + group_of(form) - 1) / group_of(form), parts = parts_in(width);
  const auto& sum = form == Form::bytes_avx2 ? kSumPacked<Bytes, kRegisters> : kSumPacked<Words, kRegisters>;
  // A part of the columns stays in the first cache while the rows go by, as many as their sums have room for.
  constexpr size_t chunk = 4 * kRowBlock;
  alignas(32) int32_t sums[chunk * kTile];
  for (size_t begin = 0; begin < rows; begin += chunk) {
    const size_t height = std::min(chunk, rows - begin);
    const uint8_t* from = static_cast<const uint8_t*>(packed) + begin * groups * kGroupBytes;
    for (size_t part = 0; part < parts; ++part) {
      const uint8_t* columns = static_cast<const uint8_t*>(panel) + part * groups * kPart;
      int32_t* to = sums + part * kLanes;
      for (size_t r = 0; r < height; r += kRowBlock) {
        const size_t block = std::min(kRowBlock, height - r);
        sum[block - 1](from + r * groups * kGroupBytes, columns, groups, to + r * kTile);
      }
      if (!epilogue.residues) continue;
      for (size_t r = 0; r < height; ++r) {
        add_residues(*epilogue.residues, epilogue.first_row + begin + r, columns, to + r * kTile);
      }
    }
    for (size_t r = 0; r < height; ++r) {
      uint8_t* to = y + (begin + r) * y_stride;
      if (epilogue.path == Requantizer::Path::scalar) {
        finish_row(form, epilogue, begin + r, width, sums + r * kTile, to);
      } else {
        finish_parts(epilogue, begin + r, width, sums + r * kTile, to);
      }
    }
  }
}

void sum_columns(const void* panel, size_t width, size_t depth, int32_t* sums) {
  const size_t groups = (depth + 3) / 4;
  // Ones as rows, a part of the depth at a time.
  constexpr size_t step = 64;
  uint8_t ones[step * kGroupBytes];
  std::fill(std::begin(ones), std::end(ones), uint8_t{1});
  std::fill(sums, sums + parts_in(width) * kLanes, 0);
  for (size_t part = 0; part < parts_in(width); ++part) {
    const uint8_t* columns = static_cast<const uint8_t*>(panel) + part * groups * kPart;
    for (size_t g = 0; g < groups; g += step) {
      int32_t held[kLanes];
      sum_packed<Bytes, 1, kRegisters>(ones, columns + g * kPart, std::min(step, groups - g), held);
      for (size_t lane = 0; lane < kLanes; ++lane) sums[part * kLanes + lane] += held[lane];
    }
  }
}

}  // namespace avx2
}  // namespace qdqtool

#undef QDQTOOL_OP
#undef QDQTOOL_TARGET
#endif
