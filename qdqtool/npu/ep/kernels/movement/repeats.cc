// Gather, Expand and Tile: elements of the input, some of them several times.
#include "kernels/movement/movement.hpp"

namespace qdqtool {

namespace {

// output[a, i…, b] = data[a, indices[i…], b]; negative indices count from the end.
class Gather : public MovingKernel {
 public:
  explicit Gather(const NodeInfo& node) : MovingKernel(node), axis_(node.attributes.integer("axis", 0)) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 2, 2);
    const size_t axis = axis_from_start(axis_, from.size());
    const DataType type = inputs[1].type;
    if (type != DataType::int32 && type != DataType::int64) {
      throw Error("the indices are " + name_of(type) + ", not int64 or int32");
    }
    inputs[1].count();
    Shape to(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(axis));
    to.insert(to.end(), inputs[1].shape.begin(), inputs[1].shape.end());
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(axis) + 1, from.end());
    return {to};
  }

  // The indices, counted from the start.
  size_t scratch(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    return static_cast<size_t>(multiply_sizes(inputs[1].count(), sizeof(int64_t)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const Shape& from = inputs[0].shape;
    const size_t axis = axis_from_start(axis_, from.size());
    const int64_t count = inputs[1].count();
    auto* map = static_cast<int64_t*>(scratch);
    if (inputs[1].type == DataType::int64) {
      write_map(inputs[1].as<int64_t>(), count, from[axis], map);
    } else {
      write_map(inputs[1].as<int32_t>(), count, from[axis], map);
    }
    if (outputs[0].count() == 0) return;
    const Shape strides = strides_of(from);
    std::vector<Axis> axes;
    for (size_t i = 0; i < from.size(); ++i) axes.push_back({from[i], strides[i], nullptr});
    axes[axis].size = count;
    axes[axis].map = map;
    move_elements(axes, size_of(inputs[0].type), inputs[0].data, outputs[0].data, nullptr, parallel);
  }

 private:
  template <class T>
  static void write_map(const T* indices, int64_t count, int64_t size, int64_t* map) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = indices[i];
      if (index < -size || index >= size) {
        throw Error("index " + std::to_string(index) + " is outside an axis of " + std::to_string(size));
      }
      map[i] = index < 0 ? index + size : index;
    }
  }

  const int64_t axis_;
};

// To the shape that numpy broadcasting gives with the second input.
class Expand : public MovingKernel {
 public:
  explicit Expand(const NodeInfo& node) : MovingKernel(node) { check_outputs(node, 1); }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 2, 2);
    Shape to = integers_in(inputs[1], "the shape");
    const Shape wanted = to;
    if (to.size() < from.size()) to.insert(to.begin(), from.size() - to.size(), 1);
    const size_t lead = to.size() - from.size();
    for (size_t i = 0; i < from.size(); ++i) {
      int64_t& length = to[lead + i];
      if (length == 1) length = from[i];
      if (from[i] != 1 && from[i] != length) throw Error(name_of(from) + " cannot be expanded to " + name_of(wanted));
    }
    count_of(to);
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape &from = inputs[0].shape, &to = outputs[0].shape;
    if (outputs[0].count() == 0) return;
    const Shape strides = strides_of(from);
    const size_t lead = to.size() - from.size();
    std::vector<Axis> axes;
    for (size_t i = 0; i < to.size(); ++i) {
      axes.push_back({to[i], i < lead || from[i - lead] == 1 ? 0 : strides[i - lead], nullptr});
    }
    move_elements(axes, size_of(inputs[0].type), inputs[0].data, outputs[0].data, nullptr, parallel);
  }
};

// Each axis repeats[axis] times, one after the other.
class Tile : public MovingKernel {
 public:
  explicit Tile(const NodeInfo& node) : MovingKernel(node) { check_outputs(node, 1); }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 2, 2);
    const std::vector<int64_t> repeats = integers_in(inputs[1], "repeats");
    if (repeats.size() != from.size()) {
      throw Error(std::to_string(repeats.size()) + " repeats for the axes of " + name_of(from));
    }
    Shape to;
    for (size_t i = 0; i < from.size(); ++i) {
      if (repeats[i] < 0) throw Error("an axis is repeated " + std::to_string(repeats[i]) + " times");
      to.push_back(multiply_sizes(from[i], repeats[i]));
    }
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& from = inputs[0].shape;
    if (outputs[0].count() == 0) return;
    const Shape strides = strides_of(from);
    std::vector<Axis> axes;
    for (size_t i = 0; i < from.size(); ++i) {
      axes.push_back({outputs[0].shape[i] / from[i], 0, nullptr});
      axes.push_back({from[i], strides[i], nullptr});
    }
    move_elements(axes, size_of(inputs[0].type), inputs[0].data, outputs[0].data, nullptr, parallel);
  }
};

}  // namespace

const Operator standard_gather{"Gather", make_kernel<Gather>};
const Operator standard_expand{"Expand", make_kernel<Expand>};
const Operator standard_tile{"Tile", make_kernel<Tile>};

}  // namespace qdqtool
