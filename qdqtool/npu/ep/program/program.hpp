// A program: an ONNX model of integer operators, read and checked once. The file may come from anywhere: nothing of it is believed.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "program/operators.hpp"

namespace qdqtool {

constexpr size_t max_rank = 16;

// A tensor of the program: an input, a constant, or what a node computes.
struct Value {
  std::string name;
  DataType type = DataType::none;
  bool has_shape = false;     // of inputs and constants; what nodes compute has the shape that its kernel infers
  Shape shape;                // -1: not known
  const void* data = nullptr; // of a constant, aligned to its element
  bool is_constant = false;
};

struct Node {
  const Operator* op = nullptr;
  NodeInfo info;
  std::vector<int> inputs;    // indices of values, -1 for one left out
  std::vector<int> outputs;
};

struct Program {
  std::vector<Value> values;
  std::vector<Node> nodes;    // in an order in which they can run
  std::vector<int> inputs;    // indices of values; constants are not among them
  std::vector<int> outputs;
  std::string bytes;          // what constants point into, …
  std::vector<std::unique_ptr<char[]>> copies;  // … or into these, where the file does not have them aligned
};

// Reads the ModelProto that `bytes` holds from `begin` on, `size` bytes long. `isa` is handed to the kernels.
// Throws Error: it is damaged, no kernel is there for a node, or the nodes are not in order.
std::shared_ptr<const Program> read_program(std::string bytes, size_t begin, size_t size, Isa isa);

// "node 'conv1' (Conv)", for messages.
std::string describe(const NodeInfo& info);

}  // namespace qdqtool
