// Identity, Reshape, Flatten, Squeeze, Unsqueeze: the bytes of the input under another shape.
#include "kernels/movement/movement.hpp"

namespace qdqtool {

namespace {

class View : public MovingKernel {
 public:
  explicit View(const NodeInfo& node) : MovingKernel(node) { check_outputs(node, 1); }
  bool is_view() const override { return true; }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const final {
    const int64_t bytes = inputs[0].count() * static_cast<int64_t>(size_of(inputs[0].type));
    copy_bytes(inputs[0].data, outputs[0].data, bytes, parallel);
  }
};

class Identity : public View {
 public:
  using View::View;

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override { return {check(inputs, 1, 1)}; }
};

// 0 in the shape copies the input's dimension (allowzero: means 0), one -1 takes what is left.
class Reshape : public View {
 public:
  explicit Reshape(const NodeInfo& node) : View(node), allow_zero_(node.attributes.integer("allowzero", 0) != 0) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 2, 2);
    Shape to = integers_in(inputs[1], "the shape");
    const int64_t count = count_of(from);
    size_t open = to.size();
    bool zero = false;
    int64_t known = 1;
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i] == -1) {
        if (open < to.size()) throw Error("the shape " + name_of(to) + " has -1 twice");
        open = i;
        continue;
      }
      if (to[i] < 0) throw Error("the shape has a dimension of " + std::to_string(to[i]));
      if (to[i] == 0 && allow_zero_) zero = true;
      if (to[i] == 0 && !allow_zero_) {
        if (i >= from.size()) throw Error("the shape copies axis " + std::to_string(i) + " of " + name_of(from));
        to[i] = from[i];
      }
      known = multiply_sizes(known, to[i]);
    }
    if (open < to.size()) {
      if (zero) throw Error("the shape has both 0 and -1, and allowzero is set");
      if (known == 0 ? count != 0 : count % known != 0) throw Error(cannot(from, to));
      to[open] = known == 0 ? 0 : count / known;
    } else if (known != count) {
      throw Error(cannot(from, to));
    }
    return {to};
  }

 private:
  static std::string cannot(const Shape& from, const Shape& to) {
    return name_of(from) + " cannot become " + name_of(to);
  }
  const bool allow_zero_;
};

// [d0 … dr] → [d0 ⋯ d(axis-1), d(axis) ⋯ dr]
class Flatten : public View {
 public:
  explicit Flatten(const NodeInfo& node) : View(node), axis_(node.attributes.integer("axis", 1)) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, 1);
    const size_t rank = from.size();
    const size_t axis = axis_ == static_cast<int64_t>(rank) ? rank : axis_from_start(axis_, rank);
    return {{count_between(from, 0, axis), count_between(from, axis, rank)}};
  }

 private:
  const int64_t axis_;
};

// Without axes every axis of length 1 goes.
class Squeeze : public View {
 public:
  explicit Squeeze(const NodeInfo& node) : View(node), axes_(attribute_list(node, "axes")) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, 2);
    const Listed axes = attribute_or_input(axes_, inputs, 1, "axes");
    std::vector<bool> goes(from.size(), false);
    for (size_t i = 0; i < from.size(); ++i) goes[i] = !axes.has && from[i] == 1;
    for (const size_t axis : axes_from_start(axes.values, from.size())) {
      if (from[axis] != 1) throw Error("axis " + std::to_string(axis) + " of " + name_of(from) + " is not 1");
      goes[axis] = true;
    }
    Shape to;
    for (size_t i = 0; i < from.size(); ++i) {
      if (!goes[i]) to.push_back(from[i]);
    }
    return {to};
  }

 private:
  const Listed axes_;
};

// The axes count in the output.
class Unsqueeze : public View {
 public:
  explicit Unsqueeze(const NodeInfo& node) : View(node), axes_(attribute_list(node, "axes")) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, 2);
    const Listed axes = attribute_or_input(axes_, inputs, 1, "axes");
    if (!axes.has) throw Error("the axes are missing");
    const size_t rank = from.size() + axes.values.size();
    std::vector<bool> is_new(rank, false);
    for (const size_t axis : axes_from_start(axes.values, rank)) is_new[axis] = true;
    Shape to;
    size_t next = 0;
    for (size_t i = 0; i < rank; ++i) to.push_back(is_new[i] ? 1 : from[next++]);
    return {to};
  }

 private:
  const Listed axes_;
};

}  // namespace

const Operator standard_identity{"Identity", make_kernel<Identity>};
const Operator standard_reshape{"Reshape", make_kernel<Reshape>};
const Operator standard_flatten{"Flatten", make_kernel<Flatten>};
const Operator standard_squeeze{"Squeeze", make_kernel<Squeeze>};
const Operator standard_unsqueeze{"Unsqueeze", make_kernel<Unsqueeze>};

}  // namespace qdqtool
