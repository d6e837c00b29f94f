#include "program/operators.hpp"

#include <utility>

namespace qdqtool {

namespace {

OperatorTable& table() {
  static OperatorTable made;  // before the first row, whichever file that is in
  return made;
}

}  // namespace

const OperatorTable& operators() { return table(); }

std::vector<AttributeField> arithmetic(const std::vector<AttributeField>& own) {
  std::vector<AttributeField> fields = {
      {"mode", type_string},          {"rounding", type_string},         {"overflow", type_string},
      {"zero_point_first", type_int}, {"accumulator_bits", type_int},    {"accumulator_overflow", type_string},
      {"y_zero_point", type_int},     {"y_low", type_int},               {"y_high", type_int},
      {"y_type", type_int},           {"y_scale", type_float},
  };
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

std::vector<AttributeField> floating(std::vector<AttributeField> own) {
  own.push_back({"precision", type_string});
  own.push_back({"y_type", type_int});
  return own;
}

DataType type_of_first(const Attributes&, const std::vector<DataType>& inputs) {
  return inputs.empty() ? DataType::none : inputs[0];
}

DataType type_of_second(const Attributes&, const std::vector<DataType>& inputs) {
  return inputs.size() < 2 ? DataType::none : inputs[1];
}

Operator::Operator(const char* name, InputCount inputs, std::vector<AttributeField> attributes, InferShape infer_shape,
                   MakeKernel make, InferType infer_type)
    : name(name), is_standard(false), inputs(inputs), attributes(std::move(attributes)), make(make), infer_shape_(infer_shape),
      infer_type_(infer_type) {
  table().emplace(std::string(operator_domain) + "::" + name, this);
}

Operator::Operator(const char* name, MakeKernel make, InferType infer_type)
    : name(name), is_standard(true), inputs{}, make(make), infer_shape_(nullptr), infer_type_(infer_type) {
  table().emplace(std::string("::") + name, this);
}

void Operator::check(size_t input_count, const Attributes& of_node) const {
  if (is_standard) return;
  if (input_count < inputs.least || input_count > inputs.most) {
    throw Error("has " + std::to_string(input_count) + " inputs, not " + std::to_string(inputs.least) +
                (inputs.most > inputs.least ? " to " + std::to_string(inputs.most) : ""));
  }
  const auto check_all = [this](const auto& map, AttributeType type) {
    for (const auto& entry : map) {
      bool known = false;
      for (const AttributeField& field : attributes) known = known || (field.name == entry.first && field.type == type);
      if (!known) throw Error("attribute '" + entry.first + "' is unknown, or has another type than " + name + " has it");
    }
  };
  check_all(of_node.ints, type_int);
  check_all(of_node.floats, type_float);
  check_all(of_node.strings, type_string);
  check_all(of_node.int_lists, type_ints);
  check_all(of_node.float_lists, type_floats);
}

std::optional<Shape> Operator::output_shape(const Attributes& of_node, const std::vector<Tensor>& given) const try {
  if (given.empty() || given[0].shape.empty()) return std::nullopt;  // a scalar, or a tensor of unknown rank
  return infer_shape_(of_node, given);
} catch (const Error&) {
  return std::nullopt;  // an attribute of another type
}

std::vector<DataType> Operator::output_types(const Attributes& of_node, const std::vector<DataType>& given, size_t count) const {
  const bool is_stated = of_node.ints.count("y_type") != 0;
  const DataType type = is_stated ? static_cast<DataType>(of_node.integer("y_type")) : infer_type_(of_node, given);
  if (type == DataType::none) throw Error("the type of its output is not known");
  return std::vector<DataType>(count, type);
}

}  // namespace qdqtool
