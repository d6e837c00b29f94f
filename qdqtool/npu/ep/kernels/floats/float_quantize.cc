// ai.qdqtool::Quantize: floats to integers of 8 and 16 bits, with the rounding of the target.
#include "kernels/floats/floats.hpp"
#include "kernels/shared/integers.hpp"

namespace qdqtool {

namespace {

// y = fit(round(x / y_scale) + y_zero_point); what is no number becomes the smallest integer, quotients end at 2^62.
class Quantize : public Kernel {
 public:
  explicit Quantize(const NodeInfo& node)
      : precision_(precision_of(node.attributes)), isa_(choose_isa(node.isa)), scale_(node.attributes.real("y_scale", 0)),
        output_(Output::of(node, integer_types())) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    if (!is_float(inputs[0].type)) throw Error("input 0 is " + name_of(inputs[0].type) + ", no float");
    count_of(inputs[0].shape);
    return {inputs[0].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor& parallel) const override {
    switch (output_.type) {
      case DataType::uint8: return convert<uint8_t>(inputs[0], outputs[0], parallel);
      case DataType::int8: return convert<int8_t>(inputs[0], outputs[0], parallel);
      case DataType::uint16: return convert<uint16_t>(inputs[0], outputs[0], parallel);
      default: return convert<int16_t>(inputs[0], outputs[0], parallel);
    }
  }

 private:
  // Saturating: quotients beyond 2^20 are beyond every type, with every zero point.
  template <class Q>
  struct Narrow {
    template <Rounding rounding>
    struct Loop {
      static QDQTOOL_INLINE void run(const float* __restrict x, float scale, float zero_first, int32_t zero_behind, Q* __restrict y) {
        constexpr int32_t least = std::numeric_limits<Q>::min(), most = std::numeric_limits<Q>::max();
        for (int i = 0; i < kBlock; ++i) {
          float t = x[i] / scale;
          const bool is_number = t == t;
          t = t > -1048576.0f ? t : -1048576.0f;
          t = t < 1048576.0f ? t : 1048576.0f;
          int32_t whole = round_small<rounding>(t + zero_first) + zero_behind;
          whole = whole < least ? least : whole > most ? most : whole;
          y[i] = static_cast<Q>(is_number ? whole : least);
        }
      }
    };
  };

  template <class Q>
  void convert(const Tensor& x, Tensor& y, const ParallelFor& parallel) const {
    const auto* const source = static_cast<const char*>(x.data);
    auto* const target = y.as<Q>();
    const int64_t count = x.count(), size = static_cast<int64_t>(size_of(x.type));
    const auto zero = static_cast<int32_t>(output_.zero_point);
    for_parts(parallel, blocks_of(count), kBlock, [&](int64_t begin, int64_t end) {
      float numbers[kBlock];
      Q written[kBlock];
      for (int64_t first = begin * kBlock; first < std::min(count, end * kBlock); first += kBlock) {
        const int64_t length = std::min<int64_t>(kBlock, count - first);
        read_floats(x.type, precision_, isa_, source + first * size, length, numbers);
        std::fill(numbers + length, numbers + kBlock, 0.0f);
        if (output_.wraps) {
          for (int64_t i = 0; i < length; ++i) written[i] = static_cast<Q>(exact(numbers[i] / scale_));
        } else {
          const bool zero_first = output_.zero_point_first;
          run_rounding<Narrow<Q>::template Loop>(output_.rounding, isa_, static_cast<const float*>(numbers), scale_,
                                                 zero_first ? static_cast<float>(zero) : 0.0f, zero_first ? 0 : zero,
                                                 static_cast<Q*>(written));
        }
        std::memcpy(target + first, written, static_cast<size_t>(length) * sizeof(Q));
      }
    });
  }

  int64_t exact(float quotient) const {
    constexpr float greatest = 4611686018427387904.0f;
    if (quotient != quotient) return output_.type_low;
    return output_.real(quotient > greatest ? greatest : quotient < -greatest ? -greatest : quotient);
  }

  const Precision precision_;
  const Isa isa_;
  const float scale_;
  const Output output_;
};

}  // namespace

const Operator quantize{"Quantize", {1, 1}, floating({{"rounding", type_string}, {"overflow", type_string},
                        {"zero_point_first", type_int}, {"y_zero_point", type_int}, {"y_scale", type_float}}), shapes::as_input,
                        make_kernel<Quantize>};

}  // namespace qdqtool
