// What kernels ask of their inputs: how many there are, their types, the integers in them. Messages need not name the node:
// whoever calls a kernel puts its name in front.
#pragma once
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/operators.hpp"

namespace qdqtool {

// How a message calls a type.
inline std::string name_of(DataType type) {
  static const char* const names[] = {"none",  "float32", "uint8",   "int8",    "uint16",  "int16",  "int32",
                                      "int64", "string",  "boolean", "float16", "float64", "uint32", "uint64"};
  const auto number = static_cast<int32_t>(type);
  if (type == DataType::bfloat16) return "bfloat16";
  return number >= 0 && number < 14 ? names[number] : "data type " + std::to_string(number);
}

inline std::string name_of(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline bool is_8_bit(DataType type) { return type == DataType::uint8 || type == DataType::int8; }
inline bool is_signed(DataType type) { return type == DataType::int8 || type == DataType::int16; }

// Whether the node has input `index`: optional ones are missing at the end, or have no type.
inline bool has_input(const std::vector<Tensor>& inputs, size_t index) {
  return index < inputs.size() && inputs[index].type != DataType::none;
}

// Throws Error unless there are at least `least` inputs, none of these left out, and at most `most`.
inline void check_inputs(const std::vector<Tensor>& inputs, size_t least, size_t most) {
  if (inputs.size() > most) {
    throw Error("has " + std::to_string(inputs.size()) + " inputs; at most " + std::to_string(most));
  }
  for (size_t i = 0; i < least; ++i) {
    if (!has_input(inputs, i)) throw Error("input " + std::to_string(i) + " is missing");
  }
}

inline void check_outputs(const NodeInfo& node, size_t count) {
  if (node.outputs.size() != count) {
    throw Error("has " + std::to_string(node.outputs.size()) + " outputs; " + std::to_string(count) + " is computed");
  }
}

inline void check_8_bit(DataType type, const char* what) {
  if (!is_8_bit(type)) throw Error(std::string(what) + " is " + name_of(type) + "; int8 and uint8 are computed");
}

inline void check_type(DataType found, DataType wanted, const char* what) {
  if (found != wanted) throw Error(std::string(what) + " is " + name_of(found) + ", not " + name_of(wanted));
}

// Sums and products of sizes; Error where 64 bits do not hold them.
inline int64_t add_sizes(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw Error("a size is greater than 64 bits hold");
  return sum;
}

inline int64_t multiply_sizes(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw Error("a size is greater than 64 bits hold");
  return product;
}

// The axis from 0 for one that may count from the end; Error outside [-rank, rank).
inline size_t axis_from_start(int64_t axis, size_t rank) {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) {
    throw Error("axis " + std::to_string(axis) + " is outside a tensor of rank " + std::to_string(rank));
  }
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

// The same for a list, in its order; Error when one is named twice.
inline std::vector<size_t> axes_from_start(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<size_t> found;
  std::vector<bool> seen(rank, false);
  for (const int64_t axis : axes) {
    found.push_back(axis_from_start(axis, rank));
    if (seen[found.back()]) throw Error("axis " + std::to_string(axis) + " is named twice");
    seen[found.back()] = true;
  }
  return found;
}

// Elements in shape[begin … end).
inline int64_t count_between(const Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t i = begin; i < end; ++i) count = multiply_sizes(count, shape[i]);
  return count;
}

// The integers of a tensor of shape [n] or []: axes, pads, a shape. Error when they are not known before the run.
inline std::vector<int64_t> integers_in(const Tensor& tensor, const char* what) {
  if (tensor.shape.size() > 1) {
    throw Error(std::string(what) + " has the shape " + name_of(tensor.shape) + "; one axis is meant");
  }
  const int64_t count = tensor.count();
  if (count && !tensor.data) throw Error(std::string(what) + " must be known before the run");
  if (tensor.type == DataType::int64) return {tensor.as<int64_t>(), tensor.as<int64_t>() + count};
  if (tensor.type == DataType::int32) return {tensor.as<int32_t>(), tensor.as<int32_t>() + count};
  throw Error(std::string(what) + " is " + name_of(tensor.type) + ", not int64");
}

// The MakeKernel of a class that is constructed from its NodeInfo.
template <class K>
std::unique_ptr<Kernel> make_kernel(const NodeInfo& node) {
  return std::make_unique<K>(node);
}

// Elements below which a second thread costs more than it computes.
constexpr int64_t kElementsPerPart = 32 * 1024;

// A function of (begin, end) that somebody else owns. What takes one is compiled once, not for every function that it is handed.
class RangeBody {
 public:
  template <class Body>
  RangeBody(const Body& body)
      : body_(&body), call_([](const void* of, int64_t begin, int64_t end) { (*static_cast<const Body*>(of))(begin, end); }) {}
  void operator()(int64_t begin, int64_t end) const { call_(body_, begin, end); }

 private:
  const void* body_;
  void (*call_)(const void*, int64_t, int64_t);
};

// body(begin, end) over [0, items) in parts, each of at least kElementsPerPart elements where an item is `elements` of them.
void for_parts(const ParallelFor& parallel, int64_t items, int64_t elements, const RangeBody& body);

}  // namespace qdqtool
