// Quotients rounded in float64 where that is sure to be right: one that is known within 2^-29 has its own neighbour unless it lies so
// near to where rounding goes the other way; then, and only then, exact integers decide.
#pragma once
#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

// Whether quotients of at most `most` are looked at in float64: the bound keeps their error, 2^-51 of them, below 2^-31, and what
// near_round() adds is 2^-31.
inline bool is_nearly_known(const Output& output, double most) {
  const bool turns = output.rounding == Rounding::toward_zero && output.zero_point_first;  // rounds by the sign behind z
  return !output.wraps && !turns && most < static_cast<double>(1 << 20);
}

// How near to where rounding turns a quotient is not sure.
constexpr double kNear = 1.0 / (1 << 28);

// round(q) where that is sure; else `unsure` becomes other than 0. |q| < 2^21.
QDQTOOL_INLINE int32_t near_round(double q, bool toward_zero, int32_t& unsure) {
  constexpr double large = 1 << 22;
  const double moved = (toward_zero ? q : q + 0.5) + large;  // above 0, where a cast rounds down
  const auto below = static_cast<int32_t>(moved - kNear), above = static_cast<int32_t>(moved + kNear);
  unsure |= below ^ above;
  return above - (1 << 22) + static_cast<int32_t>(toward_zero & (q < 0));
}

}  // namespace qdqtool
