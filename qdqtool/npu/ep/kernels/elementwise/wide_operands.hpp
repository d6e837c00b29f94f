// Two operands of 8 or 16 bits brought to one shape, in blocks of differences from their zero points.
#pragma once
#include "kernels/shared/broadcast.hpp"
#include "kernels/shared/elements.hpp"

namespace qdqtool {

class WideOperands : public Kernel {
 public:
  explicit WideOperands(const NodeInfo& node) : isa_(choose_isa(node.isa)) {
    check_inputs(node.inputs, 2, 2);
    check_outputs(node, 1);
    const std::array<std::string, 2> names = {"a_zero_point", "b_zero_point"};
    for (size_t i = 0; i < 2; ++i) {
      types_[i] = node.inputs[i].type;
      check_integer(types_[i], "input " + std::to_string(i));
      zero_points_[i] = zero_point_of(node, names[i], types_[i]);
    }
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const final {
    check_inputs(inputs, 2, 2);
    for (size_t i = 0; i < 2; ++i) check_type(inputs[i].type, types_[i], "an input");
    return {broadcast_shape(inputs[0].shape, inputs[1].shape)};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const final {
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    const Broadcast broadcast(inputs[0].shape, inputs[1].shape);
    for_blocks(parallel, count, 2, [&](int64_t first, int64_t length) {
      int32_t a[kBlock], b[kBlock], y[kBlock];
      read(broadcast, 0, inputs[0], first, length, a);
      read(broadcast, 1, inputs[1], first, length, b);
      block(a, b, y);
      narrow(isa_, y, first, length, outputs[0]);
    });
  }

 protected:
  // kBlock elements; what lies behind the last one is 0 or any element.
  virtual void block(const int32_t* a, const int32_t* b, int32_t* y) const = 0;

  int64_t reach(size_t operand) const { return most_of(types_[operand], zero_points_[operand]); }

 private:
  void read(const Broadcast& broadcast, size_t operand, const Tensor& x, int64_t first, int64_t length,
            int32_t* differences) const {
    with_integer(types_[operand], [&](auto element) {
      using T = decltype(element);
      T buffer[kBlock] = {};
      run_loop<WidenLoop<T>>(isa_, broadcast.block(operand, x.as<T>(), first, length, static_cast<T*>(buffer)),
                             zero_points_[operand], differences);
    });
  }

 protected:
  const Isa isa_;

 private:
  std::array<DataType, 2> types_;
  std::array<int32_t, 2> zero_points_;
};

}  // namespace qdqtool
