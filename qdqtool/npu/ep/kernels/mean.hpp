// A sum divided by a rational number, rounded once: means and softmax.
#pragma once
#include "arguments.hpp"
#include "requantize.hpp"

namespace qdqtool {

// fit(round(numerator / (divisor·2^shift)) + z). |numerator| < 2^96, 0 < divisor < 2^55, shift <= 62. A shift below zero
// multiplies; what is then beyond 2^124 stays there.
inline int64_t scaled_ratio(const Output& output, Int128 numerator, Int128 divisor, int shift) {
  if (shift >= 0) return output.ratio(numerator, divisor << shift);
  const Int128 limit = Int128{1} << 124;
  const Int128 room = shift <= -124 ? 0 : limit >> -shift;
  if (numerator > room) return output.ratio(limit, divisor);
  if (numerator < -room) return output.ratio(-limit, divisor);
  return output.ratio(numerator * (Int128{1} << std::min(-shift, 124)), divisor);
}

// The mean of `count` differences from the input's zero point, as an element of the output; 0 where there are none.
class Mean {
 public:
  explicit Mean(const NodeInfo& node)
      : requantizer_(Requantizer::of_attributes(node)), factor_(node.attributes.real("factor", 1)) {
    if (!(factor_ > 0) || factor_ > std::numeric_limits<float>::max()) {
      throw Error("factor must be positive and finite");
    }
    check_inputs(node.inputs, 1, 1);
    input_ = node.inputs[0].type;
    check_8_bit(input_, "input 0");
    const Limits limits = limits_of(input_);
    const int64_t zero_point = node.attributes.integer("x_zero_point", 0);
    if (zero_point < limits.low || zero_point > limits.high) throw Error("x_zero_point is outside " + name_of(input_));
    zero_ = static_cast<int32_t>(zero_point - limits.low);
  }

  DataType input() const { return input_; }
  Isa isa() const { return requantizer_.isa; }
  // The zero point as a byte in the order of unsigned integers (byte ^ flip).
  int32_t zero() const { return zero_; }

  uint8_t operator()(int64_t sum, int64_t count) const {
    const int64_t held = requantizer_.accumulator.hold(sum), divisor = std::max<int64_t>(count, 1);
    const Scaling& scaling = requantizer_.scaling(0);
    if (requantizer_.real) {
      const float mean = static_cast<float>(held) * scaling.scale / static_cast<float>(divisor) * factor_;
      return static_cast<uint8_t>(requantizer_.output.real(mean / requantizer_.y_scale));
    }
    return static_cast<uint8_t>(
        scaled_ratio(requantizer_.output, Int128{held} * scaling.multiplier, divisor, scaling.shift));
  }

 private:
  const Requantizer requantizer_;
  const float factor_;
  DataType input_;
  int32_t zero_;
};

}  // namespace qdqtool
