// Integers of 8 and 16 bits, and what kernels on them read from the attributes of their nodes.
#pragma once
#include <cmath>

#include "kernels/requantize/requantize.hpp"
#include "kernels/shared/arguments.hpp"

namespace qdqtool {

inline const std::vector<DataType>& integer_types() {
  static const std::vector<DataType> types = {DataType::uint8, DataType::int8, DataType::uint16, DataType::int16};
  return types;
}

inline bool is_16_bit(DataType type) { return type == DataType::uint16 || type == DataType::int16; }

inline void check_integer(DataType type, const std::string& what) {
  if (!is_8_bit(type) && !is_16_bit(type)) {
    throw Error(what + " is " + name_of(type) + "; integers of 8 and 16 bits are computed");
  }
}

// Whether one of the first `inputs` inputs, or an output, has 16 bits.
inline bool has_16_bit(const NodeInfo& node, size_t inputs) {
  bool found = false;
  for (size_t i = 0; i < std::min(inputs, node.inputs.size()); ++i) found = found || is_16_bit(node.inputs[i].type);
  for (const DataType type : node.outputs) found = found || is_16_bit(type);
  return found;
}

// body(T{}) with the C++ type of the elements.
template <class Body>
void with_integer(DataType type, const Body& body) {
  switch (type) {
    case DataType::uint8: return body(uint8_t{});
    case DataType::int8: return body(int8_t{});
    case DataType::uint16: return body(uint16_t{});
    case DataType::int16: return body(int16_t{});
    default: throw Error(name_of(type) + " is not computed");
  }
}

// What stands for 0 among integers of `type`: the attribute `name`, 0 where it is absent.
inline int32_t zero_point_of(const NodeInfo& node, const std::string& name, DataType type) {
  const Limits limits = limits_of(type);
  const int64_t zero_point = node.attributes.integer(name, 0);
  if (zero_point < limits.low || zero_point > limits.high) throw Error(name + " is outside " + name_of(type));
  return static_cast<int32_t>(zero_point);
}

// The greatest |integer - zero point|.
inline int64_t most_of(DataType type, int64_t zero_point) {
  const Limits limits = limits_of(type);
  return std::max(zero_point - limits.low, limits.high - zero_point);
}

// A scale that the arithmetic holds: positive and finite.
inline float scale_of(const NodeInfo& node, const char* name) {
  const float scale = node.attributes.real(name, 0);
  if (!(scale > 0) || std::isinf(scale)) throw Error(std::string(name) + " must be positive and finite");
  return scale;
}

// A factor of one of two numbers that are added; the limit keeps their sum finite.
inline float factor_of(const NodeInfo& node, const char* name) {
  const float value = node.attributes.real(name, 0);
  if (!(std::fabs(value) <= 1e30f) || value == 0) throw Error(std::string(name) + " must be finite and not 0");
  return value;
}

inline int32_t multiplier_of(const NodeInfo& node, const char* name) {
  const int64_t value = node.attributes.integer(name);
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw Error(std::string(name) + " is outside int32");
  }
  return static_cast<int32_t>(value);
}

}  // namespace qdqtool
