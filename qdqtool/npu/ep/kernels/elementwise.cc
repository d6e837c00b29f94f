// ai.qdqtool::Add and ::Mul, with numpy broadcasting.
//   Add  integer: y = fit(round(((a - za)·ma + (b - zb)·mb) / 2^shift) + z)   float: ((a - za)·sa + (b - zb)·sb) / sy in float32
//   Mul  sum = (a - za)·(b - zb), then what requantize.hpp says
// Values are read as bytes in the order of unsigned integers (byte ^ flip), so that one loop serves both types.
#include <cmath>

#include "broadcast.hpp"
#include "elements.hpp"
#include "wide.hpp"

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

// What the loops of Add need behind the sum. low and high: the clamp and the saturation in one.
struct AddTail {
  int shift = 0;
  int32_t zero_point = 0;  // added after rounding
  int64_t first = 0;       // 2^shift times what is added before it
  int32_t low = 0, high = 255;
  float y_scale = 1;
  float real_first = 0;               // added before rounding, in float mode
  float real_low = 0, real_high = 0;  // what rounding may lead to
};

// The same in 64 bits, |sum| < 2^61 with a quotient of less than 2^30. A shift of a value + 2^62, which is positive, needs no
// sign.
template <Rounding rounding>
struct WideLoop {
  static QDQTOOL_INLINE int64_t floor_shifted(int64_t value, int shift) {
    constexpr int64_t bias = int64_t{1} << 62;
    return static_cast<int64_t>(static_cast<uint64_t>(value + bias) >> shift) - (bias >> shift);
  }

  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, const AddTail* tail, uint8_t* __restrict y) {
    const Operand la = *left, lb = *right;
    const AddTail t = *tail;
    const int64_t half = (int64_t{1} << t.shift) >> 1, most = (int64_t{1} << t.shift) - 1;
    const int64_t below_even = t.shift == 0 ? 0 : half - 1, odd = t.shift == 0 ? 0 : 1;
    for (int i = 0; i < kBlock; ++i) {
      int64_t sum = static_cast<int64_t>(difference(a[i], la)) * la.multiplier +
                    static_cast<int64_t>(difference(b[i], lb)) * lb.multiplier;
      sum += t.first;
      if (rounding == Rounding::half_up) sum += half;
      if (rounding == Rounding::half_even) sum += below_even + (floor_shifted(sum, t.shift) & odd);
      if (rounding == Rounding::half_away) sum += half - (sum < 0 ? odd : 0);
      if (rounding == Rounding::toward_zero) sum += sum < 0 ? most : 0;
      int32_t value = static_cast<int32_t>(floor_shifted(sum, t.shift)) + t.zero_point;
      value = value < t.low ? t.low : value;
      value = value > t.high ? t.high : value;
      y[i] = static_cast<uint8_t>(value);
    }
  }
};

// In float32, saturating: rounding keeps integers and order, so that limits may be applied before it.
template <Rounding rounding>
struct RealLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict a, const uint8_t* __restrict b, const Operand* left,
                                 const Operand* right, const AddTail* tail, uint8_t* __restrict y) {
    const Operand la = *left, lb = *right;
    const AddTail t = *tail;
    for (int i = 0; i < kBlock; ++i) {
      const float from_a = static_cast<float>(difference(a[i], la)) * la.scale,
                  from_b = static_cast<float>(difference(b[i], lb)) * lb.scale;
      float real = (from_a + from_b) / t.y_scale + t.real_first;
      real = real > t.real_low ? real : t.real_low;
      real = real < t.real_high ? real : t.real_high;
      y[i] = static_cast<uint8_t>(round_small<rounding>(real) + t.zero_point);
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
  explicit Add(const NodeInfo& node) : TwoOperands(node), output_(Output::of(node)), isa_(choose_isa(node.isa)) {
    const std::string mode = node.attributes.text("mode", "integer");
    if (mode != "integer" && mode != "float") throw Error("mode is '" + mode + "'; one of integer, float");
    tail_.low = static_cast<int32_t>(output_.low), tail_.high = static_cast<int32_t>(output_.high);
    tail_.zero_point = output_.zero_point_first ? 0 : static_cast<int32_t>(output_.zero_point);
    if (mode == "float") {
      prepare_real(node);
    } else {
      prepare_integer(node);
    }
  }

 protected:
  void block(const uint8_t* a, const uint8_t* b, uint8_t* y) const override {
    switch (path_) {
      case Path::narrow: {
        int32_t sums[kBlock];
        run_loop<SumLoop>(isa_, a, b, &left_, &right_, static_cast<int32_t*>(sums));
        return narrow_.row(sums, kBlock, 0, y, narrow_path_);
      }
      case Path::wide: return run_rounding<WideLoop>(output_.rounding, isa_, a, b, &left_, &right_, &tail_, y);
      case Path::real: return run_rounding<RealLoop>(output_.rounding, isa_, a, b, &left_, &right_, &tail_, y);
      case Path::scalar:
        for (int i = 0; i < kBlock; ++i) {
          const int64_t sum = int64_t{difference(a[i], left_)} * left_.multiplier +
                              int64_t{difference(b[i], right_)} * right_.multiplier;
          y[i] = static_cast<uint8_t>(output_.shifted(sum, tail_.shift));
        }
        return;
      case Path::scalar_real:
        for (int i = 0; i < kBlock; ++i) {
          const float from_a = static_cast<float>(difference(a[i], left_)) * left_.scale;
          const float from_b = static_cast<float>(difference(b[i], right_)) * right_.scale;
          y[i] = static_cast<uint8_t>(output_.real((from_a + from_b) / tail_.y_scale));
        }
    }
  }

 private:
  enum class Path { narrow, wide, real, scalar, scalar_real };

  void prepare_real(const NodeInfo& node) {
    left_.scale = factor_of(node, "a_scale");
    right_.scale = factor_of(node, "b_scale");
    tail_.y_scale = scale_of(node, "y_scale");
    tail_.real_first = output_.zero_point_first ? static_cast<float>(output_.zero_point) : 0;
    tail_.real_low = static_cast<float>(tail_.low - tail_.zero_point),
    tail_.real_high = static_cast<float>(tail_.high - tail_.zero_point);
    path_ = output_.wraps ? Path::scalar_real : Path::real;
  }

  void prepare_integer(const NodeInfo& node) {
    left_.multiplier = multiplier_of(node, "a_multiplier");
    right_.multiplier = multiplier_of(node, "b_multiplier");
    const int64_t shift = node.attributes.integer("shift");
    if (shift < 0 || shift > 62) throw Error("shift is " + std::to_string(shift) + "; 0 to 62");
    tail_.shift = static_cast<int>(shift);
    const int64_t bound =
        left_.reach() * std::abs(int64_t{left_.multiplier}) + right_.reach() * std::abs(int64_t{right_.multiplier});
    if (plan_narrow(bound)) {
      path_ = Path::narrow;
      return;
    }
    // 2^shift times the zero point, which has at most 8 bits, and a half of 2^shift stay below 2^61.
    const bool fits = shift <= 51 && (bound >> shift) < (int64_t{1} << 29);
    path_ = fits && !output_.wraps ? Path::wide : Path::scalar;
    if (output_.zero_point_first) tail_.first = fits ? output_.zero_point * (int64_t{1} << shift) : 0;
  }

  // Whether 32 bits hold the sums: then a multiplier of 1 is left to requantize.hpp.
  bool plan_narrow(int64_t bound) {
    if (bound >= int64_t{1} << 30) return false;
    const int doubled = tail_.shift == 0 ? 1 : 0;  // paths shift by one at least
    narrow_.isa = isa_;
    narrow_.output = output_;
    narrow_.channels = {{1 << doubled, tail_.shift + doubled, 1 << doubled, tail_.shift + doubled}};
    narrow_path_ = narrow_.plan({bound});
    return narrow_path_ != Requantizer::Path::scalar;
  }

  const Output output_;
  const Isa isa_;
  AddTail tail_;
  Path path_ = Path::scalar;
  Requantizer narrow_;
  Requantizer::Path narrow_path_ = Requantizer::Path::scalar;
};

}  // namespace

void register_elementwise(KernelTable& table) {
  table["ai.qdqtool::Add"] = [](const NodeInfo& node) {
    return has_16_bit(node, 2) ? make_wide_add(node) : make_kernel<Add>(node);
  };
  table["ai.qdqtool::Mul"] = [](const NodeInfo& node) {
    return has_16_bit(node, 2) ? make_wide_mul(node) : make_kernel<Mul>(node);
  };
}

}  // namespace qdqtool
