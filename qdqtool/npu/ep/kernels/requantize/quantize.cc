// QuantizeLinear and DequantizeLinear between float32 and integers of 8 and 16 bits, as ONNX defines them:
//   y = saturate(round_half_even(x / scale) + zero_point),   y = (x - zero_point) · scale
// with one scale, or one for each index of an axis. What is not a number becomes the smallest integer, as in onnxruntime on x86.
#include "kernels/shared/arguments.hpp"
#include "kernels/shared/lanes.hpp"

namespace qdqtool {

namespace {

bool is_computed(DataType type) {
  return type == DataType::uint8 || type == DataType::int8 || type == DataType::uint16 || type == DataType::int16;
}

// scale and zero point of each of kBlock elements.
struct Grid {
  float scale[kBlock];
  float zero_point[kBlock];
};

template <class Q>
struct QuantizeLoop {
  static QDQTOOL_INLINE void run(const float* __restrict x, const Grid* __restrict grid, Q* __restrict y) {
    constexpr auto least = static_cast<float>(std::numeric_limits<Q>::min()),
                   most = static_cast<float>(std::numeric_limits<Q>::max());
    for (int i = 0; i < kBlock; ++i) {
      const float z = grid->zero_point[i], low = least - z, high = most - z;
      float t = x[i] / grid->scale[i];
      t = t > low ? t : low;
      t = t < high ? t : high;
      y[i] = static_cast<Q>(round_small<Rounding::half_even>(t) + static_cast<int32_t>(z));
    }
  }
};

template <class Q>
struct DequantizeLoop {
  static QDQTOOL_INLINE void run(const Q* __restrict x, const Grid* __restrict grid, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = (static_cast<float>(x[i]) - grid->zero_point[i]) * grid->scale[i];
  }
};

// One scale for all, or element i has that of channel i / inner % channels.
class Scales {
 public:
  Scales(const Tensor& scale, const Tensor* zero_point, const Shape& shape, size_t axis)
      : scale_(scale.as<float>()), zero_point_(zero_point), channels_(scale.count()) {
    if (channels_ > 1) inner_ = count_between(shape, axis + 1, shape.size());
  }

  void fill(Grid& grid, int64_t begin, int64_t count) const {
    for (int64_t i = 0; i < count;) {
      const int64_t channel = channels_ == 1 ? 0 : (begin + i) / inner_ % channels_;
      const int64_t length = channels_ == 1 ? count : std::min(count - i, inner_ - (begin + i) % inner_);
      std::fill(grid.scale + i, grid.scale + i + length, scale_[channel]);
      std::fill(grid.zero_point + i, grid.zero_point + i + length, zero_point_at(channel));
      i += length;
    }
    std::fill(grid.scale + count, grid.scale + kBlock, 1.0f);
    std::fill(grid.zero_point + count, grid.zero_point + kBlock, 0.0f);
  }

  bool is_single() const { return channels_ == 1; }

 private:
  float zero_point_at(int64_t channel) const {
    if (!zero_point_) return 0;
    switch (zero_point_->type) {
      case DataType::uint8: return static_cast<float>(zero_point_->as<uint8_t>()[channel]);
      case DataType::int8: return static_cast<float>(zero_point_->as<int8_t>()[channel]);
      case DataType::uint16: return static_cast<float>(zero_point_->as<uint16_t>()[channel]);
      default: return static_cast<float>(zero_point_->as<int16_t>()[channel]);
    }
  }

  const float* scale_;
  const Tensor* zero_point_;
  int64_t channels_;
  int64_t inner_ = 1;
};

// Both directions: the integers' type, the checks, the blocks.
class Converter : public Kernel {
 public:
  explicit Converter(const NodeInfo& node) : axis_(node.attributes.integer("axis", 1)), isa_(choose_isa(node.isa)) {
    check_outputs(node, 1);
    output_ = node.outputs[0];
    const int64_t block = node.attributes.integer("block_size", 0);
    if (block != 0) throw Error("block_size is " + std::to_string(block) + "; scales per block are not computed");
  }

 protected:
  // `integers` is the type of the quantized side.
  void check(const std::vector<Tensor>& inputs, DataType integers) const {
    check_inputs(inputs, 2, 3);
    if (!is_computed(integers)) throw Error(name_of(integers) + " is not computed; integers of 8 and 16 bits are");
    check_type(inputs[1].type, DataType::float32, "the scale");
    const Shape &shape = inputs[0].shape, &scale = inputs[1].shape;
    inputs[0].count();
    if (has_input(inputs, 2)) {
      check_type(inputs[2].type, integers, "the zero point");
      if (inputs[2].count() != inputs[1].count()) {
        throw Error("scale " + name_of(scale) + " has zero points " + name_of(inputs[2].shape));
      }
    }
    const bool single = scale.empty() || (scale.size() == 1 && scale[0] == 1);
    if (single) return;
    const size_t axis = axis_from_start(axis_, shape.size());
    if (scale.size() != 1 || scale[0] != shape[axis]) {
      throw Error("scale " + name_of(scale) + " does not fit axis " + std::to_string(axis) + " of " + name_of(shape));
    }
  }

  DataType output() const { return output_; }

  // Loop over the blocks of x, which become those of y.
  template <class Loop, class X, class Y>
  void convert(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, const ParallelFor& parallel) const {
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    const size_t rank = inputs[0].shape.size();
    const size_t axis = inputs[1].count() == 1 ? 0 : axis_from_start(axis_, rank);
    const Scales scales(inputs[1], has_input(inputs, 2) ? &inputs[2] : nullptr, inputs[0].shape, axis);
    const X* x = inputs[0].as<X>();
    Y* y = outputs[0].as<Y>();
    for_parts(parallel, (count + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
      Grid grid;
      X read[kBlock];
      Y written[kBlock];
      if (scales.is_single()) scales.fill(grid, 0, kBlock);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, length = std::min<int64_t>(kBlock, count - first);
        if (!scales.is_single()) scales.fill(grid, first, length);
        Y* to = length == kBlock ? y + first : written;
        run_loop<Loop>(isa_, whole_block(x + first, length, read), static_cast<const Grid*>(&grid), to);
        if (length < kBlock) std::memcpy(y + first, written, static_cast<size_t>(length) * sizeof(Y));
      }
    });
  }

 private:
  const int64_t axis_;
  const Isa isa_;
  DataType output_;
};

class QuantizeLinear : public Converter {
 public:
  using Converter::Converter;

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check(inputs, output());
    check_type(inputs[0].type, DataType::float32, "input 0");
    return {inputs[0].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    switch (output()) {
      case DataType::uint8: return convert<QuantizeLoop<uint8_t>, float, uint8_t>(inputs, outputs, parallel);
      case DataType::int8: return convert<QuantizeLoop<int8_t>, float, int8_t>(inputs, outputs, parallel);
      case DataType::uint16: return convert<QuantizeLoop<uint16_t>, float, uint16_t>(inputs, outputs, parallel);
      default: return convert<QuantizeLoop<int16_t>, float, int16_t>(inputs, outputs, parallel);
    }
  }
};

class DequantizeLinear : public Converter {
 public:
  explicit DequantizeLinear(const NodeInfo& node) : Converter(node) {
    check_type(output(), DataType::float32, "the output");
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 3);
    check(inputs, inputs[0].type);
    return {inputs[0].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    switch (inputs[0].type) {
      case DataType::uint8: return convert<DequantizeLoop<uint8_t>, uint8_t, float>(inputs, outputs, parallel);
      case DataType::int8: return convert<DequantizeLoop<int8_t>, int8_t, float>(inputs, outputs, parallel);
      case DataType::uint16: return convert<DequantizeLoop<uint16_t>, uint16_t, float>(inputs, outputs, parallel);
      default: return convert<DequantizeLoop<int16_t>, int16_t, float>(inputs, outputs, parallel);
    }
  }
};

}  // namespace

namespace {

DataType quantized_type(const Attributes& attributes, const std::vector<DataType>& inputs) {
  const auto stated = static_cast<DataType>(attributes.integer("output_dtype", 0));
  if (inputs.size() > 2 && inputs[2] != DataType::none) return inputs[2];
  return stated != DataType::none ? stated : DataType::uint8;
}

}  // namespace

const Operator standard_quantize_linear{"QuantizeLinear", make_kernel<QuantizeLinear>, quantized_type};
const Operator standard_dequantize_linear{"DequantizeLinear", make_kernel<DequantizeLinear>, type_of_second};

}  // namespace qdqtool
