// ai.qdqtool::Min and ::Max of two tensors of one type of 8 or 16 bits, with numpy broadcasting; y has that type.
#include "kernels/elementwise/wide_operands.hpp"

namespace qdqtool {

namespace {

template <bool largest>
struct ExtremeLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict a, const int32_t* __restrict b, int32_t* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = (a[i] < b[i]) == largest ? b[i] : a[i];
  }
};

template <bool largest>
class Extreme : public WideOperands {
 public:
  explicit Extreme(const NodeInfo& node) : WideOperands(node) {
    check_type(node.inputs[1].type, node.inputs[0].type, "input 1");
    check_type(node.outputs[0], node.inputs[0].type, "the output");
  }

 protected:
  void block(const int32_t* a, const int32_t* b, int32_t* y) const override {
    run_loop<ExtremeLoop<largest>>(isa_, a, b, y);
  }
};

}  // namespace

const Operator min{"Min", {2, 2}, {}, shapes::broadcast, make_kernel<Extreme<false>>};
const Operator max{"Max", {2, 2}, {}, shapes::broadcast, make_kernel<Extreme<true>>};

}  // namespace qdqtool
