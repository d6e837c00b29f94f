#include "depthwise.hpp"
#include "gemm_isa.hpp"
#include "requantize_avx512.hpp"

#if QDQTOOL_X86

namespace qdqtool {
namespace avx512 {

namespace {

QDQTOOL_AVX512 QDQTOOL_INLINE __m512i load(const void* from) { return _mm512_loadu_si512(from); }

// Four taps of 64 positions, in the order that interleaving leaves.
QDQTOOL_AVX512 QDQTOOL_INLINE void gather(const uint8_t* bytes, const int64_t* offsets, __m512i (&columns)[4]) {
  const __m512i a = load(bytes + offsets[0]), b = load(bytes + offsets[1]), c = load(bytes + offsets[2]),
                d = load(bytes + offsets[3]);
  const __m512i low_ab = _mm512_unpacklo_epi8(a, b), high_ab = _mm512_unpackhi_epi8(a, b);
  const __m512i low_cd = _mm512_unpacklo_epi8(c, d), high_cd = _mm512_unpackhi_epi8(c, d);
  columns[0] = _mm512_unpacklo_epi16(low_ab, low_cd), columns[1] = _mm512_unpackhi_epi16(low_ab, low_cd);
  columns[2] = _mm512_unpacklo_epi16(high_ab, high_cd), columns[3] = _mm512_unpackhi_epi16(high_ab, high_cd);
}

// `fixed` groups of taps, or as many as there are where it is 0.
template <size_t fixed>
QDQTOOL_AVX512 void sweep(const DepthwiseTask& t, size_t channel) {
  const Epilogue& e = t.epilogue;
  const Requantizer& r = *e.requantizer;
  const size_t groups = fixed ? fixed : t.groups;
  const uint8_t* weights = t.packed + channel * t.packed_bytes;
  const __m512i offset = _mm512_set1_epi32(e.row_offsets[channel]);
  const __m512i factor = _mm512_set1_epi32(e.row_factors ? e.row_factors[channel] : 0);
  const auto behind = static_cast<int>(groups * kGroup - t.taps);  // taps that the last group lacks
  const __m128i x_shift = _mm_cvtsi32_si128(e.x_shift);
  alignas(64) int32_t stored[kTile];
  for (size_t at = 0; at < t.positions; at += kTile) {
    __m512i sums[4], seen[4];
    QDQTOOL_UNROLL
    for (size_t j = 0; j < 4; ++j) sums[j] = seen[j] = _mm512_setzero_si512();
    for (size_t g = 0; g < groups; ++g) {
      __m512i columns[4];
      gather(t.bytes + at, t.offsets + g * kGroup, columns);
      int32_t four;
      __builtin_memcpy(&four, weights + g * kGroup, sizeof four);
      const __m512i row = _mm512_set1_epi32(four);
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], columns[j], row);
      if (!e.row_factors) continue;
      const __m512i ones = _mm512_set1_epi32(g + 1 == groups ? 0x01010101 >> 8 * behind : 0x01010101);
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) seen[j] = _mm512_dpbusd_epi32(seen[j], columns[j], ones);
    }
    if (e.x_shift) {
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] = _mm512_sll_epi32(sums[j], x_shift);
    }
    if (e.row_factors) {
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] = _mm512_add_epi32(sums[j], _mm512_mullo_epi32(factor, seen[j]));
    }
    uint8_t* y = t.y + channel * t.y_stride + at;
    if (e.path == Requantizer::Path::scalar) {
      Epilogue plain = e;
      plain.x_shift = 0, plain.row_factors = nullptr;
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) _mm512_store_si512(stored + j * kLanes, sums[j]);
      finish_row(Form::bytes_avx512, plain, channel, kTile, stored, y);
      continue;
    }
    QDQTOOL_UNROLL
    for (size_t j = 0; j < 4; ++j) sums[j] = _mm512_add_epi32(sums[j], offset);
    scale(r, e.path, OneScaling{r.scaling(e.first_row + channel)}, sums);
    _mm512_storeu_si512(y, bytes(r.output, sums));
  }
}

QDQTOOL_AVX512 void flip(const DepthwiseTask& t) {
  if (!t.how.flip) return;
  const __m512i bits = _mm512_set1_epi8(static_cast<char>(t.how.flip));
  for (size_t i = 0; i < t.size; i += 64) {
    _mm512_storeu_si512(t.bytes + i, _mm512_xor_si512(load(t.bytes + i), bits));
  }
}

}  // namespace

void depthwise(const DepthwiseTask& task) {
  flip(task);
  for (size_t channel = 0; channel < task.channels; ++channel) {
    switch (task.groups) {
      case 1: sweep<1>(task, channel); break;
      case 2: sweep<2>(task, channel); break;
      case 3: sweep<3>(task, channel); break;
      default: sweep<0>(task, channel);
    }
  }
}

}  // namespace avx512
}  // namespace qdqtool
#endif
