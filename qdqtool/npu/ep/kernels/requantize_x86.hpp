// Requantizer in vector registers: what requantize_avx512.hpp and requantize_avx2.hpp share.
//
// Rounding is a floor of something added before the shift. With v = sum·m, k = shift >= 1, q = v >> k (a floor) and z'
// the zero point where it is added first, else 0:
//   half_up      (v + 2^(k-1)) >> k
//   half_even    (v + 2^(k-1) - 1 + parity(q + z')) >> k
//   half_away    (v + 2^(k-1) + (q + z' < 0 ? -1 : 0)) >> k
//   toward_zero  (v + (q + z' < 0 ? 2^k - 1 : 0)) >> k
// since q + z' is below zero exactly when v / 2^k + z' is.
#pragma once
#include <limits>

#include "requantize.hpp"

// Loops over registers must disappear.
#if defined(__clang__)
#define QDQTOOL_UNROLL _Pragma("unroll")
#else
#define QDQTOOL_UNROLL _Pragma("GCC unroll 8")
#endif

#if QDQTOOL_X86
// gcc 12 warns of its own headers where an intrinsic leaves lanes undefined (gcc bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace qdqtool {

// Scalings of successive lanes.
struct LanePointers {
  const int32_t *multiplier, *shift, *negative_multiplier, *negative_shift;
  const float *scale, *negative_slope;
};

}  // namespace qdqtool
#endif
