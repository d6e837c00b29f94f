// Sums of 64 bits to elements, eight at a time, in AVX-512; the formulas are those of sum_output.cc and rounding.inc.
#include "kernels/requantize/lanes_avx512.hpp"
#include "kernels/requantize/sum_output.hpp"

#include <algorithm>

#if QDQTOOL_X86

namespace qdqtool {
namespace avx512 {

namespace {

constexpr int kLowBits = 16;

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i eight_of(const std::vector<int64_t>& entries, size_t channel, size_t step) {
  if (entries.size() == 1 || step == 0) return _mm512_set1_epi64(entries[entries.size() == 1 ? 0 : channel]);
  return _mm512_loadu_si512(entries.data() + channel);
}

QDQTOOL_AVX512 QDQTOOL_INLINE __m256 eight_of(const std::vector<float>& entries, size_t channel, size_t step) {
  if (entries.size() == 1 || step == 0) return _mm256_set1_ps(entries[entries.size() == 1 ? 0 : channel]);
  return _mm256_loadu_ps(entries.data() + channel);
}

// The sums with their bias, as the accumulator holds them.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i held_sums(const RowOfSums& e, size_t at) {
  __m512i sum = _mm512_sll_epi64(_mm512_loadu_si512(e.sums + at), _mm_cvtsi32_si128(e.x_shift));
  const std::vector<int32_t>& bias = e.scalings.bias;
  if (!bias.empty() && e.step) {
    const auto* from = reinterpret_cast<const __m256i*>(bias.data() + e.channel + at);
    sum = _mm512_add_epi64(sum, _mm512_cvtepi32_epi64(_mm256_loadu_si256(from)));
  } else if (!bias.empty()) {
    sum = _mm512_add_epi64(sum, _mm512_set1_epi64(bias[e.channel]));
  }
  const Accumulator& accumulator = e.requantizer.accumulator;
  if (accumulator.bits == 64) return sum;
  if (accumulator.wraps) {
    const __m128i beyond = _mm_cvtsi32_si128(64 - accumulator.bits);
    return _mm512_sra_epi64(_mm512_sll_epi64(sum, beyond), beyond);
  }
  const int64_t high = (int64_t{1} << (accumulator.bits - 1)) - 1;
  return _mm512_max_epi64(_mm512_min_epi64(sum, _mm512_set1_epi64(high)), _mm512_set1_epi64(-high - 1));
}

// Plain and split: high·2^16 + low, or the product itself in `high` and nothing in `low`.
QDQTOOL_AVX512 QDQTOOL_INLINE Int64s rounded(const RowOfSums& e, size_t at, __m512i sum) {
  const SumScalings& s = e.scalings;
  const Output& output = e.requantizer.output;
  const size_t channel = e.channel + at * e.step;
  __m512i chosen = eight_of(s.multiplier, channel, e.step), shift = eight_of(s.shift, channel, e.step);
  if (e.requantizer.has_negative) {
    const __mmask8 is_below = _mm512_movepi64_mask(sum);
    chosen = _mm512_mask_mov_epi64(chosen, is_below, eight_of(s.negative_multiplier, channel, e.step));
    shift = _mm512_mask_mov_epi64(shift, is_below, eight_of(s.negative_shift, channel, e.step));
  }
  const Int64s m = (Int64s)chosen, k = (Int64s)shift, first = Int64s{} + (output.zero_point_first ? output.zero_point : 0);
  if (e.path != SumPath::split) return round_shifted(output.rounding, (Int64s)sum * m, k, first);
  const Int64s high = ((Int64s)sum >> kLowBits) * m, low = ((Int64s)sum & ((1 << kLowBits) - 1)) * m, rest = k - kLowBits;
  const Added<Int64s> added(output.rounding, half_of(rest), shift_right(high + (low >> kLowBits), rest) + first);
  return shift_right(high + added.whole + ((low + added.less) >> kLowBits), rest);
}

// round_float() of requantize.hpp: in float64, where a float32 and a half are exact or no fraction is left.
QDQTOOL_AVX512 QDQTOOL_INLINE __m512i rounded_float(const RowOfSums& e, size_t at, __m512i sum) {
  const Requantizer& r = e.requantizer;
  __m256 t = _mm256_mul_ps(_mm512_cvtepi64_ps(sum), eight_of(e.scalings.scale, e.channel + at * e.step, e.step));
  if (r.has_negative) {
    const __mmask8 below = _mm256_cmp_ps_mask(t, _mm256_setzero_ps(), _CMP_LT_OQ);
    t = _mm256_mask_mul_ps(t, below, t, eight_of(e.scalings.negative_slope, e.channel + at * e.step, e.step));
  }
  t = _mm256_div_ps(t, _mm256_set1_ps(r.y_scale));
  if (r.output.zero_point_first) t = _mm256_add_ps(t, _mm256_set1_ps(static_cast<float>(r.output.zero_point)));
  __m512d whole = _mm512_cvtps_pd(t);
  constexpr int exact = _MM_FROUND_NO_EXC;
  const __m512d half = _mm512_set1_pd(0.5);
  switch (r.output.rounding) {
    case Rounding::half_up:
      whole = _mm512_roundscale_pd(_mm512_add_pd(whole, half), _MM_FROUND_TO_NEG_INF | exact);
      break;
    case Rounding::half_even: whole = _mm512_roundscale_pd(whole, _MM_FROUND_TO_NEAREST_INT | exact); break;
    case Rounding::half_away: {
      const __m512d away = _mm512_or_pd(half, _mm512_and_pd(whole, _mm512_set1_pd(-0.0)));
      whole = _mm512_roundscale_pd(_mm512_add_pd(whole, away), _MM_FROUND_TO_ZERO | exact);
      break;
    }
    case Rounding::toward_zero: whole = _mm512_roundscale_pd(whole, _MM_FROUND_TO_ZERO | exact); break;
  }
  const __m512d limit = _mm512_set1_pd(4611686018427387904.0);  // 2^62
  whole = _mm512_max_pd(_mm512_min_pd(whole, limit), _mm512_sub_pd(_mm512_setzero_pd(), limit));
  return _mm512_cvttpd_epi64(whole);
}

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i fitted(const Output& output, __m512i value) {
  if (output.has_low) value = _mm512_max_epi64(value, _mm512_set1_epi64(output.low));
  if (output.has_high) value = _mm512_min_epi64(value, _mm512_set1_epi64(output.high));
  if (output.wraps) return value;  // the low bits are what it is stored as
  value = _mm512_max_epi64(value, _mm512_set1_epi64(output.type_low));
  return _mm512_min_epi64(value, _mm512_set1_epi64(output.type_high));
}

}  // namespace

QDQTOOL_AVX512 void store_row(const RowOfSums& e, void* y) {
  const Output& output = e.requantizer.output;
  const bool is_real = e.path == SumPath::real, is_wide = size_of(output.type) == 2;
  const __m512i zero_point = _mm512_set1_epi64(is_real && output.zero_point_first ? 0 : output.zero_point);
  for (size_t at = 0; at < e.count; at += 8) {
    const __m512i sum = held_sums(e, at);
    const __m512i value = _mm512_add_epi64(is_real ? rounded_float(e, at, sum) : (__m512i)rounded(e, at, sum), zero_point);
    const auto mask = static_cast<__mmask8>((1u << std::min<size_t>(8, e.count - at)) - 1);
    if (is_wide) {
      _mm512_mask_cvtepi64_storeu_epi16(static_cast<uint16_t*>(y) + at, mask, fitted(output, value));
    } else {
      _mm512_mask_cvtepi64_storeu_epi8(static_cast<uint8_t*>(y) + at, mask, fitted(output, value));
    }
  }
}

}  // namespace avx512
}  // namespace qdqtool
#endif
