// A sum divided by a rational number, rounded once.
#pragma once
#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

// The mean of `count` differences from the input's zero point, as an element of the output; 0 where there are none. A sum is the mean
// of one.
class Mean {
 public:
  explicit Mean(const NodeInfo& node)
      : output_(node), factor_(node.attributes.real("factor", 1)), scale_(output_.real ? scale_of(node, "scale") : 1) {
    if (!(factor_ > 0) || std::isinf(factor_)) throw Error("factor must be positive and finite");
    check_inputs(node.inputs, 1, 1);
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    zero_ = zero_point_of(node, "x_zero_point", input_);
    if (!output_.real) output_.scale_by(multiplier_of(node, "multiplier"), node.attributes.integer("shift"), 0);
  }

  DataType input() const { return input_; }
  Isa isa() const { return output_.isa; }
  int32_t zero() const { return zero_; }
  // The zero point in the order of unsigned integers: of a byte ^ flip_of(input()).
  int32_t zero_above_least() const { return zero_ - static_cast<int32_t>(limits_of(input_).low); }

  int64_t operator()(int64_t sum, int64_t count) const {
    const int64_t held = output_.accumulator.hold(sum), divisor = std::max<int64_t>(count, 1);
    if (!output_.real) {
      return scaled_ratio(output_.output, Int128{held} * output_.multiplier(), divisor, output_.shift());
    }
    const float mean = static_cast<float>(held) * scale_ / static_cast<float>(divisor) * factor_;
    return output_.output.real(mean / output_.y_scale());
  }

 private:
  BlockOutput output_;
  const float factor_, scale_;
  DataType input_;
  int32_t zero_;
};

}  // namespace qdqtool
