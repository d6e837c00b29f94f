// Transpose: output axis i is input axis perm[i]; without perm the order is reversed.
#include "kernels/movement/movement.hpp"

namespace qdqtool {

namespace {

class Transpose : public MovingKernel {
 public:
  explicit Transpose(const NodeInfo& node) : MovingKernel(node), given_(attribute_list(node, "perm")) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, 1);
    Shape to;
    for (const size_t axis : order(from.size())) to.push_back(from[axis]);
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& from = inputs[0].shape;
    if (inputs[0].count() == 0) return;
    const Shape strides = strides_of(from);
    std::vector<Axis> axes;
    for (const size_t axis : order(from.size())) axes.push_back({from[axis], strides[axis], nullptr});
    move_elements(axes, size_of(inputs[0].type), inputs[0].data, outputs[0].data, nullptr, parallel);
  }

 private:
  std::vector<size_t> order(size_t rank) const {
    std::vector<int64_t> order = given_.values;
    if (!given_.has) {
      for (size_t i = rank; i-- > 0;) order.push_back(static_cast<int64_t>(i));
    }
    if (order.size() != rank) {
      throw Error("perm names " + std::to_string(order.size()) + " axes of a tensor of rank " + std::to_string(rank));
    }
    return axes_from_start(order, rank);
  }

  const Listed given_;
};

}  // namespace

const Operator standard_transpose{"Transpose", make_kernel<Transpose>};

}  // namespace qdqtool
