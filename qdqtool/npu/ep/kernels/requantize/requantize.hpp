// From an exact integer sum to an element of the output: the arithmetic of ADR 14, for every kernel that has any.
//
//   integer mode  y = fit(round(sum·m / 2^shift) + z)        or, zero_point_first, fit(round(sum·m / 2^shift + z))
//   float mode    y = fit(round(float(sum)·scale / y_scale) + z)     in float32, each operation rounded
//   fit           clamp to [y_low, y_high], then saturate or wrap into y's type
//
// The functions on int64 below say what is right; the rows (many sums of one channel at once) are equal to them and
// fast.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/shared/isa.hpp"
#include "program/kernel.hpp"

namespace qdqtool {

__extension__ typedef __int128 Int128;

enum class Rounding { half_up, half_even, half_away, toward_zero };

// Smallest and largest value of an integer type of at most 32 bits; throws Error for another type.
struct Limits {
  int64_t low, high;
};
Limits limits_of(DataType type);

// value in `bits` bits (8 … 64), two's complement.
inline int64_t wrap_to(int64_t value, int bits) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) << (64 - bits)) >> (64 - bits);
}

// The sum's register: a sum it does not hold wraps or saturates, once, at the end.
struct Accumulator {
  int bits = 32;
  bool wraps = true;

  static Accumulator of(const Attributes& attributes);  // accumulator_bits, accumulator_overflow
  int64_t hold(int64_t sum) const {
    if (bits == 64) return sum;
    if (wraps) return wrap_to(sum, bits);
    const int64_t high = (int64_t{1} << (bits - 1)) - 1;
    return sum > high ? high : sum < -high - 1 ? -high - 1 : sum;
  }
  // The same for a sum that 64 bits need not hold.
  int64_t hold_exact(Int128 sum) const {
    if (wraps) return wrap_to(static_cast<int64_t>(sum), bits);
    const Int128 high = (Int128{1} << (bits - 1)) - 1;
    return static_cast<int64_t>(sum > high ? high : sum < -high - 1 ? -high - 1 : sum);
  }
};

// Whether `mode` is float, not integer, which it is where it is absent.
bool is_real(const Attributes& attributes);

// round(numerator / divisor) as a rational number; divisor > 0.
inline Int128 round_ratio(Int128 numerator, Int128 divisor, Rounding rounding) {
  Int128 below = numerator / divisor, rest = numerator % divisor;
  if (rest < 0) below -= 1, rest += divisor;  // numerator = below·divisor + rest, 0 <= rest < divisor
  const bool over = 2 * rest > divisor, tie = 2 * rest == divisor;
  switch (rounding) {
    case Rounding::half_up: return below + (over || tie);
    case Rounding::half_even: return below + (over || (tie && below % 2 != 0));
    case Rounding::half_away: return below + (over || (tie && numerator > 0));
    case Rounding::toward_zero: return below + (rest != 0 && numerator < 0);
  }
  return below;
}

// round(value / 2^shift) for 0 <= shift <= 62.
inline Int128 round_shift(Int128 value, int shift, Rounding rounding) {
  const Int128 below = value >> shift;
  const uint64_t one = uint64_t{1} << shift, twice = (static_cast<uint64_t>(value) & (one - 1)) << 1;
  switch (rounding) {
    case Rounding::half_up: return below + (twice >= one);
    case Rounding::half_even: return below + (twice > one || (twice == one && (static_cast<uint64_t>(below) & 1)));
    case Rounding::half_away: return below + (twice > one || (twice == one && value > 0));
    case Rounding::toward_zero: return below + (twice != 0 && value < 0);
  }
  return below;
}

// rounding.inc for integers of 64 bits: 1 <= k <= 61 and |v| + 2^k < 2^63.
namespace scalar {
QDQTOOL_INLINE int64_t below(int64_t v) { return v < 0 ? -1 : 0; }
QDQTOOL_INLINE int64_t half_of(int64_t k) { return int64_t{1} << (k - 1); }
QDQTOOL_INLINE int64_t shift_right(int64_t v, int64_t k) { return v >> k; }
#define QDQTOOL_OP QDQTOOL_INLINE
#include "kernels/requantize/rounding.inc"
#undef QDQTOOL_OP
}  // namespace scalar

// round(value) for a value that is not NaN, within ±2^62 (a float32 of 2^31 and more is a multiple of 256: a wrapped
// result stays).
int64_t round_float(float value, Rounding rounding);

// What happens behind the scaling.
struct Output {
  DataType type = DataType::uint8;
  Rounding rounding = Rounding::half_up;
  bool zero_point_first = false;
  bool wraps = false;                      // else saturates
  bool has_low = false, has_high = false;  // y_low, y_high are there
  int64_t zero_point = 0;
  int64_t low = 0, high = 255;  // y_low, y_high; the limits of the type where there are none
  int64_t type_low = 0, type_high = 255;

  // rounding, overflow, zero_point_first, y_zero_point, y_low, y_high; the type is that of the node's first output,
  // which y_type repeats. Throws Error for a type that is not in `types` (8 bits unless told).
  static Output of(const NodeInfo& node, const std::vector<DataType>& types = {DataType::uint8, DataType::int8});

  // Clamp, then saturate or wrap; `value` has the zero point in it. Integer is int64_t or Int128.
  template <class Integer>
  int64_t fit(Integer value) const {
    if (has_low && value < low) value = low;
    if (has_high && value > high) value = high;
    if (!wraps)
      return static_cast<int64_t>(value < type_low    ? Integer{type_low}
                                  : value > type_high ? Integer{type_high}
                                                      : value);
    const uint64_t above = static_cast<uint64_t>(value) - static_cast<uint64_t>(type_low);
    return static_cast<int64_t>(above & static_cast<uint64_t>(type_high - type_low)) + type_low;
  }

  // fit(round(numerator / divisor) + z), divisor > 0, |numerator| and |z·divisor| below 2^126.
  int64_t ratio(Int128 numerator, Int128 divisor) const {
    if (zero_point_first) return fit(round_ratio(numerator + zero_point * divisor, divisor, rounding));
    return fit(round_ratio(numerator, divisor, rounding) + zero_point);
  }

  // fit(round(value / 2^shift) + z); a negative shift multiplies, saturating to int64. |value| < 2^96, shift <= 62.
  int64_t shifted(Int128 value, int shift) const {
    if (shift >= 0) {
      if (zero_point_first) return fit(round_shift(value + zero_point * (Int128{1} << shift), shift, rounding));
      return fit(round_shift(value, shift, rounding) + zero_point);
    }
    const Int128 limit = Int128{1} << 63, room = shift <= -63 ? 0 : limit >> -shift;  // what |value| must be below
    if (value == 0) return fit(zero_point);
    const Int128 product = value >= room ? limit - 1 : value < -room ? -limit : value * (Int128{1} << -shift);
    return fit(product + zero_point);
  }

  // fit(round(value) + z), in float mode; `value` is the quotient by y_scale.
  int64_t real(float value) const {
    if (zero_point_first) return fit(round_float(value + static_cast<float>(zero_point), rounding));
    return fit(Int128{round_float(value, rounding)} + zero_point);
  }
};

// How one channel is scaled. The negative_* are for sums below zero (LeakyRelu, PRelu); without them they repeat the
// others.
struct Scaling {
  int32_t multiplier = 0, shift = 0;
  int32_t negative_multiplier = 0, negative_shift = 0;
  float scale = 0, negative_slope = 1;
};

// The whole way from a sum to an element, with one Scaling per channel (or one for all).
struct Requantizer {
  bool real = false;          // float mode
  bool has_negative = false;  // sums below zero are scaled in their own way
  float y_scale = 1;
  Isa isa = Isa::portable;  // what row() uses
  Accumulator accumulator;
  Output output;
  std::vector<Scaling> channels;  // one, or as many as there are channels

  // From attributes alone (Mul, pools): mode, multiplier and shift, or scale and y_scale. `types`: see Output::of.
  static Requantizer of_attributes(const NodeInfo& node,
                                   const std::vector<DataType>& types = {DataType::uint8, DataType::int8});
  // From constant inputs (Conv, ConvTranspose, MatMul): multiplier|scale at `first`, then shift,
  // negative_multiplier|negative_slope, negative_shift; float mode has no shifts, and negative_slope stands at first +
  // 2 all the same.
  static Requantizer of_inputs(const NodeInfo& node, size_t first, size_t channel_count,
                               const std::vector<DataType>& types = {DataType::uint8, DataType::int8});

  const Scaling& scaling(size_t channel) const { return channels[channels.size() == 1 ? 0 : channel]; }

  // The element for an exact sum: what is right.
  int64_t operator()(int64_t sum, size_t channel = 0) const { return of_held(accumulator.hold(sum), channel); }
  // The same for a sum as its accumulator holds it.
  int64_t of_held(int64_t held, size_t channel) const {
    const Scaling& s = scaling(channel);
    if (!real) {
      return held < 0 ? output.shifted(Int128{held} * s.negative_multiplier, s.negative_shift)
                      : output.shifted(Int128{held} * s.multiplier, s.shift);
    }
    float value = static_cast<float>(held) * s.scale;
    if (has_negative && value < 0) value = value * s.negative_slope;
    return output.real(value / y_scale);
  }

  // y[i] = (*this)(sums[i], channel) for `count` sums that are exact, or are exact modulo 2^32 where the accumulator
  // has at most 32 bits and wraps. y has output.type. `path` is what plan() answered.
  enum class Path : uint8_t { scalar, narrow, high, wide, real };
  void row(const int32_t* sums, size_t count, size_t channel, void* y, Path path) const;

  // The fastest path that is right for every sum with |sum| <= bound[channel] (after the accumulator). bounds: one per
  // channel, or one.
  Path plan(const std::vector<int64_t>& bounds) const;
};

}  // namespace qdqtool
