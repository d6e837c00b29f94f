// ai.qdqtool::Add and ::Mul, with numpy broadcasting.
//   Add  integer: y = fit(round(((a - za)·ma + (b - zb)·mb) / 2^shift) + z)   float: ((a - za)·sa + (b - zb)·sb) / sy in float32
//   Mul  sum = (a - za)·(b - zb), then what requantize.hpp says
// Where all tensors have 8 bits and 32 bits hold the sums, values are read as bytes in the order of unsigned integers (byte ^ flip), so
// that one loop serves both types.
#include "kernels/elementwise/wide_operands.hpp"
#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

namespace {

// One operand: its zero point among the flipped bytes, and what its differences from that are multiplied by.
struct Operand {
  uint8_t flip = 0;
  int32_t zero_point = 0;
  int32_t multiplier = 0;
  float scale = 0;

  static Operand of(const NodeInfo& node, size_t index, const std::string& name) {
    const DataType type = node.inputs[index].type;
    check_8_bit(type, ("input " + std::to_string(index)).c_str());
    const Limits limits = limits_of(type);
    const int64_t zero_point = node.attributes.integer(name + "_zero_point", 0);
    if (zero_point < limits.low || zero_point > limits.high) {
      throw Error(name + "_zero_point is outside " + name_of(type));
    }
    Operand found;
    found.flip = flip_of(type);
    found.zero_point = static_cast<int32_t>(zero_point - limits.low);
    return found;
  }

  // The greatest difference from the zero point.
  int64_t reach() const { return std::max(zero_point, 255 - zero_point); }
};

QDQTOOL_INLINE int32_t difference(uint8_t byte, const Operand& operand) {
  return static_cast<int32_t>(static_cast<uint8_t>(byte ^ operand.flip)) - operand.zero_point;
}

struct ProductLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, int32_t* __restrict sums) {
    const Operand la = *left, lb = *right;
    for (int i = 0; i < kBlock; ++i) sums[i] = difference(a[i], la) * difference(b[i], lb);
  }
};

// (a - za)·ma + (b - zb)·mb where 32 bits hold it.
struct SumLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, int32_t* __restrict sums) {
    const Operand la = *left, lb = *right;
    for (int i = 0; i < kBlock; ++i) {
      sums[i] = difference(a[i], la) * la.multiplier + difference(b[i], lb) * lb.multiplier;
    }
  }
};

// The same in 64 bits, or in float32, to the byte at once.
template <Rounding rounding>
struct BytesLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, const BlockTail* tail, uint8_t* __restrict y) {
    const Operand la = *left, lb = *right;
    const BlockTail t = *tail;
    for (int i = 0; i < kBlock; ++i) {
      const int64_t sum = int64_t{difference(a[i], la)} * la.multiplier + int64_t{difference(b[i], lb)} * lb.multiplier;
      y[i] = static_cast<uint8_t>(IntegersLoop<rounding>::template one<false>(sum, t));
    }
  }
};

template <Rounding rounding>
struct RealBytesLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, const BlockTail* tail, uint8_t* __restrict y) {
    const Operand la = *left, lb = *right;
    const BlockTail t = *tail;
    for (int i = 0; i < kBlock; ++i) {
      const float from_a = static_cast<float>(difference(a[i], la)) * la.scale,
                  from_b = static_cast<float>(difference(b[i], lb)) * lb.scale;
      y[i] = static_cast<uint8_t>(RealsLoop<rounding>::one(from_a + from_b, t));
    }
  }
};

// Two operands of 8 bits, blocks of the result, each computed by block() of the kernel.
class TwoOperands : public Kernel {
 public:
  explicit TwoOperands(const NodeInfo& node) {
    check_inputs(node.inputs, 2, 2);
    left_ = Operand::of(node, 0, "a");
    right_ = Operand::of(node, 1, "b");
    types_ = {node.inputs[0].type, node.inputs[1].type};
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
    auto* y = outputs[0].as<uint8_t>();
    for_parts(parallel, (count + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
      uint8_t a[kBlock] = {}, b[kBlock] = {}, last[kBlock];
      for (int64_t first = begin * kBlock; first < std::min(count, end * kBlock); first += kBlock) {
        const int64_t length = std::min<int64_t>(kBlock, count - first);
        uint8_t* to = length == kBlock ? y + first : last;
        block(broadcast.block(0, inputs[0].as<uint8_t>(), first, length, a),
              broadcast.block(1, inputs[1].as<uint8_t>(), first, length, b), to);
        if (length < kBlock) std::memcpy(y + first, last, static_cast<size_t>(length));
      }
    });
  }

 protected:
  // kBlock elements.
  virtual void block(const uint8_t* a, const uint8_t* b, uint8_t* y) const = 0;

  Operand left_, right_;

 private:
  std::array<DataType, 2> types_;
};

class Mul : public TwoOperands {
 public:
  explicit Mul(const NodeInfo& node) : TwoOperands(node), requantizer_(Requantizer::of_attributes(node)) {
    path_ = requantizer_.plan({left_.reach() * right_.reach()});
  }

 protected:
  void block(const uint8_t* a, const uint8_t* b, uint8_t* y) const override {
    int32_t sums[kBlock];
    run_loop<ProductLoop>(requantizer_.isa, a, b, &left_, &right_, static_cast<int32_t*>(sums));
    requantizer_.row(sums, kBlock, 0, y, path_);
  }

 private:
  const Requantizer requantizer_;
  Requantizer::Path path_;
};

class Add : public TwoOperands {
 public:
  explicit Add(const NodeInfo& node) : TwoOperands(node), output_(node) {
    if (output_.real) {
      left_.scale = factor_of(node, "a_scale"), right_.scale = factor_of(node, "b_scale");
      return;
    }
    left_.multiplier = multiplier_of(node, "a_multiplier"), right_.multiplier = multiplier_of(node, "b_multiplier");
    const int64_t shift = node.attributes.integer("shift");
    if (shift < 0 || shift > 62) throw Error("shift is " + std::to_string(shift) + "; 0 to 62");
    const int64_t bound = left_.reach() * std::abs(int64_t{left_.multiplier}) + right_.reach() * std::abs(int64_t{right_.multiplier});
    output_.scale_by(1, shift, bound);
    if (bound >= int64_t{1} << 30) return;
    const int32_t one = static_cast<int32_t>(output_.multiplier());
    requantizer_.isa = output_.isa, requantizer_.output = output_.output;
    requantizer_.channels = {{one, output_.shift(), one, output_.shift()}};
    path_ = requantizer_.plan({bound});
  }

  // Whether this computes it; else WideAdd does.
  bool fits() const {
    if (output_.real) return !output_.output.wraps;
    return path_ != Requantizer::Path::scalar || (output_.fits() && output_.multiplier() == 1);
  }

 protected:
  void block(const uint8_t* a, const uint8_t* b, uint8_t* y) const override {
    const Rounding rounding = output_.output.rounding;
    if (output_.real) return run_rounding<RealBytesLoop>(rounding, output_.isa, a, b, &left_, &right_, &output_.tail(), y);
    if (path_ == Requantizer::Path::scalar) {
      return run_rounding<BytesLoop>(rounding, output_.isa, a, b, &left_, &right_, &output_.tail(), y);
    }
    int32_t sums[kBlock];
    run_loop<SumLoop>(output_.isa, a, b, &left_, &right_, static_cast<int32_t*>(sums));
    requantizer_.row(sums, kBlock, 0, y, path_);
  }

 private:
  BlockOutput output_;
  Requantizer requantizer_;
  Requantizer::Path path_ = Requantizer::Path::scalar;
};

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

std::unique_ptr<Kernel> make_add(const NodeInfo& node) {
  if (has_16_bit(node, 2)) return make_kernel<WideAdd>(node);
  auto add = std::make_unique<Add>(node);
  if (add->fits()) return add;
  return make_kernel<WideAdd>(node);
}

std::unique_ptr<Kernel> make_mul(const NodeInfo& node) {
  return has_16_bit(node, 2) ? make_kernel<WideMul>(node) : make_kernel<Mul>(node);
}

}  // namespace

const Operator add{"Add", {2, 2}, arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"a_multiplier", type_int},
                   {"b_multiplier", type_int}, {"shift", type_int}, {"a_scale", type_float}, {"b_scale", type_float}}),
                   shapes::broadcast, make_add};
const Operator mul{"Mul", {2, 2}, arithmetic({{"a_zero_point", type_int}, {"b_zero_point", type_int}, {"multiplier", type_int},
                   {"shift", type_int}, {"scale", type_float}}), shapes::broadcast, make_mul};

}  // namespace qdqtool
