// What the operators with sums of products read from their nodes in the same way.
#pragma once
#include <string>
#include <vector>

#include "kernels/shared/integers.hpp"

namespace qdqtool {

// One zero point or one per channel.
inline std::vector<int32_t> zero_points_of(const NodeInfo& node, const std::string& name, DataType type,
                                           size_t channels) {
  const std::vector<int64_t> values = node.attributes.integers(name, {0});
  if (values.size() != 1 && values.size() != channels) {
    throw Error(name + " has " + std::to_string(values.size()) + " entries; 1 or " + std::to_string(channels) +
                " are meant");
  }
  const Limits limits = limits_of(type);
  for (const int64_t value : values) {
    if (value < limits.low || value > limits.high) throw Error(name + " is outside " + name_of(type));
  }
  return {values.begin(), values.end()};
}

// The int32 constant [channels] at `index`; zeros where it was left out.
inline std::vector<int32_t> bias_of(const NodeInfo& node, size_t index, size_t channels) {
  if (!has_input(node.inputs, index)) return std::vector<int32_t>(channels, 0);
  const Tensor& bias = node.inputs[index];
  check_type(bias.type, DataType::int32, "the bias");
  if (!bias.data) throw Error("the bias must be a constant");
  if (bias.shape != Shape{static_cast<int64_t>(channels)}) {
    throw Error("the bias has the shape " + name_of(bias.shape) + "; [" + std::to_string(channels) + "] is meant");
  }
  return {bias.as<int32_t>(), bias.as<int32_t>() + channels};
}

inline int x_shift_of(const NodeInfo& node) {
  const int64_t shift = node.attributes.integer("x_shift", 0);
  if (shift < 0 || shift > 15) throw Error("x_shift is " + std::to_string(shift) + "; 0 to 15");
  return static_cast<int>(shift);
}

std::unique_ptr<Kernel> make_wide_matmul(const NodeInfo& node);  // of 16 bits

}  // namespace qdqtool
