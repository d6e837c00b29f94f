// ai.qdqtool::Div of 8 or 16 bits, with numpy broadcasting, as a rational number:
//   integer  y = fit(round((a - za)·m / ((b - zb)·2^shift)) + z), the sign of b moved up
//   float    t = float32(a - za)·scale / float32(b - zb), y = fit(round(t / sy) + z), each step in float32
// By zero: the largest y of a number above 0, the smallest of one below, and 0 / 0 is 0.
#include <cmath>

#include "kernels/elementwise/wide_operands.hpp"
#include "kernels/requantize/near_quotient.hpp"

namespace qdqtool {

namespace {

// What the loop needs.
struct Quotients {
  double factor;  // m / 2^shift
  bool toward_zero;
  int32_t zero_point, low, high;
};

// kBlock quotients as elements; unsure[i] is not 0 where quotient i is not sure, as one by zero is not, and *any where one is.
struct QuotientLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict a, const int32_t* __restrict b, const Quotients* quotients,
                                 int32_t* __restrict y, int32_t* __restrict unsure, int32_t* any) {
    const Quotients s = *quotients;
    int32_t doubts = 0;
    for (int i = 0; i < kBlock; ++i) {
      const int32_t none = b[i] == 0;
      const double q = a[i] * s.factor / (b[i] + none);
      const double near = q > -1e6 ? q : -1e6;
      int32_t doubt = none;
      int32_t value = near_round(near < 1e6 ? near : 1e6, s.toward_zero, doubt) + s.zero_point;
      value = value < s.low ? s.low : value;
      y[i] = value > s.high ? s.high : value;
      unsure[i] = doubt;
      doubts |= doubt;
    }
    *any = doubts;
  }
};

class Div : public WideOperands {
 public:
  explicit Div(const NodeInfo& node) : WideOperands(node), output_(node) {
    if (output_.real) {
      scale_ = scale_of(node, "scale");
      return;
    }
    output_.scale_by(multiplier_of(node, "multiplier"), node.attributes.integer("shift"), reach(0));
    const Output& output = output_.output;
    quotients_ = {std::ldexp(static_cast<double>(output_.multiplier()), -output_.shift()),
                  output.rounding == Rounding::toward_zero, static_cast<int32_t>(output.zero_point),
                  static_cast<int32_t>(output.low), static_cast<int32_t>(output.high)};
    // What lies beyond the limits of 16 bits saturates, however far.
    is_nearly_known_ = is_nearly_known(output, 0);
  }

 protected:
  void block(const int32_t* a, const int32_t* b, int32_t* y) const override {
    int32_t unsure[kBlock], any = 1;
    if (is_nearly_known_) {
      run_loop<QuotientLoop>(isa_, a, b, &quotients_, y, static_cast<int32_t*>(unsure), &any);
    } else {
      std::fill(unsure, unsure + kBlock, 1);
    }
    for (int i = 0; any && i < kBlock; ++i) {
      if (unsure[i]) y[i] = exactly(a[i], b[i]);
    }
  }

 private:
  int32_t exactly(int64_t a, int64_t b) const {
    if (b == 0 && a != 0) return static_cast<int32_t>(a < 0 ? output_.output.low : output_.output.high);
    if (b == 0) b = 1;
    if (b < 0) a = -a, b = -b;
    if (output_.real) {
      const float t = static_cast<float>(a) * scale_ / static_cast<float>(b);
      return static_cast<int32_t>(output_.output.real(t / output_.y_scale()));
    }
    return static_cast<int32_t>(scaled_ratio(output_.output, Int128{a} * output_.multiplier(), b, output_.shift()));
  }

  BlockOutput output_;
  float scale_ = 0;
  Quotients quotients_ = {};
  bool is_nearly_known_ = false;
};

}  // namespace

const Operator div{"Div", {2, 2}, arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"multiplier", type_int},
                   {"shift", type_int}, {"scale", type_float}}), shapes::broadcast, make_kernel<Div>};

}  // namespace qdqtool
