#include "kernels/products/depthwise.hpp"
#include "kernels/products/gemm_isa.hpp"
#include "kernels/requantize/lanes_avx2.hpp"

#if QDQTOOL_X86

namespace qdqtool {
namespace avx2 {

namespace {

QDQTOOL_AVX2 QDQTOOL_INLINE __m256i words(const int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

template <size_t fixed>
QDQTOOL_AVX2 void sweep(const DepthwiseTask& t, size_t channel) {
  const Epilogue& e = t.epilogue;
  const Requantizer& r = *e.requantizer;
  const size_t groups = fixed ? fixed : t.groups;
  const uint8_t* weights = t.packed + channel * t.packed_bytes;
  alignas(32) int32_t stored[kTile] = {};
  for (size_t at = 0; at < t.positions; at += kLanes) {
    Int32s sums[2] = {};
    for (size_t g = 0; g < groups; ++g) {
      const __m256i a = words(t.values + at + t.offsets[g * 2]), b = words(t.values + at + t.offsets[g * 2 + 1]);
      const auto row = (__m256i)four_bytes(weights + g * 4);
      sums[0] += (Int32s)_mm256_madd_epi16(row, _mm256_unpacklo_epi16(a, b));
      sums[1] += (Int32s)_mm256_madd_epi16(row, _mm256_unpackhi_epi16(a, b));
    }
    uint8_t* y = t.y + channel * t.y_stride + at;
    if (e.path == Requantizer::Path::scalar) {
      store(stored, sums[0]), store(stored + kCount, sums[1]);
      finish_row(Form::words_avx2, e, channel, kLanes, stored, y);
      continue;
    }
    QDQTOOL_UNROLL
    for (size_t h = 0; h < 2; ++h) sums[h] = (sums[h] << e.x_shift) + e.row_offsets[channel];
    scale(r, e.path, r.scaling(e.first_row + channel), sums);
    store_bytes(y, bytes(r.output, sums), kLanes);
  }
}

QDQTOOL_AVX2 void widen(const DepthwiseTask& t) {
  const __m256i zero_point = _mm256_set1_epi16(static_cast<int16_t>(t.how.subtract));
  for (size_t i = 0; i < t.size; i += kLanes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(t.bytes + i));
    const __m256i values = t.how.is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(t.values + i), _mm256_sub_epi16(values, zero_point));
  }
}

}  // namespace

void depthwise(const DepthwiseTask& task) {
  widen(task);
  for (size_t channel = 0; channel < task.channels; ++channel) {
    task.groups == 5 ? sweep<5>(task, channel) : sweep<0>(task, channel);
  }
}

}  // namespace avx2
}  // namespace qdqtool
#endif
