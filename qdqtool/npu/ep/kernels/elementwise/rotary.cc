// ai.qdqtool::RotaryEmbedding: pairs of elements turned by an angle per position, whose cosine and sine are integers too.
//   p = (x1 - zx)(c - zc), q = (x2 - zx)(s - zs)
//   integer  y1 = fit(round((p·mc - q·ms) / 2^shift) + z)      float  y1 = (float(p)·sc - float(q)·ss) / sy, each step in float32
//   y2 likewise of (x2 - zx)(c - zc)·mc + (x1 - zx)(s - zs)·ms
#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

namespace {

class RotaryEmbedding : public Kernel {
 public:
  explicit RotaryEmbedding(const NodeInfo& node)
      : output_(node),
        interleaved_(node.attributes.integer("interleaved", 0) != 0),
        head_axis_(node.attributes.integer("head_axis", 1)) {
    check_inputs(node.inputs, 3, 3);
    for (size_t i = 0; i < 3; ++i) {
      types_.push_back(node.inputs[i].type);
      check_integer(types_[i], "an input");
    }
    x_zero_ = zero_point_of(node, "x_zero_point", types_[0]);
    c_zero_ = zero_point_of(node, "cos_zero_point", types_[1]);
    s_zero_ = zero_point_of(node, "sin_zero_point", types_[2]);
    if (head_axis_ != 1 && head_axis_ != 2) throw Error("head_axis is " + std::to_string(head_axis_) + "; 1 or 2");
    if (output_.real) {
      c_scale_ = factor_of(node, "cos_scale"), s_scale_ = factor_of(node, "sin_scale");
      return;
    }
    c_multiplier_ = multiplier_of(node, "cos_multiplier"), s_multiplier_ = multiplier_of(node, "sin_multiplier");
    const int64_t shift = node.attributes.integer("shift");
    if (shift < 0) throw Error("shift is " + std::to_string(shift) + "; 0 to 62");
    const Int128 x = most_of(types_[0], x_zero_);
    const Int128 bound = x * most_of(types_[1], c_zero_) * std::abs(int64_t{c_multiplier_}) +
                         x * most_of(types_[2], s_zero_) * std::abs(int64_t{s_multiplier_});
    narrow_ = bound < (Int128{1} << 62);
    output_.scale_by(1, shift, narrow_ ? static_cast<int64_t>(bound) : 0);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 3, 3);
    for (size_t i = 0; i < 3; ++i) check_type(inputs[i].type, types_[i], "an input");
    const Shape& x = inputs[0].shape;
    inputs[0].count();
    if (x.size() != 4 || x[3] % 2 != 0) throw Error(name_of(x) + " is not [batch, heads, positions, 2·pairs]");
    const int64_t positions = x[head_axis_ == 1 ? 2 : 1];
    for (size_t i = 1; i < 3; ++i) {
      const Shape& angles = inputs[i].shape;
      const Shape wanted = {positions, x[3] / 2};
      const bool alike = angles.size() == 2 ? angles == wanted
                                            : angles.size() == 3 && (angles[0] == 1 || angles[0] == x[0]) &&
                                                  Shape(angles.begin() + 1, angles.end()) == wanted;
      if (!alike) throw Error("angles " + name_of(angles) + " do not fit " + name_of(x));
    }
    return {x};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& x = inputs[0].shape;
    const int64_t size = x[3], pairs = size / 2;
    if (outputs[0].count() == 0) return;
    for_parts(parallel, x[0] * x[1] * x[2], 4 * size, [&](int64_t begin, int64_t end) {
      int32_t first[kBlock], second[kBlock], cosine[kBlock], sine[kBlock];
      for (int64_t row = begin; row < end; ++row) {
        const int64_t batch = row / (x[1] * x[2]), position = head_axis_ == 1 ? row % x[2] : row / x[2] % x[1];
        for (int64_t done = 0; done < pairs; done += kBlock) {
          const int64_t count = std::min<int64_t>(kBlock, pairs - done), at = row * size + (interleaved_ ? 2 * done : done);
          const int64_t step = interleaved_ ? 2 : 1, other = interleaved_ ? 1 : pairs;
          read_row(inputs[0], at, count, step, x_zero_, first);
          read_row(inputs[0], at + other, count, step, x_zero_, second);
          read_row(inputs[1], angle_row(inputs[1].shape, batch, position) + done, count, 1, c_zero_, cosine);
          read_row(inputs[2], angle_row(inputs[2].shape, batch, position) + done, count, 1, s_zero_, sine);
          write(first, cosine, second, sine, -1, count, outputs[0], at, step);
          write(second, cosine, first, sine, 1, count, outputs[0], at + other, step);
        }
      }
    });
  }

 private:
  // Where the angles [S, pairs], [1, S, pairs] or [B, S, pairs] of a position begin.
  static int64_t angle_row(const Shape& shape, int64_t batch, int64_t position) {
    const bool many = shape.size() == 3 && shape[0] > 1;
    return ((many ? batch * shape[1] : 0) + position) * shape.back();
  }

  // target[i] = element first + i·step of `x`, minus the zero point.
  static void read_row(const Tensor& x, int64_t first, int64_t count, int64_t step, int32_t zero_point, int32_t* target) {
    with_integer(x.type, [&](auto element) {
      const auto* from = x.as<decltype(element)>() + first;
      for (int64_t i = 0; i < count; ++i) target[i] = static_cast<int32_t>(from[i * step]) - zero_point;
    });
  }

  // y = a·cosine + sign·b·sine of `count` elements; the products have at most 34 bits.
  void write(const int32_t* a, const int32_t* cosine, const int32_t* b, const int32_t* sine, int sign, int64_t count, Tensor& y,
             int64_t at, int64_t step) const {
    int32_t found[kBlock];
    if (output_.real) {
      float values[kBlock];
      for (int64_t i = 0; i < count; ++i) {
        const float p = static_cast<float>(int64_t{a[i]} * cosine[i]) * c_scale_,
                    q = static_cast<float>(int64_t{b[i]} * sine[i]) * s_scale_;
        values[i] = sign < 0 ? p - q : p + q;
      }
      output_.reals(values, found, count);
    } else if (narrow_) {
      int64_t values[kBlock];
      add(a, cosine, b, sine, sign, count, values);
      output_.integers(values, found, count);
    } else {
      Int128 values[kBlock];
      add(a, cosine, b, sine, sign, count, values);
      for (int64_t i = 0; i < count; ++i) {
        found[i] = static_cast<int32_t>(output_.output.shifted(values[i] * output_.multiplier(), output_.shift()));
      }
    }
    with_integer(y.type, [&](auto element) {
      using T = decltype(element);
      for (int64_t i = 0; i < count; ++i) y.as<T>()[at + i * step] = static_cast<T>(found[i]);
    });
  }

  template <class Integer>
  void add(const int32_t* a, const int32_t* cosine, const int32_t* b, const int32_t* sine, int sign, int64_t count,
           Integer* values) const {
    const Integer of_cosine = c_multiplier_, of_sine = int64_t{s_multiplier_} * sign;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = int64_t{a[i]} * cosine[i] * of_cosine + int64_t{b[i]} * sine[i] * of_sine;
    }
  }

  BlockOutput output_;
  const bool interleaved_;
  bool narrow_ = false;  // 64 bits hold the sums
  const int64_t head_axis_;
  std::vector<DataType> types_;
  int32_t x_zero_ = 0, c_zero_ = 0, s_zero_ = 0, c_multiplier_ = 0, s_multiplier_ = 0;
  float c_scale_ = 1, s_scale_ = 1;
};

}  // namespace

const Operator rotary_embedding{"RotaryEmbedding", {3, 3}, arithmetic({{"x_zero_point", type_int}, {"cos_zero_point", type_int},
                                {"sin_zero_point", type_int}, {"cos_multiplier", type_int}, {"sin_multiplier", type_int},
                                {"shift", type_int}, {"cos_scale", type_float}, {"sin_scale", type_float},
                                {"interleaved", type_int}, {"head_axis", type_int}}), shapes::as_input,
                                make_kernel<RotaryEmbedding>};

}  // namespace qdqtool
