// Which value is where while a program runs, for one combination of input shapes.
#pragma once
#include <memory>
#include <vector>

#include "program/program.hpp"

namespace qdqtool {

constexpr size_t arena_alignment = 64;  // of everything in the arena: a cache line, and the widest vector register

// Where the bytes of a value are.
struct Place {
  enum Kind { constant, input, output, arena } kind = arena;
  size_t at = 0;  // number of the input or output; byte in the arena
};

// One kernel to run. Data of constants is filled in; the rest has its place.
struct Call {
  size_t node = 0;
  std::vector<Tensor> inputs, outputs;
  std::vector<Place> input_places, output_places;
  size_t scratch = 0;  // byte in the arena
  bool has_scratch = false;
};

// Bytes to copy when all kernels have run: outputs that are inputs, constants, or other outputs.
struct Copy {
  Place from;
  const void* data = nullptr;  // of a constant
  size_t output = 0;
  size_t bytes = 0;
};

struct Plan {
  std::vector<Shape> input_shapes;
  std::vector<Shape> output_shapes;
  std::vector<Call> calls;
  std::vector<Copy> copies;
  size_t arena_bytes = 0;
};

// Throws Error: a kernel does not take these shapes; the message names the node.
std::shared_ptr<const Plan> make_plan(const Program& program, const std::vector<std::unique_ptr<Kernel>>& kernels,
                                      const std::vector<Tensor>& inputs);

}  // namespace qdqtool
