// What movement kernels share: one engine that copies elements from where each axis says, and checks of types.
#pragma once
#include "kernels/shared/arguments.hpp"

namespace qdqtool {

// One axis of the output: element i lies map ? map[i] : i steps of `stride` elements from the start of the source.
// A negative entry of the map means: not in the source, the fill value.
struct Axis {
  int64_t size = 1;
  int64_t stride = 0;
  const int64_t* map = nullptr;
};

// target[i0, i1 …] = source[Σ of the axes' steps], target contiguous. element: 1, 2, 4 or 8 bytes; fill: one such element, only
// read where a map is negative. Every step must lie inside the source.
void move_elements(std::vector<Axis> axes, size_t element, const void* source, void* target, const void* fill,
                   const ParallelFor& parallel);

// The same bytes, in parts.
void copy_bytes(const void* source, void* target, int64_t bytes, const ParallelFor& parallel);

// Elements from one index of an axis to the next, for each axis of a contiguous tensor.
Shape strides_of(const Shape& shape);

// A kernel that moves elements of any type; its outputs have the type of its first input.
class MovingKernel : public Kernel {
 public:
  explicit MovingKernel(const NodeInfo& node) : outputs_(node.outputs) {
    if (outputs_.empty()) throw Error("has no output");
  }

 protected:
  // Checks the number of inputs, and the type and size of the first; returns its shape.
  const Shape& check(const std::vector<Tensor>& inputs, size_t least, size_t most) const {
    check_inputs(inputs, least, most);
    for (const DataType type : outputs_) check_type(type, inputs[0].type, "an output");
    multiply_sizes(inputs[0].count(), static_cast<int64_t>(size_of(inputs[0].type)));
    return inputs[0].shape;
  }

 private:
  const std::vector<DataType> outputs_;
};

// Axes, pads, a shape: an attribute in older opsets, an input in newer ones.
struct Listed {
  bool has = false;
  std::vector<int64_t> values;
};
Listed attribute_list(const NodeInfo& node, const std::string& name);
Listed attribute_or_input(const Listed& attribute, const std::vector<Tensor>& inputs, size_t index, const char* name);

}  // namespace qdqtool
