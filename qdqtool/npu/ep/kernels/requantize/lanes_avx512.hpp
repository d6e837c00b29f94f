// Lanes of AVX-512, and requantization in them: 16 of 32 bits or 8 of 64.
#pragma once
#include <type_traits>

#include "kernels/requantize/requantize.hpp"
#include "kernels/shared/x86.hpp"

#if QDQTOOL_X86
#define QDQTOOL_OP QDQTOOL_AVX512 QDQTOOL_INLINE

namespace qdqtool::avx512 {

using Int32s = int32_t __attribute__((vector_size(64)));
using Int64s = int64_t __attribute__((vector_size(64)));
using Uint64s = uint64_t __attribute__((vector_size(64)));
using Reals = __m512;
constexpr size_t kCount = 16;     // lanes of 32 bits
constexpr size_t kRegisters = 1;  // of 16 lanes of 32 bits

QDQTOOL_OP Int32s load(const int32_t* from) { return (Int32s)_mm512_loadu_si512(from); }
QDQTOOL_OP Int32s load(const uint8_t* from) { return (Int32s)_mm512_loadu_si512(from); }
QDQTOOL_OP Reals load(const float* from) { return _mm512_loadu_ps(from); }
QDQTOOL_OP Reals set(float value) { return _mm512_set1_ps(value); }
QDQTOOL_OP void store(int32_t* to, Int32s v) { _mm512_storeu_si512(to, (__m512i)v); }

QDQTOOL_OP Int32s lesser(Int32s a, Int32s b) { return (Int32s)_mm512_min_epi32((__m512i)a, (__m512i)b); }
QDQTOOL_OP Int32s greater(Int32s a, Int32s b) { return (Int32s)_mm512_max_epi32((__m512i)a, (__m512i)b); }
QDQTOOL_OP Reals lesser(Reals a, Reals b) { return _mm512_min_ps(a, b); }
QDQTOOL_OP Reals greater(Reals a, Reals b) { return _mm512_max_ps(a, b); }
QDQTOOL_OP Int32s below(Int32s v) { return v >> 31; }
QDQTOOL_OP Int64s below(Int64s v) { return v >> 63; }
QDQTOOL_OP Int32s less_than(Reals a, Reals b) { return (Int32s)_mm512_movm_epi32(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)); }
QDQTOOL_OP Int32s at_least(Reals a, Reals b) { return (Int32s)_mm512_movm_epi32(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)); }
QDQTOOL_OP Reals where(Int32s mask, Reals yes, Reals no) {
  return _mm512_mask_mov_ps(no, _mm512_movepi32_mask((__m512i)mask), yes);
}
QDQTOOL_OP Int32s where_below(Int32s v, Int32s yes, Int32s no) {
  return (Int32s)_mm512_mask_mov_epi32((__m512i)no, _mm512_movepi32_mask((__m512i)v), (__m512i)yes);
}

QDQTOOL_OP Int32s half_of(Int32s k) { return (Int32s)_mm512_sllv_epi32(_mm512_set1_epi32(1), (__m512i)(k - 1)); }
QDQTOOL_OP Int64s half_of(Int64s k) { return (Int64s)_mm512_sllv_epi64(_mm512_set1_epi64(1), (__m512i)(k - 1)); }
QDQTOOL_OP Int32s shift_right(Int32s v, Int32s k) { return (Int32s)_mm512_srav_epi32((__m512i)v, (__m512i)k); }
QDQTOOL_OP Int64s shift_right(Int64s v, Int64s k) { return (Int64s)_mm512_srav_epi64((__m512i)v, (__m512i)k); }
QDQTOOL_OP Int32s multiply_low(Int32s a, Int32s b) { return (Int32s)_mm512_mullo_epi32((__m512i)a, (__m512i)b); }
QDQTOOL_OP Int64s multiply_even(Int32s a, Int32s b) { return (Int64s)_mm512_mul_epi32((__m512i)a, (__m512i)b); }
QDQTOOL_OP Int32s merge(Int32s even, Int32s odd) { return (Int32s)_mm512_mask_mov_epi32((__m512i)even, 0xAAAA, (__m512i)odd); }

QDQTOOL_OP Reals to_reals(Int32s v) { return _mm512_cvtepi32_ps((__m512i)v); }
QDQTOOL_OP Int32s truncated(Reals v) { return (Int32s)_mm512_cvttps_epi32(v); }
QDQTOOL_OP Int32s to_nearest(Reals v) { return (Int32s)_mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
QDQTOOL_OP Reals floor(Reals v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }

// Clamped; where results wrap, a side without a clamp stays open.
QDQTOOL_OP Int32s clip(const Output& output, Int32s value) {
  if (!output.wraps || output.has_high) value = lesser(value, Int32s{} + static_cast<int32_t>(output.high));
  if (!output.wraps || output.has_low) value = greater(value, Int32s{} + static_cast<int32_t>(output.low));
  return value;
}

QDQTOOL_OP void load_row(const int32_t* from, Int32s (&to)[1]) { to[0] = load(from); }

// 16 bytes of the output type in the order of the lanes.
QDQTOOL_OP __m128i bytes(const Output& output, const Int32s (&v)[1]) {
  return _mm512_cvtepi32_epi8((__m512i)clip(output, v[0]));
}

// 64 bytes of the output type; v[j] holds four of them in each quarter: quarter i those from 16·i + 4·j on.
QDQTOOL_OP __m512i bytes(const Output& output, const Int32s (&v)[4]) {
  if (output.wraps) {
    const __m512i a = _mm512_packs_epi32((__m512i)(clip(output, v[0]) & 255), (__m512i)(clip(output, v[1]) & 255));
    const __m512i b = _mm512_packs_epi32((__m512i)(clip(output, v[2]) & 255), (__m512i)(clip(output, v[3]) & 255));
    return _mm512_packus_epi16(a, b);
  }
  const __m512i low = _mm512_set1_epi16(static_cast<int16_t>(output.low)),
                high = _mm512_set1_epi16(static_cast<int16_t>(output.high));
  const __m512i a = _mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]), b = _mm512_packs_epi32((__m512i)v[2], (__m512i)v[3]);
  const __m512i byte = _mm512_set1_epi16(255);  // what is packed without a sign keeps the bits of signed bytes
  return _mm512_packus_epi16(_mm512_and_si512(_mm512_max_epi16(_mm512_min_epi16(a, high), low), byte),
                             _mm512_and_si512(_mm512_max_epi16(_mm512_min_epi16(b, high), low), byte));
}

// `count` of 16 bytes.
QDQTOOL_OP void store_bytes(uint8_t* y, __m128i bytes, size_t count) {
  _mm_mask_storeu_epi8(y, static_cast<__mmask16>((1u << (count < 16 ? count : 16)) - 1), bytes);
}

#include "kernels/requantize/rounding.inc"
#include "kernels/requantize/scaling.inc"

}  // namespace qdqtool::avx512

#undef QDQTOOL_OP
#endif
