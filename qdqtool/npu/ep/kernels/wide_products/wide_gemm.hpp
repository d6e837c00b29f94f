// Sums of products of matrices of 8- and 16-bit integers, exact in 64 bits: rows [M, K] and columns [K, N].
//
// Every integer is packed in 16 signed bits (uint16 less 32768), its zero point kept: what that adds to a sum are sums of
// rows and columns. Two products are added in 32 bits at a time, as many pairs as 32 bits certainly hold, then 64 bits
// take them. Where both factors have 16 bits the rows are split, x = high·256 + low, so that no product exceeds 2^23.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/shared/integers.hpp"

namespace qdqtool {

constexpr size_t kWideLanes = 16;  // columns of a panel
constexpr size_t kWideRows = 8;    // rows computed together, at most

// An integer as it is packed; int16 may be one that is packed already.
template <class T>
int16_t word_of(T value) {
  return static_cast<int16_t>(std::is_same<T, uint16_t>::value ? int32_t{value} - 32768 : int32_t{value});
}
int64_t word_zero_point(DataType type, int64_t zero_point);  // the packed one
int64_t word_most(DataType type);                            // the largest |packed integer|

inline size_t pairs_of(size_t depth) { return (depth + 1) / 2; }

// Packed rows: `pitch` words from one to the next, with a 0 behind an odd depth. `low` is null where they are not split.
struct WordRows {
  const int16_t* high = nullptr;
  const int16_t* low = nullptr;
  size_t pitch = 0;
};

// How two factors are multiplied.
struct WordForm {
  bool is_split = false;
  size_t limit = 1;  // pairs that 32 bits hold
};
WordForm word_form(DataType rows, DataType columns);

// Words of `count` rows of `depth` integers → high, low (unless null), and their sums (unless null).
template <class T>
void pack_words(const T* source, size_t count, size_t depth, int16_t* high, int16_t* low, int64_t* sums) {
  const size_t pitch = 2 * pairs_of(depth);
  for (size_t m = 0; m < count; ++m, source += depth, high += pitch) {
    if (depth % 2) high[depth] = 0;
    for (size_t k = 0; k < depth; ++k) high[k] = word_of(source[k]);
    if (sums) {
      int64_t sum = 0;
      for (size_t k = 0; k < depth; ++k) sum += high[k];
      sums[m] = sum;
    }
    if (!low) continue;
    if (depth % 2) low[depth] = 0;
    for (size_t k = 0; k < depth; ++k) low[k] = static_cast<int16_t>(high[k] & 255);
    for (size_t k = 0; k < depth; ++k) high[k] = static_cast<int16_t>(high[k] >> 8);
    low += pitch;
  }
}

#if QDQTOOL_X86
namespace avx2 {
void sum_words(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs, int32_t* sums);
void add_block(size_t height, const int32_t* sums, const int32_t* offsets, const float* scales, float* totals);
// sums[i] += part[i]·2^shift, for a multiple of kWideLanes.
void add_part(const int32_t* part, size_t count, int shift, int64_t* sums);
// pack_panel() of kWideLanes columns of bytes, or of words.
void pack_bytes(const uint8_t* source, size_t stride, size_t depth, bool is_signed, int16_t* panel);
void pack_words(const uint16_t* source, size_t stride, size_t depth, bool is_signed, int16_t* panel);
}  // namespace avx2
namespace avx512 {
void sum_words(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs, int32_t* sums);
}  // namespace avx512
#endif

// A panel: [pairs, kWideLanes, 2] words of up to kWideLanes columns, the others 0. Row k of the matrix begins at source +
// k·stride.
template <class T>
void pack_panel(Isa isa, const T* source, size_t stride, size_t depth, size_t width, int16_t* panel) {
#if QDQTOOL_X86
  if (width == kWideLanes && isa != Isa::portable) {
    constexpr bool is_signed = std::is_signed<T>::value;
    if constexpr (sizeof(T) == 1)
      return avx2::pack_bytes(reinterpret_cast<const uint8_t*>(source), stride, depth, is_signed, panel);
    else
      return avx2::pack_words(reinterpret_cast<const uint16_t*>(source), stride, depth, is_signed, panel);
  }
#endif
  (void)isa;
  if (width < kWideLanes || depth % 2) std::fill(panel, panel + pairs_of(depth) * kWideLanes * 2, int16_t{0});
  for (size_t k = 0; k < depth; ++k) {
    const T* row = source + k * stride;
    int16_t* to = panel + k / 2 * kWideLanes * 2 + k % 2;
    if (width == kWideLanes) {
      for (size_t lane = 0; lane < kWideLanes; ++lane) to[lane * 2] = word_of(row[lane]);
    } else {
      for (size_t lane = 0; lane < width; ++lane) to[lane * 2] = word_of(row[lane]);
    }
  }
}

// sums[r, lane] of `height` rows, at most kWideRows, from row `first` on, and the panel.
void multiply_words(Isa isa, const WordForm& form, const WordRows& rows, size_t first, size_t height,
                    const int16_t* panel, size_t pairs, int64_t* sums);

// Σ_k of the packed values of each lane.
void sum_panel(const int16_t* panel, size_t pairs, int64_t* sums);

// Sums of one depth in 32 bits, which hold them: sums[r·kWideLanes + lane].
using SumWords = void (*)(const int16_t* rows, size_t pitch, size_t height, const int16_t* panel, size_t pairs,
                          int32_t* sums);
SumWords sum_words_of(Isa isa);

// totals[i] += float(sums[i] + offsets[lane])·scales[lane], each operation rounded to float32, for `height` rows of
// kWideLanes; a sum and an offset may leave 32 bits together, what they stand for does not.
using AddBlock = void (*)(size_t height, const int32_t* sums, const int32_t* offsets, const float* scales,
                          float* totals);
AddBlock add_block_of(Isa isa);

}  // namespace qdqtool
