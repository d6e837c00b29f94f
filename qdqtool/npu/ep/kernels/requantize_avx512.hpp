// The paths of requantize_x86.hpp on 16 sums at a time.
#pragma once
#include "requantize_x86.hpp"

#if QDQTOOL_X86

namespace qdqtool {

namespace avx512 {

// Where scalings come from: one for all lanes, or one for each.
struct OneScaling {
  static constexpr bool differs = false;
  const Scaling& s;
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i multiplier() const { return _mm512_set1_epi32(s.multiplier); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i shift() const { return _mm512_set1_epi32(s.shift); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i negative_multiplier() const { return _mm512_set1_epi32(s.negative_multiplier); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i negative_shift() const { return _mm512_set1_epi32(s.negative_shift); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512 scale() const { return _mm512_set1_ps(s.scale); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512 negative_slope() const { return _mm512_set1_ps(s.negative_slope); }
};

struct LaneScaling {
  static constexpr bool differs = true;
  LanePointers p;
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i multiplier() const { return _mm512_loadu_si512(p.multiplier); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i shift() const { return _mm512_loadu_si512(p.shift); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i negative_multiplier() const {
    return _mm512_loadu_si512(p.negative_multiplier);
  }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512i negative_shift() const { return _mm512_loadu_si512(p.negative_shift); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512 scale() const { return _mm512_loadu_ps(p.scale); }
  QDQTOOL_AVX512 QDQTOOL_INLINE __m512 negative_slope() const { return _mm512_loadu_ps(p.negative_slope); }
};

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i even_lanes(__m512i v) { return _mm512_srli_epi64(_mm512_slli_epi64(v, 32), 32); }
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i odd_lanes(__m512i v) { return _mm512_srli_epi64(v, 32); }

// The multipliers and shifts of one register of sums.
struct Chosen {
  __m512i m, k;

  template <class From>
  QDQTOOL_AVX512 QDQTOOL_INLINE Chosen(const From& from, bool has_negative, __m512i sum)
      : m(from.multiplier()), k(from.shift()) {
    if (!has_negative) return;
    const __mmask16 below = _mm512_movepi32_mask(sum);
    m = _mm512_mask_mov_epi32(m, below, from.negative_multiplier()),
    k = _mm512_mask_mov_epi32(k, below, from.negative_shift());
  }
};

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i hold(const Accumulator& accumulator, __m512i sum) {
  if (accumulator.wraps) {
    const __m128i count = _mm_cvtsi32_si128(32 - accumulator.bits);
    return _mm512_sra_epi32(_mm512_sll_epi32(sum, count), count);
  }
  const __m512i limit = _mm512_set1_epi32((1 << (accumulator.bits - 1)) - 1);
  return _mm512_max_epi32(_mm512_min_epi32(sum, limit), _mm512_sub_epi32(_mm512_set1_epi32(-1), limit));
}

// Sums of 32 bits, products of 32 bits.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i narrow(const Output& output, const Chosen& chosen, __m512i sum) {
  const __m512i one = _mm512_set1_epi32(1), k = chosen.k;
  const __m512i v = _mm512_mullo_epi32(sum, chosen.m), half = _mm512_srli_epi32(_mm512_sllv_epi32(one, k), 1);
  __m512i add = half;
  if (output.rounding != Rounding::half_up) {
    const __m512i first = _mm512_set1_epi32(output.zero_point_first ? static_cast<int32_t>(output.zero_point) : 0);
    const __m512i q = _mm512_add_epi32(_mm512_srav_epi32(v, k), first);
    if (output.rounding == Rounding::half_even) {
      add = _mm512_add_epi32(_mm512_sub_epi32(half, one), _mm512_and_si512(q, one));
    } else if (output.rounding == Rounding::half_away) {
      add = _mm512_add_epi32(half, _mm512_srai_epi32(q, 31));
    } else {
      add = _mm512_and_si512(_mm512_srai_epi32(q, 31), _mm512_sub_epi32(_mm512_add_epi32(half, half), one));
    }
  }
  return _mm512_srav_epi32(_mm512_add_epi32(v, add), k);
}

// Products of 64 bits, every shift at least 32, half_up: only the upper halves of the products are shifted.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i upper(const Scaling& s, __m512i sum) {
  const __m512i m = _mm512_set1_epi32(s.multiplier), half = _mm512_set1_epi64(int64_t{1} << (s.shift - 1));
  const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(sum, m), half);
  const __m512i odd = _mm512_add_epi64(_mm512_mul_epi32(odd_lanes(sum), m), half);
  return _mm512_srav_epi32(_mm512_mask_mov_epi32(odd_lanes(even), 0xAAAA, odd), _mm512_set1_epi32(s.shift - 32));
}

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i upper(const Chosen& chosen, __m512i sum) {
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i half_even = _mm512_srli_epi64(_mm512_sllv_epi64(one, even_lanes(chosen.k)), 1);
  const __m512i half_odd = _mm512_srli_epi64(_mm512_sllv_epi64(one, odd_lanes(chosen.k)), 1);
  const __m512i even = _mm512_add_epi64(_mm512_mul_epi32(sum, chosen.m), half_even);
  const __m512i odd = _mm512_add_epi64(_mm512_mul_epi32(odd_lanes(sum), odd_lanes(chosen.m)), half_odd);
  return _mm512_srav_epi32(_mm512_mask_mov_epi32(odd_lanes(even), 0xAAAA, odd),
                           _mm512_sub_epi32(chosen.k, _mm512_set1_epi32(32)));
}

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i round_wide(const Output& output, __m512i v, __m512i k) {
  const __m512i one = _mm512_set1_epi64(1), half = _mm512_srli_epi64(_mm512_sllv_epi64(one, k), 1);
  __m512i add = half;
  if (output.rounding != Rounding::half_up) {
    const __m512i first = _mm512_set1_epi64(output.zero_point_first ? output.zero_point : 0);
    const __m512i q = _mm512_add_epi64(_mm512_srav_epi64(v, k), first);
    if (output.rounding == Rounding::half_even) {
      add = _mm512_add_epi64(_mm512_sub_epi64(half, one), _mm512_and_si512(q, one));
    } else if (output.rounding == Rounding::half_away) {
      add = _mm512_add_epi64(half, _mm512_srai_epi64(q, 63));
    } else {
      add = _mm512_and_si512(_mm512_srai_epi64(q, 63), _mm512_sub_epi64(_mm512_add_epi64(half, half), one));
    }
  }
  return _mm512_srav_epi64(_mm512_add_epi64(v, add), k);
}

// Products of 64 bits, results that 32 bits hold.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i wide(const Output& output, const Chosen& chosen, __m512i sum) {
  const __m512i even = round_wide(output, _mm512_mul_epi32(sum, chosen.m), even_lanes(chosen.k));
  const __m512i odd = round_wide(output, _mm512_mul_epi32(odd_lanes(sum), odd_lanes(chosen.m)), odd_lanes(chosen.k));
  return _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
}

// The zero point is in the result where it is added first.
template <class From>
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i real(const Requantizer& r, const From& from, __m512i sum) {
  const Output& output = r.output;
  __m512 t = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), from.scale());
  if (r.has_negative) {
    t = _mm512_mask_mul_ps(t, _mm512_cmp_ps_mask(t, _mm512_setzero_ps(), _CMP_LT_OQ), t, from.negative_slope());
  }
  t = _mm512_div_ps(t, _mm512_set1_ps(r.y_scale));
  if (output.zero_point_first) t = _mm512_add_ps(t, _mm512_set1_ps(static_cast<float>(output.zero_point)));
  const __m512 limit = _mm512_set1_ps(1073741824.0f);  // 2^30: saturated or clamped in any case
  t = _mm512_max_ps(_mm512_min_ps(t, limit), _mm512_sub_ps(_mm512_setzero_ps(), limit));
  if (output.rounding == Rounding::half_even)
    return _mm512_cvt_roundps_epi32(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if (output.rounding == Rounding::toward_zero) return _mm512_cvttps_epi32(t);
  const __m512 half = _mm512_set1_ps(0.5f);
  const __m512i one = _mm512_set1_epi32(1);
  if (output.rounding == Rounding::half_up) {
    const __m512 whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    const __m512i n = _mm512_cvttps_epi32(whole);
    return _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(_mm512_sub_ps(t, whole), half, _CMP_GE_OQ), n, one);
  }
  const __m512 whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), rest = _mm512_sub_ps(t, whole);
  __m512i n = _mm512_cvttps_epi32(whole);
  n = _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(rest, half, _CMP_GE_OQ), n, one);
  return _mm512_mask_sub_epi32(n, _mm512_cmp_ps_mask(rest, _mm512_sub_ps(_mm512_setzero_ps(), half), _CMP_LE_OQ), n,
                               one);
}

// Rounded, with the zero point, neither clamped nor brought into the type.
template <size_t N, class From>
QDQTOOL_AVX512 QDQTOOL_INLINE void scale(const Requantizer& r, Requantizer::Path path, const From& from,
                                         __m512i (&sums)[N]) {
  if (r.accumulator.bits < 32) {
    QDQTOOL_UNROLL
    for (size_t i = 0; i < N; ++i) sums[i] = hold(r.accumulator, sums[i]);
  }
  if (path == Requantizer::Path::high) {
    if constexpr (!From::differs) {
      if (!r.has_negative) {
        QDQTOOL_UNROLL
        for (size_t i = 0; i < N; ++i) sums[i] = upper(from.s, sums[i]);
      }
    }
    if (From::differs || r.has_negative) {
      QDQTOOL_UNROLL
      for (size_t i = 0; i < N; ++i) sums[i] = upper(Chosen(from, r.has_negative, sums[i]), sums[i]);
    }
  } else if (path == Requantizer::Path::narrow) {
    QDQTOOL_UNROLL
    for (size_t i = 0; i < N; ++i) sums[i] = narrow(r.output, Chosen(from, r.has_negative, sums[i]), sums[i]);
  } else if (path == Requantizer::Path::wide) {
    QDQTOOL_UNROLL
    for (size_t i = 0; i < N; ++i) sums[i] = wide(r.output, Chosen(from, r.has_negative, sums[i]), sums[i]);
  } else {
    QDQTOOL_UNROLL
    for (size_t i = 0; i < N; ++i) sums[i] = real(r, from, sums[i]);
    if (r.output.zero_point_first) return;
  }
  const __m512i zero_point = _mm512_set1_epi32(static_cast<int32_t>(r.output.zero_point));
  QDQTOOL_UNROLL
  for (size_t i = 0; i < N; ++i) sums[i] = _mm512_add_epi32(sums[i], zero_point);
}

// Clamped; where results wrap, a side without a clamp stays open.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i clip(const Output& output, __m512i value) {
  if (!output.wraps || output.has_high)
    value = _mm512_min_epi32(value, _mm512_set1_epi32(static_cast<int32_t>(output.high)));
  if (!output.wraps || output.has_low)
    value = _mm512_max_epi32(value, _mm512_set1_epi32(static_cast<int32_t>(output.low)));
  return value;
}

// 16 bytes of the output type in the order of the lanes.
QDQTOOL_AVX512 QDQTOOL_INLINE __m128i bytes(const Output& output, __m512i value) {
  return _mm512_cvtepi32_epi8(clip(output, value));
}

// 64 bytes of the output type; value[j] holds four of them in each quarter: quarter i those from 16·i + 4·j on.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i bytes(const Output& output, const __m512i (&value)[4]) {
  if (output.wraps) {
    const __m512i byte = _mm512_set1_epi32(255);
    const __m512i a = _mm512_packs_epi32(_mm512_and_si512(clip(output, value[0]), byte),
                                         _mm512_and_si512(clip(output, value[1]), byte));
    const __m512i b = _mm512_packs_epi32(_mm512_and_si512(clip(output, value[2]), byte),
                                         _mm512_and_si512(clip(output, value[3]), byte));
    return _mm512_packus_epi16(a, b);
  }
  const __m512i low = _mm512_set1_epi16(static_cast<int16_t>(output.low)),
                high = _mm512_set1_epi16(static_cast<int16_t>(output.high));
  const __m512i a = _mm512_packs_epi32(value[0], value[1]), b = _mm512_packs_epi32(value[2], value[3]);
  const __m512i byte = _mm512_set1_epi16(255);  // what is packed without a sign keeps the bits of signed bytes
  return _mm512_packus_epi16(_mm512_and_si512(_mm512_max_epi16(_mm512_min_epi16(a, high), low), byte),
                             _mm512_and_si512(_mm512_max_epi16(_mm512_min_epi16(b, high), low), byte));
}

}  // namespace avx512

}  // namespace qdqtool
#endif
