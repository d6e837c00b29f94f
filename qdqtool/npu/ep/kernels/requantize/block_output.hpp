// From exact 64-bit sums to elements of 8 and 16 bits, in blocks that are scaled alike: what requantize.hpp says, for kernels that are no
// products (those have a scaling per channel: sum_output.hpp). Where 64 bits hold a product and what rounding adds to it, loops that
// compilers vectorize; elsewhere 128 bits.
#pragma once
#include "kernels/shared/elements.hpp"

namespace qdqtool {

// fit(round(numerator / (divisor·2^shift)) + z). |numerator| < 2^96, 0 < divisor < 2^55, shift <= 62. A shift below zero
// multiplies, saturating to int64.
inline int64_t scaled_ratio(const Output& output, Int128 numerator, Int128 divisor, int shift) {
  if (shift < 0) {
    constexpr Int128 limit = Int128{1} << 63;
    const Int128 room = shift <= -64 ? 0 : limit >> -shift;  // what |numerator| must be below
    if (numerator == 0) return output.ratio(0, divisor);
    if (numerator >= room) return output.ratio(limit - 1, divisor);
    if (numerator < -room) return output.ratio(-limit, divisor);
    return output.ratio(numerator * (Int128{1} << -shift), divisor);
  }
  const Int128 whole = divisor << shift, size = numerator < 0 ? -numerator : numerator;
  constexpr Int128 limit = Int128{1} << 60;
  if (!output.zero_point_first && size < limit && whole < limit) {  // 64 bits divide ten times as fast
    const auto n = static_cast<int64_t>(numerator), d = static_cast<int64_t>(whole);
    int64_t below = n / d, rest = n % d;
    if (rest < 0) below -= 1, rest += d;
    const bool over = 2 * rest > d, tie = 2 * rest == d;
    switch (output.rounding) {
      case Rounding::half_up: below += over || tie; break;
      case Rounding::half_even: below += over || (tie && below % 2 != 0); break;
      case Rounding::half_away: below += over || (tie && n > 0); break;
      case Rounding::toward_zero: below += rest != 0 && n < 0; break;
    }
    return output.fit(below + output.zero_point);
  }
  // All quotients between 0 and a half are rounded alike, before a zero point is added and after it.
  if (4 * size < whole) return output.ratio(numerator < 0 ? -1 : numerator > 0, 4);
  return output.ratio(numerator, whole);
}

// What the loops need.
struct BlockTail {
  int64_t multiplier = 1;
  int64_t first = 0;       // 2^shift times what is added before rounding
  int32_t zero_point = 0;  // added behind it
  int32_t low = 0, high = 0;
  int shift = 0;
  float y_scale = 1;
  float real_first = 0, real_low = 0, real_high = 0;  // likewise, in float mode
};

// |sum·multiplier + first| + 2^shift < 2^62, shift >= 1, a quotient below 2^30. A shift of a value + 2^62, which is positive, needs
// no sign.
template <Rounding rounding>
struct IntegersLoop {
  static QDQTOOL_INLINE int64_t floor_shifted(int64_t value, int shift) {
    constexpr int64_t bias = int64_t{1} << 62;
    return static_cast<int64_t>(static_cast<uint64_t>(value + bias) >> shift) - (bias >> shift);
  }

  template <bool multiplies>
  static QDQTOOL_INLINE int32_t one(int64_t sum, const BlockTail& t) {
    int64_t value = (multiplies ? sum * t.multiplier : sum) + t.first;
    const int64_t half = scalar::half_of(t.shift);
    // rounding.inc in fewer instructions of 64 bits: whole and less at once.
    if (rounding == Rounding::half_up) value += half;
    if (rounding == Rounding::half_even) value += half - 1 + (floor_shifted(value, t.shift) & 1);
    if (rounding == Rounding::half_away) value += value < 0 ? half - 1 : half;
    if (rounding == Rounding::toward_zero) value += value < 0 ? 2 * half - 1 : 0;
    int32_t found = static_cast<int32_t>(floor_shifted(value, t.shift)) + t.zero_point;
    found = found < t.low ? t.low : found;
    return found > t.high ? t.high : found;
  }

  template <bool multiplies>
  static QDQTOOL_INLINE void run_all(const int64_t* __restrict sums, int64_t count, const BlockTail& t, int32_t* __restrict y) {
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) y[i + j] = one<multiplies>(sums[i + j], t);
    }
    for (; i < count; ++i) y[i] = one<multiplies>(sums[i], t);
  }

  static QDQTOOL_INLINE void run(const int64_t* sums, int64_t count, const BlockTail* tail, int32_t* y) {
    const BlockTail t = *tail;
    t.multiplier == 1 ? run_all<false>(sums, count, t, y) : run_all<true>(sums, count, t, y);
  }
};

// In float32, saturating: rounding keeps integers and order, so that limits may be applied before it.
template <Rounding rounding>
struct RealsLoop {
  static QDQTOOL_INLINE int32_t one(float value, const BlockTail& t) {
    float real = value / t.y_scale + t.real_first;
    real = real > t.real_low ? real : t.real_low;
    real = real < t.real_high ? real : t.real_high;
    return round_small<rounding>(real) + t.zero_point;
  }

  static QDQTOOL_INLINE void run(const float* __restrict values, int64_t count, const BlockTail* tail, int32_t* __restrict y) {
    const BlockTail t = *tail;
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) y[i + j] = one(values[i + j], t);
    }
    for (; i < count; ++i) y[i] = one(values[i], t);
  }
};

// The arithmetic of a node whose output has 8 or 16 bits.
class BlockOutput {
 public:
  explicit BlockOutput(const NodeInfo& node) : BlockOutput(node, is_real(node.attributes)) {}

  // In the mode float where `is_real`, whatever the node says.
  BlockOutput(const NodeInfo& node, bool is_real)
      : isa(choose_isa(node.isa)),
        output(Output::of(node, integer_types())),
        accumulator(Accumulator::of(node.attributes)),
        real(is_real) {
    const int64_t behind = output.zero_point_first ? 0 : output.zero_point;
    tail_.zero_point = static_cast<int32_t>(behind);
    tail_.low = static_cast<int32_t>(output.low), tail_.high = static_cast<int32_t>(output.high);
    if (!real) return;
    tail_.y_scale = scale_of(node, "y_scale");
    tail_.real_first = output.zero_point_first ? static_cast<float>(output.zero_point) : 0;
    tail_.real_low = static_cast<float>(output.low - behind), tail_.real_high = static_cast<float>(output.high - behind);
  }

  // The multiplier and shift of sums with |sum| <= bound < 2^62.
  void scale_by(int32_t multiplier, int64_t shift, int64_t bound) {
    if (shift > 62) throw Error("shift is " + std::to_string(shift) + "; 62 at most");
    const int doubled = shift == 0 ? 1 : 0;  // the loops shift by one at least
    tail_.multiplier = int64_t{multiplier} * (1 + doubled), tail_.shift = static_cast<int>(std::max<int64_t>(shift, -64)) + doubled;
    const Int128 room = Int128{1} << 62;
    const bool is_right = tail_.shift > 0 && tail_.shift < 62;
    const Int128 first = output.zero_point_first && is_right ? Int128{output.zero_point} * (Int128{1} << tail_.shift) : 0;
    const Int128 most = Int128{bound} * std::abs(tail_.multiplier) + (first < 0 ? -first : first);
    fits_ = !output.wraps && is_right && most + (Int128{1} << tail_.shift) < room && most >> tail_.shift < Int128{1} << 30;
    if (fits_) tail_.first = static_cast<int64_t>(first);
  }

  int64_t multiplier() const { return tail_.multiplier; }
  int shift() const { return tail_.shift; }
  float y_scale() const { return tail_.y_scale; }
  const BlockTail& tail() const { return tail_; }
  bool fits() const { return fits_; }  // whether IntegersLoop is right for it

  // kBlock sums as the accumulator holds them.
  void hold(int64_t* sums) const {
    if (accumulator.bits == 64) return;
    for (int i = 0; i < kBlock; ++i) sums[i] = accumulator.hold(sums[i]);
  }

  // `count` elements of sums, kBlock at most, in the mode integer.
  void integers(const int64_t* sums, int32_t* y, int64_t count = kBlock) const {
    if (fits_) return run_rounding<IntegersLoop>(output.rounding, isa, sums, count, &tail_, y);
    for (int64_t i = 0; i < count; ++i) {
      y[i] = static_cast<int32_t>(output.shifted(Int128{sums[i]} * tail_.multiplier, tail_.shift));
    }
  }

  // The same of numbers, none of them NaN, in the mode float.
  void reals(const float* values, int32_t* y, int64_t count = kBlock) const {
    if (!output.wraps) return run_rounding<RealsLoop>(output.rounding, isa, values, count, &tail_, y);
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<int32_t>(output.real(values[i] / tail_.y_scale));
  }

  const Isa isa;
  const Output output;
  const Accumulator accumulator;
  const bool real;

 private:
  BlockTail tail_;
  bool fits_ = false;
};

}  // namespace qdqtool
