#include "kernels/products/depthwise.hpp"
#include "kernels/products/gemm_isa.hpp"
#include "kernels/requantize/lanes_avx512.hpp"

#if QDQTOOL_X86

namespace qdqtool {
namespace avx512 {

namespace {

// Four taps of 64 positions, in the order that interleaving leaves.
QDQTOOL_AVX512 QDQTOOL_INLINE void gather(const uint8_t* bytes, const int64_t* offsets, __m512i (&columns)[4]) {
  const __m512i a = _mm512_loadu_si512(bytes + offsets[0]), b = _mm512_loadu_si512(bytes + offsets[1]);
  const __m512i c = _mm512_loadu_si512(bytes + offsets[2]), d = _mm512_loadu_si512(bytes + offsets[3]);
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
  const auto behind = static_cast<int>(groups * kGroup - t.taps);  // taps that the last group lacks
  alignas(64) int32_t stored[kTile];
  for (size_t at = 0; at < t.positions; at += kTile) {
    Int32s sums[4] = {}, seen[4] = {};
    for (size_t g = 0; g < groups; ++g) {
      __m512i columns[4];
      gather(t.bytes + at, t.offsets + g * kGroup, columns);
      const auto row = (__m512i)four_bytes(weights + g * kGroup);
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] = (Int32s)_mm512_dpbusd_epi32((__m512i)sums[j], columns[j], row);
      if (!e.row_factors) continue;
      const __m512i ones = _mm512_set1_epi32(g + 1 == groups ? 0x01010101 >> 8 * behind : 0x01010101);
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) seen[j] = (Int32s)_mm512_dpbusd_epi32((__m512i)seen[j], columns[j], ones);
    }
    if (e.x_shift) {
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] = sums[j] << e.x_shift;
    }
    if (e.row_factors) {
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) sums[j] += multiply_low(seen[j], lanes_of(e.row_factors[channel]));
    }
    uint8_t* y = t.y + channel * t.y_stride + at;
    if (e.path == Requantizer::Path::scalar) {
      Epilogue plain = e;
      plain.x_shift = 0, plain.row_factors = nullptr;
      QDQTOOL_UNROLL
      for (size_t j = 0; j < 4; ++j) store(stored + j * kLanes, sums[j]);
      finish_row(Form::bytes_avx512, plain, channel, kTile, stored, y);
      continue;
    }
    QDQTOOL_UNROLL
    for (size_t j = 0; j < 4; ++j) sums[j] += e.row_offsets[channel];
    scale(r, e.path, r.scaling(e.first_row + channel), sums);
    _mm512_storeu_si512(y, bytes(r.output, sums));
  }
}

QDQTOOL_AVX512 void flip(const DepthwiseTask& t) {
  if (!t.how.flip) return;
  const __m512i bits = _mm512_set1_epi8(static_cast<char>(t.how.flip));
  for (size_t i = 0; i < t.size; i += 64) {
    _mm512_storeu_si512(t.bytes + i, _mm512_xor_si512(_mm512_loadu_si512(t.bytes + i), bits));
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
