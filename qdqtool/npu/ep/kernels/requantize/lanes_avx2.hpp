// Lanes of AVX2, and requantization in them: 8 of 32 bits or 4 of 64.
#pragma once
#include <limits>
#include <type_traits>

#include "kernels/requantize/requantize.hpp"
#include "kernels/shared/x86.hpp"

#if QDQTOOL_X86
#define QDQTOOL_OP QDQTOOL_AVX2 QDQTOOL_INLINE

namespace qdqtool::avx2 {

using Int32s = int32_t __attribute__((vector_size(32)));
using Int64s = int64_t __attribute__((vector_size(32)));
using Uint64s = uint64_t __attribute__((vector_size(32)));
using Reals = __m256;
constexpr size_t kCount = 8;      // lanes of 32 bits
constexpr size_t kRegisters = 2;  // of 16 lanes of 32 bits

QDQTOOL_OP Int32s load(const int32_t* from) { return (Int32s)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
QDQTOOL_OP Int32s load(const uint8_t* from) { return (Int32s)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
QDQTOOL_OP Reals load(const float* from) { return _mm256_loadu_ps(from); }
QDQTOOL_OP Reals set(float value) { return _mm256_set1_ps(value); }
QDQTOOL_OP void store(int32_t* to, Int32s v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)v); }

QDQTOOL_OP Int32s lesser(Int32s a, Int32s b) { return (Int32s)_mm256_min_epi32((__m256i)a, (__m256i)b); }
QDQTOOL_OP Int32s greater(Int32s a, Int32s b) { return (Int32s)_mm256_max_epi32((__m256i)a, (__m256i)b); }
QDQTOOL_OP Reals lesser(Reals a, Reals b) { return _mm256_min_ps(a, b); }
QDQTOOL_OP Reals greater(Reals a, Reals b) { return _mm256_max_ps(a, b); }
QDQTOOL_OP Int32s below(Int32s v) { return v >> 31; }
QDQTOOL_OP Int64s below(Int64s v) { return (Int64s)_mm256_cmpgt_epi64(_mm256_setzero_si256(), (__m256i)v); }
QDQTOOL_OP Int32s less_than(Reals a, Reals b) { return (Int32s)_mm256_cmp_ps(a, b, _CMP_LT_OQ); }
QDQTOOL_OP Int32s at_least(Reals a, Reals b) { return (Int32s)_mm256_cmp_ps(a, b, _CMP_GE_OQ); }
QDQTOOL_OP Reals where(Int32s mask, Reals yes, Reals no) { return _mm256_blendv_ps(no, yes, (__m256)mask); }
QDQTOOL_OP Int32s where_below(Int32s v, Int32s yes, Int32s no) {
  return (Int32s)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)v);
}

QDQTOOL_OP Int32s half_of(Int32s k) { return (Int32s)_mm256_sllv_epi32(_mm256_set1_epi32(1), (__m256i)(k - 1)); }
QDQTOOL_OP Int64s half_of(Int64s k) { return (Int64s)_mm256_sllv_epi64(_mm256_set1_epi64x(1), (__m256i)(k - 1)); }
QDQTOOL_OP Int32s shift_right(Int32s v, Int32s k) { return (Int32s)_mm256_srav_epi32((__m256i)v, (__m256i)k); }
// There is no instruction for it.
QDQTOOL_OP Int64s shift_right(Int64s v, Int64s k) {
  const __m256i sign = _mm256_set1_epi64x(std::numeric_limits<int64_t>::min());
  const __m256i moved = _mm256_srlv_epi64(_mm256_xor_si256((__m256i)v, sign), (__m256i)k);
  return (Int64s)_mm256_sub_epi64(moved, _mm256_srlv_epi64(sign, (__m256i)k));
}
QDQTOOL_OP Int32s multiply_low(Int32s a, Int32s b) { return (Int32s)_mm256_mullo_epi32((__m256i)a, (__m256i)b); }
QDQTOOL_OP Int64s multiply_even(Int32s a, Int32s b) { return (Int64s)_mm256_mul_epi32((__m256i)a, (__m256i)b); }
QDQTOOL_OP Int32s merge(Int32s even, Int32s odd) { return (Int32s)_mm256_blend_epi32((__m256i)even, (__m256i)odd, 0xAA); }

QDQTOOL_OP Reals to_reals(Int32s v) { return _mm256_cvtepi32_ps((__m256i)v); }
QDQTOOL_OP Int32s truncated(Reals v) { return (Int32s)_mm256_cvttps_epi32(v); }
QDQTOOL_OP Int32s to_nearest(Reals v) {
  return truncated(_mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QDQTOOL_OP Reals floor(Reals v) { return _mm256_floor_ps(v); }

// Clamped; where results wrap, a side without a clamp stays open.
QDQTOOL_OP Int32s clip(const Output& output, Int32s value) {
  if (!output.wraps || output.has_high) value = lesser(value, Int32s{} + static_cast<int32_t>(output.high));
  if (!output.wraps || output.has_low) value = greater(value, Int32s{} + static_cast<int32_t>(output.low));
  return value;
}

// Sixteen sums in the order that bytes() takes.
QDQTOOL_OP void load_row(const int32_t* from, Int32s (&to)[2]) {
  const __m256i a = (__m256i)load(from), b = (__m256i)load(from + 8);
  to[0] = (Int32s)_mm256_permute2x128_si256(a, b, 0x20), to[1] = (Int32s)_mm256_permute2x128_si256(a, b, 0x31);
}

// 16 bytes of the output type; the registers hold four of them in each half: 0-3 and 8-11, and 4-7 and 12-15. Only the low byte of
// each lane, so that any pack brings it out unchanged.
QDQTOOL_OP __m128i bytes(const Output& output, const Int32s (&v)[2]) {
  const __m256i words = _mm256_packs_epi32((__m256i)(clip(output, v[0]) & 255), (__m256i)(clip(output, v[1]) & 255));
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08));
}

// `count` of 16 bytes.
QDQTOOL_OP void store_bytes(uint8_t* y, __m128i bytes, size_t count) {
  if (count >= 16) return _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bytes);
  uint8_t all[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), bytes);
  __builtin_memcpy(y, all, count);
}

#include "kernels/requantize/rounding.inc"
#include "kernels/requantize/scaling.inc"

}  // namespace qdqtool::avx2

#undef QDQTOOL_OP
#endif
