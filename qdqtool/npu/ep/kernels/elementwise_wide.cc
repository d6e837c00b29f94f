// ai.qdqtool::Add and ::Mul where a tensor has 16 bits, with the arithmetic of elementwise.cc.
#include <cmath>

#include "wide.hpp"
#include "wide_operands.hpp"
#include "block_output.hpp"

namespace qdqtool {

namespace {

struct WideSumLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict a, const int32_t* __restrict b, int32_t from_a,
                                 int32_t from_b, int64_t* __restrict sums) {
    for (int i = 0; i < kBlock; ++i) sums[i] = int64_t{a[i]} * from_a + int64_t{b[i]} * from_b;
  }
};

struct WideRealSumLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict a, const int32_t* __restrict b, float from_a, float from_b,
                                 float* __restrict sums) {
    for (int i = 0; i < kBlock; ++i) {
      const float left = static_cast<float>(a[i]) * from_a, right = static_cast<float>(b[i]) * from_b;
      sums[i] = left + right;
    }
  }
};

struct WideProductLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict a, const int32_t* __restrict b, int64_t* __restrict sums) {
    for (int i = 0; i < kBlock; ++i) sums[i] = int64_t{a[i]} * b[i];
  }
};

class WideAdd : public WideOperands {
 public:
  explicit WideAdd(const NodeInfo& node) : WideOperands(node), output_(node) {
    if (output_.real) {
      a_scale_ = factor_of(node, "a_scale"), b_scale_ = factor_of(node, "b_scale");
      return;
    }
    a_multiplier_ = multiplier_of(node, "a_multiplier"), b_multiplier_ = multiplier_of(node, "b_multiplier");
    const int64_t shift = node.attributes.integer("shift");
    if (shift < 0) throw Error("shift is " + std::to_string(shift) + "; 0 to 62");
    output_.scale_by(1, shift, reach(0) * std::abs(int64_t{a_multiplier_}) + reach(1) * std::abs(int64_t{b_multiplier_}));
  }

 protected:
  void block(const int32_t* a, const int32_t* b, int32_t* y) const override {
    if (output_.real) {
      float sums[kBlock];
      run_loop<WideRealSumLoop>(isa_, a, b, a_scale_, b_scale_, static_cast<float*>(sums));
      return output_.reals(sums, y);
    }
    int64_t sums[kBlock];
    run_loop<WideSumLoop>(isa_, a, b, a_multiplier_, b_multiplier_, static_cast<int64_t*>(sums));
    output_.integers(sums, y);
  }

 private:
  BlockOutput output_;
  int32_t a_multiplier_ = 0, b_multiplier_ = 0;
  float a_scale_ = 0, b_scale_ = 0;
};

class WideMul : public WideOperands {
 public:
  explicit WideMul(const NodeInfo& node) : WideOperands(node), output_(node) {
    if (output_.real) {
      scale_ = scale_of(node, "scale");
    } else {
      output_.scale_by(multiplier_of(node, "multiplier"), node.attributes.integer("shift"), reach(0) * reach(1));
    }
  }

 protected:
  void block(const int32_t* a, const int32_t* b, int32_t* y) const override {
    int64_t sums[kBlock];
    run_loop<WideProductLoop>(isa_, a, b, static_cast<int64_t*>(sums));
    output_.hold(sums);
    if (!output_.real) return output_.integers(sums, y);
    float values[kBlock];
    for (int i = 0; i < kBlock; ++i) values[i] = static_cast<float>(sums[i]) * scale_;
    output_.reals(values, y);
  }

 private:
  BlockOutput output_;
  float scale_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> make_wide_add(const NodeInfo& node) { return make_kernel<WideAdd>(node); }
std::unique_ptr<Kernel> make_wide_mul(const NodeInfo& node) { return make_kernel<WideMul>(node); }

}  // namespace qdqtool
