// The table of operators. Each kernel has its row beside it, a constant of type Operator that enters itself: what a node of it may
// have, the shape and type of its output, and how its kernel is made.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program/kernel.hpp"

namespace qdqtool {

constexpr const char* operator_domain = "ai.qdqtool";
constexpr int operator_version = 1;

enum AttributeType { type_int, type_ints, type_float, type_floats, type_string };

struct AttributeField {
  std::string name;
  AttributeType type;
};

// The attributes `own`, and before them what every operator with arithmetic says of it (docs/adr/0014).
std::vector<AttributeField> arithmetic(const std::vector<AttributeField>& own);
// The attributes `own`, and behind them what every operator in floating point says of itself (docs/adr/0021).
std::vector<AttributeField> floating(std::vector<AttributeField> own);

// The shape of an output before there is a kernel: onnxruntime asks for it while it loads a model. Nothing where it cannot be said.
// Unknown dimensions are negative: -1, or another number for each that has a name, so that an output dimension which is an input's
// is that number, too. A wrong model is left to the kernels, whose messages are better. The first input is there, with a rank.
using InferShape = std::optional<Shape> (*)(const Attributes& attributes, const std::vector<Tensor>& inputs);

namespace shapes {
std::optional<Shape> as_input(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> broadcast(const Attributes& attributes, const std::vector<Tensor>& inputs);  // all inputs, as numpy does
std::optional<Shape> multiplied(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> convolved(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> convolved_back(const Attributes& attributes, const std::vector<Tensor>& inputs);  // ConvTranspose
std::optional<Shape> pooled(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> reduced(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> padded(const Attributes& attributes, const std::vector<Tensor>& inputs);
std::optional<Shape> resized(const Attributes& attributes, const std::vector<Tensor>& inputs);
}  // namespace shapes

// The type of an output whose node has no y_type; none where an input that tells it is missing.
using InferType = DataType (*)(const Attributes& attributes, const std::vector<DataType>& inputs);
DataType type_of_first(const Attributes& attributes, const std::vector<DataType>& inputs);
DataType type_of_second(const Attributes& attributes, const std::vector<DataType>& inputs);

struct InputCount {
  size_t least, most;
};

class Operator {
 public:
  // Of the domain ai.qdqtool.
  Operator(const char* name, InputCount inputs, std::vector<AttributeField> attributes, InferShape infer_shape, MakeKernel make,
           InferType infer_type = type_of_first);
  // Of the standard domain: a kernel and nothing else, since ONNX says what it has.
  Operator(const char* name, MakeKernel make, InferType infer_type = type_of_first);
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  // Throws Error when a node has another number of inputs, an attribute that this has not, or one of another type.
  void check(size_t input_count, const Attributes& of_node) const;
  std::optional<Shape> output_shape(const Attributes& of_node, const std::vector<Tensor>& inputs) const;
  // Of each of `count` outputs: what attributes and the types of inputs say. Throws Error where they do not.
  std::vector<DataType> output_types(const Attributes& of_node, const std::vector<DataType>& inputs, size_t count) const;

  const std::string name;
  const bool is_standard;
  const InputCount inputs;
  const std::vector<AttributeField> attributes;
  const MakeKernel make;

 private:
  const InferShape infer_shape_;
  const InferType infer_type_;
};

// domain + "::" + name → row ("ai.qdqtool::Conv", "::Reshape" for the standard domain). Complete when the library is loaded.
using OperatorTable = std::map<std::string, const Operator*>;
const OperatorTable& operators();

}  // namespace qdqtool
