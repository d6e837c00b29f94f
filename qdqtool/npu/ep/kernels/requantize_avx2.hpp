// The paths of requantize_x86.hpp on 8 sums at a time.
#pragma once
#include "requantize_x86.hpp"

#if QDQTOOL_X86

namespace qdqtool {

namespace avx2 {

struct OneScaling {
  static constexpr bool differs = false;
  const Scaling& s;
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i multiplier() const { return _mm256_set1_epi32(s.multiplier); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i shift() const { return _mm256_set1_epi32(s.shift); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i negative_multiplier() const { return _mm256_set1_epi32(s.negative_multiplier); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i negative_shift() const { return _mm256_set1_epi32(s.negative_shift); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256 scale() const { return _mm256_set1_ps(s.scale); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256 negative_slope() const { return _mm256_set1_ps(s.negative_slope); }
};

struct LaneScaling {
  static constexpr bool differs = true;
  LanePointers p;
  static QDQTOOL_AVX2 QDQTOOL_INLINE __m256i load(const int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i multiplier() const { return load(p.multiplier); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i shift() const { return load(p.shift); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i negative_multiplier() const { return load(p.negative_multiplier); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256i negative_shift() const { return load(p.negative_shift); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256 scale() const { return _mm256_loadu_ps(p.scale); }
  QDQTOOL_AVX2 QDQTOOL_INLINE __m256 negative_slope() const { return _mm256_loadu_ps(p.negative_slope); }
};

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i even_lanes(__m256i v) { return _mm256_srli_epi64(_mm256_slli_epi64(v, 32), 32); }
QDQTOOL_AVX2 QDQTOOL_INLINE __m256i odd_lanes(__m256i v) { return _mm256_srli_epi64(v, 32); }

struct Chosen {
  __m256i m, k;

  template <class From>
  QDQTOOL_AVX2 QDQTOOL_INLINE Chosen(const From& from, bool has_negative, __m256i sum)
      : m(from.multiplier()), k(from.shift()) {
    if (!has_negative) return;
    const __m256i below = _mm256_srai_epi32(sum, 31);
    m = _mm256_blendv_epi8(m, from.negative_multiplier(), below),
    k = _mm256_blendv_epi8(k, from.negative_shift(), below);
  }
};

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i hold(const Accumulator& accumulator, __m256i sum) {
  if (accumulator.wraps) {
    const __m128i count = _mm_cvtsi32_si128(32 - accumulator.bits);
    return _mm256_sra_epi32(_mm256_sll_epi32(sum, count), count);
  }
  const __m256i limit = _mm256_set1_epi32((1 << (accumulator.bits - 1)) - 1);
  return _mm256_max_epi32(_mm256_min_epi32(sum, limit), _mm256_sub_epi32(_mm256_set1_epi32(-1), limit));
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i narrow(const Output& output, const Chosen& chosen, __m256i sum) {
  const __m256i one = _mm256_set1_epi32(1), k = chosen.k;
  const __m256i v = _mm256_mullo_epi32(sum, chosen.m), half = _mm256_srli_epi32(_mm256_sllv_epi32(one, k), 1);
  __m256i add = half;
  if (output.rounding != Rounding::half_up) {
    const __m256i first = _mm256_set1_epi32(output.zero_point_first ? static_cast<int32_t>(output.zero_point) : 0);
    const __m256i q = _mm256_add_epi32(_mm256_srav_epi32(v, k), first);
    if (output.rounding == Rounding::half_even) {
      add = _mm256_add_epi32(_mm256_sub_epi32(half, one), _mm256_and_si256(q, one));
    } else if (output.rounding == Rounding::half_away) {
      add = _mm256_add_epi32(half, _mm256_srai_epi32(q, 31));
    } else {
      add = _mm256_and_si256(_mm256_srai_epi32(q, 31), _mm256_sub_epi32(_mm256_add_epi32(half, half), one));
    }
  }
  return _mm256_srav_epi32(_mm256_add_epi32(v, add), k);
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i upper(const Scaling& s, __m256i sum) {
  const __m256i m = _mm256_set1_epi32(s.multiplier), half = _mm256_set1_epi64x(int64_t{1} << (s.shift - 1));
  const __m256i even = _mm256_add_epi64(_mm256_mul_epi32(sum, m), half);
  const __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(odd_lanes(sum), m), half);
  return _mm256_sra_epi32(_mm256_blend_epi32(odd_lanes(even), odd, 0xAA), _mm_cvtsi32_si128(s.shift - 32));
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i upper(const Chosen& chosen, __m256i sum) {
  const __m256i one = _mm256_set1_epi64x(1);
  const __m256i half_even = _mm256_srli_epi64(_mm256_sllv_epi64(one, even_lanes(chosen.k)), 1);
  const __m256i half_odd = _mm256_srli_epi64(_mm256_sllv_epi64(one, odd_lanes(chosen.k)), 1);
  const __m256i even = _mm256_add_epi64(_mm256_mul_epi32(sum, chosen.m), half_even);
  const __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(odd_lanes(sum), odd_lanes(chosen.m)), half_odd);
  return _mm256_srav_epi32(_mm256_blend_epi32(odd_lanes(even), odd, 0xAA),
                           _mm256_sub_epi32(chosen.k, _mm256_set1_epi32(32)));
}

// v >> k with the sign: there is no instruction for it.
QDQTOOL_AVX2 QDQTOOL_INLINE __m256i shift_wide(__m256i v, __m256i k) {
  const __m256i sign = _mm256_set1_epi64x(std::numeric_limits<int64_t>::min());
  return _mm256_sub_epi64(_mm256_srlv_epi64(_mm256_xor_si256(v, sign), k), _mm256_srlv_epi64(sign, k));
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i sign_wide(__m256i v) { return _mm256_cmpgt_epi64(_mm256_setzero_si256(), v); }

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i round_wide(const Output& output, __m256i v, __m256i k) {
  const __m256i one = _mm256_set1_epi64x(1), half = _mm256_srli_epi64(_mm256_sllv_epi64(one, k), 1);
  __m256i add = half;
  if (output.rounding != Rounding::half_up) {
    const __m256i first = _mm256_set1_epi64x(output.zero_point_first ? output.zero_point : 0);
    const __m256i q = _mm256_add_epi64(shift_wide(v, k), first);
    if (output.rounding == Rounding::half_even) {
      add = _mm256_add_epi64(_mm256_sub_epi64(half, one), _mm256_and_si256(q, one));
    } else if (output.rounding == Rounding::half_away) {
      add = _mm256_add_epi64(half, sign_wide(q));
    } else {
      add = _mm256_and_si256(sign_wide(q), _mm256_sub_epi64(_mm256_add_epi64(half, half), one));
    }
  }
  return shift_wide(_mm256_add_epi64(v, add), k);
}

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i wide(const Output& output, const Chosen& chosen, __m256i sum) {
  const __m256i even = round_wide(output, _mm256_mul_epi32(sum, chosen.m), even_lanes(chosen.k));
  const __m256i odd = round_wide(output, _mm256_mul_epi32(odd_lanes(sum), odd_lanes(chosen.m)), odd_lanes(chosen.k));
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

template <class From>
QDQTOOL_AVX2 QDQTOOL_INLINE __m256i real(const Requantizer& r, const From& from, __m256i sum) {
  const Output& output = r.output;
  __m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), from.scale());
  if (r.has_negative) {
    t = _mm256_blendv_ps(t, _mm256_mul_ps(t, from.negative_slope()), _mm256_cmp_ps(t, _mm256_setzero_ps(), _CMP_LT_OQ));
  }
  t = _mm256_div_ps(t, _mm256_set1_ps(r.y_scale));
  if (output.zero_point_first) t = _mm256_add_ps(t, _mm256_set1_ps(static_cast<float>(output.zero_point)));
  const __m256 limit = _mm256_set1_ps(1073741824.0f);  // 2^30: saturated or clamped in any case
  t = _mm256_max_ps(_mm256_min_ps(t, limit), _mm256_sub_ps(_mm256_setzero_ps(), limit));
  if (output.rounding == Rounding::half_even) {
    return _mm256_cvttps_epi32(_mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  if (output.rounding == Rounding::toward_zero) return _mm256_cvttps_epi32(t);
  const __m256 half = _mm256_set1_ps(0.5f);
  if (output.rounding == Rounding::half_up) {
    const __m256 whole = _mm256_floor_ps(t);
    const __m256i up = _mm256_castps_si256(_mm256_cmp_ps(_mm256_sub_ps(t, whole), half, _CMP_GE_OQ));
    return _mm256_sub_epi32(_mm256_cvttps_epi32(whole), up);
  }
  const __m256 whole = _mm256_round_ps(t, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), rest = _mm256_sub_ps(t, whole);
  const __m256i up = _mm256_castps_si256(_mm256_cmp_ps(rest, half, _CMP_GE_OQ));
  const __m256i down = _mm256_castps_si256(_mm256_cmp_ps(rest, _mm256_sub_ps(_mm256_setzero_ps(), half), _CMP_LE_OQ));
  return _mm256_add_epi32(_mm256_sub_epi32(_mm256_cvttps_epi32(whole), up), down);
}

template <size_t N, class From>
QDQTOOL_AVX2 QDQTOOL_INLINE void scale(const Requantizer& r, Requantizer::Path path, const From& from,
                                       __m256i (&sums)[N]) {
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
  const __m256i zero_point = _mm256_set1_epi32(static_cast<int32_t>(r.output.zero_point));
  QDQTOOL_UNROLL
  for (size_t i = 0; i < N; ++i) sums[i] = _mm256_add_epi32(sums[i], zero_point);
}

// Clamped, and only the low byte of each lane, so that any pack brings it out unchanged.
QDQTOOL_AVX2 QDQTOOL_INLINE __m256i low_byte(const Output& output, __m256i value) {
  if (!output.wraps || output.has_high)
    value = _mm256_min_epi32(value, _mm256_set1_epi32(static_cast<int32_t>(output.high)));
  if (!output.wraps || output.has_low)
    value = _mm256_max_epi32(value, _mm256_set1_epi32(static_cast<int32_t>(output.low)));
  return _mm256_and_si256(value, _mm256_set1_epi32(255));
}

// 16 bytes of the output type; a and b hold four of them in each half: a 0-3 and 8-11, b 4-7 and 12-15.
QDQTOOL_AVX2 QDQTOOL_INLINE __m128i bytes(const Output& output, __m256i a, __m256i b) {
  const __m256i words = _mm256_packs_epi32(low_byte(output, a), low_byte(output, b));
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0x08));
}

}  // namespace avx2

}  // namespace qdqtool
#endif
