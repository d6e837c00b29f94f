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

// What every operator in floating point says of itself (docs/adr/0021), then what `own` adds.
std::vector<AttributeField> floating(std::vector<AttributeField> own) {
  own.push_back({"precision", type_string});
  own.push_back({"y_type", type_int});
  return own;
}

std::vector<Operator> make_operators() {
  const std::vector<AttributeField> conv = {
      {"x_zero_point", type_int}, {"w_zero_points", type_ints}, {"kernel_shape", type_ints}, {"strides", type_ints},
      {"pads", type_ints},        {"dilations", type_ints},     {"group", type_int},         {"x_shift", type_int},
  };
  std::vector<AttributeField> transposed = conv;
  transposed.push_back({"output_padding", type_ints});
  const std::vector<AttributeField> window = {{"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints},
                                              {"dilations", type_ints},    {"group", type_int}};
  std::vector<AttributeField> pool = window, upwards = window;
  pool.insert(pool.end(), {{"function", type_string}, {"ceil_mode", type_int}, {"count_include_pad", type_int}});
  upwards.push_back({"output_padding", type_ints});
  return {
      {"Conv", 4, 7, arithmetic(conv)},
      {"ConvTranspose", 4, 7, arithmetic(transposed)},
      {"MatMul", 4, 7, arithmetic({{"a_zero_point", type_int}, {"b_zero_points", type_ints}, {"x_shift", type_int}})},
      {"BlockedMatMul", 4, 5, arithmetic({{"a_zero_point", type_int}, {"block_size", type_int}})},
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
      {"Norm", 2, 3,
       arithmetic({{"x_zero_point", type_int}, {"x_scale", type_float}, {"axis", type_int}, {"groups", type_int},
                   {"centered", type_int}, {"epsilon", type_float}})},
      {"Div", 2, 2,
       arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"multiplier", type_int}, {"shift", type_int},
                   {"scale", type_float}})},
      {"ReduceSum", 1, 1,
       arithmetic({{"x_zero_point", type_int}, {"axes", type_ints}, {"keepdims", type_int}, {"multiplier", type_int},
                   {"shift", type_int}, {"scale", type_float}, {"factor", type_float}})},
      {"ReduceMax", 1, 1, {{"axes", type_ints}, {"keepdims", type_int}}},
      {"ReduceMin", 1, 1, {{"axes", type_ints}, {"keepdims", type_int}}},
      {"MaxPool", 1, 1,
       {{"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints}, {"dilations", type_ints},
        {"ceil_mode", type_int}}},
      {"Min", 2, 2, {}},
      {"Max", 2, 2, {}},
      {"Requantize", 1, 1,
       {{"x_zero_point", type_int}, {"x_scale", type_float}, {"y_zero_point", type_int}, {"y_scale", type_float},
        {"y_type", type_int}, {"rounding", type_string}}},
      {"Pad", 1, 2, {{"pads", type_ints}, {"mode", type_string}}},
      {"Trilu", 1, 1, {{"upper", type_int}, {"k", type_int}, {"fill", type_int}}},
      {"Where", 3, 3, {}},
      {"Resize", 1, 7,
       arithmetic({{"x_zero_point", type_int}, {"axes", type_ints}, {"multiplier", type_int}, {"shift", type_int},
                   {"scale", type_float}})},
      {"RotaryEmbedding", 3, 3,
       arithmetic({{"x_zero_point", type_int}, {"cos_zero_point", type_int}, {"sin_zero_point", type_int},
                   {"cos_multiplier", type_int}, {"sin_multiplier", type_int}, {"shift", type_int}, {"cos_scale", type_float},
                   {"sin_scale", type_float}, {"interleaved", type_int}, {"head_axis", type_int}})},
      {"FloatCast", 1, 1, floating({})},
      {"FloatConv", 2, 3, floating(window)},
      {"FloatConvTranspose", 2, 3, floating(upwards)},
      {"FloatElementwise", 2, 2, floating({{"function", type_string}})},
      {"FloatFunction", 1, 1, floating({{"function", type_string}, {"alpha", type_float}, {"beta", type_float}})},
      {"FloatLookup", 2, 2, floating({})},
      {"FloatMatMul", 2, 3, floating({{"alpha", type_float}, {"beta", type_float}})},
      {"FloatNorm", 1, 3,
       floating({{"axis", type_int}, {"num_groups", type_int}, {"center", type_int}, {"epsilon", type_float}})},
      {"FloatPool", 1, 1, floating(pool)},
      {"FloatReduce", 1, 1, floating({{"function", type_string}, {"axes", type_ints}, {"keepdims", type_int}})},
      {"FloatSoftmax", 1, 1, floating({{"axis", type_int}})},
      {"FloatWhere", 3, 3, floating({})},
      {"Quantize", 1, 1,
       floating({{"rounding", type_string}, {"overflow", type_string}, {"zero_point_first", type_int}, {"y_zero_point", type_int},
                 {"y_scale", type_float}})},
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
