#include "operators.hpp"

namespace qdqtool {

namespace {

using ort::type_float;
using ort::type_int;
using ort::type_ints;
using ort::type_string;

// What every operator with arithmetic says of it (docs/adr/0014), then what `own` adds.
std::vector<AttributeField> arithmetic(std::vector<AttributeField> own) {
  std::vector<AttributeField> fields = {
      {"mode", type_string},          {"rounding", type_string},         {"overflow", type_string},
      {"zero_point_first", type_int}, {"accumulator_bits", type_int},    {"accumulator_overflow", type_string},
      {"y_zero_point", type_int},     {"y_low", type_int},               {"y_high", type_int},
      {"y_type", type_int},           {"y_scale", type_float},
  };
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

std::vector<Operator> make_operators() {
  const std::vector<AttributeField> conv = {
      {"x_zero_point", type_int}, {"w_zero_points", type_ints}, {"kernel_shape", type_ints}, {"strides", type_ints},
      {"pads", type_ints},        {"dilations", type_ints},     {"group", type_int},         {"x_shift", type_int},
  };
  std::vector<AttributeField> transposed = conv;
  transposed.push_back({"output_padding", type_ints});
  return {
      {"Conv", 4, 7, arithmetic(conv)},
      {"ConvTranspose", 4, 7, arithmetic(transposed)},
      {"MatMul", 4, 7, arithmetic({{"a_zero_point", type_int}, {"b_zero_points", type_ints}, {"x_shift", type_int}})},
      {"Add", 2, 2,
       arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"a_multiplier", type_int}, {"b_multiplier", type_int},
                   {"shift", type_int}, {"a_scale", type_float}, {"b_scale", type_float}})},
      {"Mul", 2, 2,
       arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"multiplier", type_int}, {"shift", type_int},
                   {"scale", type_float}})},
      {"Lookup", 2, 2, {{"axis", type_int}}},
      {"AveragePool", 1, 1,
       arithmetic({{"x_zero_point", type_int}, {"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints},
                   {"dilations", type_ints}, {"ceil_mode", type_int}, {"count_include_pad", type_int}, {"multiplier", type_int},
                   {"shift", type_int}, {"scale", type_float}, {"factor", type_float}})},
      {"ReduceMean", 1, 1,
       arithmetic({{"x_zero_point", type_int}, {"axes", type_ints}, {"keepdims", type_int}, {"multiplier", type_int},
                   {"shift", type_int}, {"scale", type_float}, {"factor", type_float}})},
      {"Softmax", 2, 2, arithmetic({{"axis", type_int}, {"multiplier", type_int}, {"shift", type_int}})},
  };
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> made = make_operators();
  return made;
}

void check_operator(const Operator& op, size_t inputs, const Attributes& attributes) {
  if (inputs < op.min_inputs || inputs > op.max_inputs) {
    throw Error("has " + std::to_string(inputs) + " inputs, not " + std::to_string(op.min_inputs) +
                (op.max_inputs > op.min_inputs ? " to " + std::to_string(op.max_inputs) : ""));
  }
  const auto check = [&op](const auto& map, ort::AttributeType type) {
    for (const auto& entry : map) {
      bool known = false;
      for (const AttributeField& field : op.attributes) known = known || (field.name == entry.first && field.type == type);
      if (!known) throw Error("attribute '" + entry.first + "' is unknown, or has another type than " + op.name + " has it");
    }
  };
  check(attributes.ints, type_int);
  check(attributes.floats, type_float);
  check(attributes.strings, type_string);
  check(attributes.int_lists, type_ints);
  check(attributes.float_lists, ort::type_floats);
}

}  // namespace qdqtool
