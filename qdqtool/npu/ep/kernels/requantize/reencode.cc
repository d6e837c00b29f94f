// ai.qdqtool::Requantize: integers of one encoding as those of another, one of them of 16 bits, where a table would be long.
//   y = saturate(round(float32(x - zx)·sx / sy) + zy)     each step in float32
#include "kernels/shared/elements.hpp"

namespace qdqtool {

namespace {

struct Grids {
  float x_scale, y_scale;
  float low, high;     // what rounding may lead to
  int32_t zero_point;  // of the output
};

template <Rounding rounding>
struct ReencodeLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict x, const Grids* grids, int32_t* __restrict y) {
    const Grids g = *grids;
    for (int i = 0; i < kBlock; ++i) {
      float t = static_cast<float>(x[i]) * g.x_scale / g.y_scale;
      t = t > g.low ? t : g.low;
      t = t < g.high ? t : g.high;
      y[i] = round_small<rounding>(t) + g.zero_point;
    }
  }
};

class Requantize : public Kernel {
 public:
  explicit Requantize(const NodeInfo& node) : isa_(choose_isa(node.isa)) {
    check_inputs(node.inputs, 1, 1);
    check_outputs(node, 1);
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    const Output output = Output::of(node, integer_types());
    rounding_ = output.rounding;
    zero_point_ = zero_point_of(node, "x_zero_point", input_);
    grids_.x_scale = scale_of(node, "x_scale"), grids_.y_scale = scale_of(node, "y_scale");
    grids_.zero_point = static_cast<int32_t>(output.zero_point);
    grids_.low = static_cast<float>(output.type_low - output.zero_point);
    grids_.high = static_cast<float>(output.type_high - output.zero_point);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, input_, "input 0");
    qdqtool::count_of(inputs[0].shape);
    return {inputs[0].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    for_blocks(parallel, inputs[0].count(), 1, [&](int64_t first, int64_t length) {
      int32_t x[kBlock], y[kBlock];
      widen(isa_, inputs[0], first, length, zero_point_, x);
      run_rounding<ReencodeLoop>(rounding_, isa_, static_cast<const int32_t*>(x), &grids_, static_cast<int32_t*>(y));
      narrow(isa_, y, first, length, outputs[0]);
    });
  }

 private:
  const Isa isa_;
  DataType input_;
  Rounding rounding_ = Rounding::half_up;
  int32_t zero_point_ = 0;
  Grids grids_ = {};
};

}  // namespace

const Operator requantize{"Requantize", {1, 1}, {{"x_zero_point", type_int}, {"x_scale", type_float}, {"y_zero_point", type_int},
                          {"y_scale", type_float}, {"y_type", type_int}, {"rounding", type_string}}, shapes::as_input,
                          make_kernel<Requantize>};

}  // namespace qdqtool
