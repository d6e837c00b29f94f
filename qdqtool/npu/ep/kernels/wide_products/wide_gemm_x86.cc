// Pairs of words in AVX2 and AVX-512: a pair of a row is broadcast, the pairs of sixteen columns lie one behind another.
#include "kernels/wide_products/wide_gemm.hpp"

#include "kernels/requantize/lanes_avx2.hpp"
#include "kernels/requantize/lanes_avx512.hpp"

#if QDQTOOL_X86
#include <algorithm>

namespace qdqtool {

namespace avx2 {

namespace {

#define QDQTOOL_TARGET QDQTOOL_AVX2
#define QDQTOOL_OP QDQTOOL_TARGET QDQTOOL_INLINE
struct Pairs {
  QDQTOOL_OP static Int32s add(Int32s sum, Int32s row, Int32s columns) {
    return sum + (Int32s)_mm256_madd_epi16((__m256i)row, (__m256i)columns);
  }
};
#include "kernels/products/sum_block.inc"
#include "kernels/wide_products/sum_words.inc"
#undef QDQTOOL_TARGET

QDQTOOL_AVX2 void add_rows(size_t height, const int32_t* sums, const int32_t* offsets, const float* scales,
                           float* totals) {
  for (size_t half = 0; half < kWideLanes; half += 8) {
    const __m256i offset = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(offsets + half));
    const __m256 scale = _mm256_loadu_ps(scales + half);
    for (size_t r = 0; r < height; ++r) {
      const size_t at = r * kWideLanes + half;
      const __m256i sum = _mm256_add_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + at)), offset);
      const __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
      _mm256_storeu_ps(totals + at, _mm256_add_ps(_mm256_loadu_ps(totals + at), term));
    }
  }
}

// Sixteen integers as they are packed.
template <bool is_signed>
struct Bytes {
  using Element = uint8_t;
  QDQTOOL_AVX2 QDQTOOL_INLINE static __m256i load(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
  }
};
template <bool is_signed>
struct Words {
  using Element = uint16_t;
  QDQTOOL_AVX2 QDQTOOL_INLINE static __m256i load(const uint16_t* from) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return is_signed ? words : _mm256_xor_si256(words, _mm256_set1_epi16(-32768));
  }
};

template <class Source>
QDQTOOL_AVX2 void pack_pairs(const typename Source::Element* source, size_t stride, size_t depth, int16_t* panel) {
  for (size_t k = 0; k < depth; k += 2, source += 2 * stride, panel += kWideLanes * 2) {
    const __m256i a = Source::load(source), b = k + 1 < depth ? Source::load(source + stride) : _mm256_setzero_si256();
    const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    auto* to = reinterpret_cast<__m256i*>(panel);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(low, high, 0x31));
  }
}

}  // namespace

void sum_words(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs, int32_t* sums) {
  constexpr size_t block = 4;  // rows whose sums stay in registers
  for (size_t r = 0; r < height; r += block) {
    kSumRows[std::min(block, height - r) - 1](rows + r * pitch, pitch, panel, pairs, sums + r * kWideLanes);
  }
}

void add_block(size_t height, const int32_t* sums, const int32_t* offsets, const float* scales, float* totals) {
  add_rows(height, sums, offsets, scales, totals);
}

QDQTOOL_AVX2 void add_part(const int32_t* part, size_t count, int shift, int64_t* sums) {
  const __m128i places = _mm_cvtsi32_si128(shift);
  for (size_t i = 0; i < count; i += 4) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part + i));
    auto* to = reinterpret_cast<__m256i*>(sums + i);
    const __m256i added = _mm256_sll_epi64(_mm256_cvtepi32_epi64(four), places);
    _mm256_storeu_si256(to, _mm256_add_epi64(_mm256_loadu_si256(to), added));
  }
}

void pack_bytes(const uint8_t* source, size_t stride, size_t depth, bool is_signed, int16_t* panel) {
  is_signed ? pack_pairs<Bytes<true>>(source, stride, depth, panel)
            : pack_pairs<Bytes<false>>(source, stride, depth, panel);
}

void pack_words(const uint16_t* source, size_t stride, size_t depth, bool is_signed, int16_t* panel) {
  is_signed ? pack_pairs<Words<true>>(source, stride, depth, panel)
            : pack_pairs<Words<false>>(source, stride, depth, panel);
}

}  // namespace avx2

namespace avx512 {

namespace {

#define QDQTOOL_TARGET QDQTOOL_AVX512
struct Pairs {
  QDQTOOL_OP static Int32s add(Int32s sum, Int32s row, Int32s columns) {
    return (Int32s)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)row, (__m512i)columns);
  }
};
#include "kernels/products/sum_block.inc"
#include "kernels/wide_products/sum_words.inc"

}  // namespace

void sum_words(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs, int32_t* sums) {
  kSumRows[height - 1](rows, pitch, panel, pairs, sums);
}

}  // namespace avx512
}  // namespace qdqtool

#undef QDQTOOL_OP
#undef QDQTOOL_TARGET
#endif
