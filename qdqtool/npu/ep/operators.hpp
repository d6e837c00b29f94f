// The operators of the domain ai.qdqtool: how many inputs each has, and the type of each attribute. The arithmetic is in kernels/.
#pragma once
#include <string>
#include <vector>

#include "abi.hpp"
#include "kernel.hpp"

namespace qdqtool {

constexpr const char* operator_domain = "ai.qdqtool";
constexpr int operator_version = 1;

struct AttributeField {
  std::string name;
  ort::AttributeType type;
};

struct Operator {
  std::string name;
  size_t min_inputs;
  size_t max_inputs;
  std::vector<AttributeField> attributes;
};

const std::vector<Operator>& operators();

// Throws Error when a node has another number of inputs than `op`, an attribute that it has not, or one of another type.
void check_operator(const Operator& op, size_t inputs, const Attributes& attributes);

// The shape of the output of `op`; false when nothing can be said (a rank not known). Unknown dimensions are negative: -1, or another
// number for each that has a name, so that an output dimension which is an input's is that number, too.
bool output_shape(const Operator& op, const Attributes& attributes, const std::vector<Tensor>& inputs, Shape& y);

}  // namespace qdqtool
