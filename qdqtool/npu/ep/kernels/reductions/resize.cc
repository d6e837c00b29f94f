// ai.qdqtool::Resize: along some axes each element of the output is a sum of elements of the input, with whole numbers as weights.
//   sum = Σ w·…·w'·(x - zx) over the taps of these axes, exact; then multiplier and shift, or float32 scale
#include <array>

#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

namespace {

constexpr size_t kMostAxes = 3;
constexpr int64_t kMostTaps = 4;
constexpr size_t kMostRows = 64;  // combinations of the taps of three axes

// Constant inputs of one axis: [size of the output, taps].
struct Taps {
  int64_t size = 0, count = 0;
  const int64_t* indices = nullptr;
  const int32_t* weights = nullptr;
};

// Elements of the input, and the product of their weights.
struct Rows {
  size_t count = 1;
  std::array<int64_t, kMostRows> offsets{}, weights{};
};

class Resize : public Kernel {
 public:
  explicit Resize(const NodeInfo& node)
      : output_(node), axes_(node.attributes.integers("axes", {})) {
    if (axes_.size() > kMostAxes) throw Error("interpolates along " + std::to_string(axes_.size()) + " axes");
    check_inputs(node.inputs, 1 + 2 * axes_.size(), 1 + 2 * axes_.size());
    type_ = node.inputs[0].type;
    check_integer(type_, "input 0");
    zero_ = zero_point_of(node, "x_zero_point", type_);
    for (size_t i = 0; i < axes_.size(); ++i) taps_.push_back(taps_of(node, i));
    if (output_.real) {
      scale_ = factor_of(node, "scale");
      return;
    }
    int64_t bound = most_of(type_, zero_);  // at most 2^16, and 2^15 times that for each axis
    for (const Taps& taps : taps_) bound *= weight_of(taps);
    output_.scale_by(multiplier_of(node, "multiplier"), node.attributes.integer("shift"), bound);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1 + 2 * axes_.size(), 1 + 2 * axes_.size());
    check_type(inputs[0].type, type_, "input 0");
    Shape y = inputs[0].shape;
    inputs[0].count();
    const std::vector<size_t> axes = axes_from_start(axes_, y.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      for (int64_t k = 0; k < taps_[i].size * taps_[i].count; ++k) {
        if (taps_[i].indices[k] < 0 || taps_[i].indices[k] >= y[axes[i]]) {
          throw Error("a tap is outside axis " + std::to_string(axes[i]) + " of " + name_of(inputs[0].shape));
        }
      }
    }
    for (size_t i = 0; i < axes.size(); ++i) y[axes[i]] = taps_[i].size;
    count_of(y);
    return {y};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    with_integer(type_, [&](auto element) { run_typed<decltype(element)>(inputs, outputs, parallel); });
  }

 private:
  Taps taps_of(const NodeInfo& node, size_t i) const {
    const Tensor &indices = node.inputs[1 + 2 * i], &weights = node.inputs[2 + 2 * i];
    check_type(indices.type, DataType::int64, "the indices");
    check_type(weights.type, DataType::int32, "the weights");
    if (!indices.data || !weights.data) throw Error("indices and weights must be constants");
    const Shape& shape = indices.shape;
    if (shape.size() != 2 || weights.shape != shape || shape[1] < 1 || shape[1] > kMostTaps) {
      throw Error("indices " + name_of(shape) + " and weights " + name_of(weights.shape) + " are no taps");
    }
    for (int64_t k = 0; k < weights.count(); ++k) {
      if (std::abs(int64_t{weights.as<int32_t>()[k]}) > (1 << 13)) throw Error("a weight is above 4 in units of 2^-11");
    }
    return {shape[0], shape[1], indices.as<int64_t>(), weights.as<int32_t>()};
  }

  template <class T>
  void run_typed(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, const ParallelFor& parallel) const {
    const Shape &from = inputs[0].shape, &to = outputs[0].shape;
    if (outputs[0].count() == 0) return;
    const size_t rank = to.size();
    const Shape strides = strides_along(from);
    std::vector<const Taps*> of_axis(rank, nullptr);
    const std::vector<size_t> axes = axes_from_start(axes_, rank);
    for (size_t i = 0; i < axes.size(); ++i) of_axis[axes[i]] = &taps_[i];
    const int64_t width = rank ? to.back() : 1;
    const Taps* last = rank ? of_axis[rank - 1] : nullptr;
    const T* x = inputs[0].as<T>();
    for_parts(parallel, outputs[0].count() / width, 8 * width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Rows rows = rows_of(row, to, strides, of_axis);
        int64_t sums[kBlock];
        for (int64_t done = 0; done < width; done += kBlock) {
          const int64_t count = std::min<int64_t>(kBlock, width - done);
          for (int64_t i = 0; i < count; ++i) sums[i] = sum_of(x, rows, last, done + i);
          write(sums, count, outputs[0], row * width + done);
        }
      }
    });
  }

  static Shape strides_along(const Shape& shape) {
    Shape strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    return strides;
  }

  // What row `row` of the output reads along all axes but the last.
  static Rows rows_of(int64_t row, const Shape& to, const Shape& strides, const std::vector<const Taps*>& of_axis) {
    Rows rows;
    rows.weights[0] = 1;
    for (size_t k = to.empty() ? 0 : to.size() - 1; k-- > 0;) {
      const int64_t at = row % to[k];
      row /= to[k];
      const Taps* taps = of_axis[k];
      const size_t before = rows.count;
      const int64_t count = taps ? taps->count : 1;
      for (int64_t t = count; t-- > 0;) {  // the first tap last: it takes the place of what it is made of
        const int64_t index = taps ? taps->indices[at * count + t] : at;
        for (size_t r = 0; r < before; ++r) {
          const size_t place = static_cast<size_t>(t) * before + r;
          rows.offsets[place] = rows.offsets[r] + index * strides[k];
          rows.weights[place] = taps ? rows.weights[r] * taps->weights[at * count + t] : rows.weights[r];
        }
      }
      rows.count = before * static_cast<size_t>(count);
    }
    return rows;
  }

  // The sum for element `i` of a row, whose last axis has the taps `last`, or none.
  template <class T>
  int64_t sum_of(const T* x, const Rows& rows, const Taps* last, int64_t i) const {
    int64_t sum = 0;
    const int64_t taps = last ? last->count : 1;
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t at = last ? last->indices[i * taps + t] : i;
      int64_t column = 0;
      for (size_t r = 0; r < rows.count; ++r) {
        column += rows.weights[r] * (static_cast<int64_t>(x[rows.offsets[r] + at]) - zero_);
      }
      sum += last ? column * last->weights[i * taps + t] : column;
    }
    return sum;
  }

  void write(const int64_t* sums, int64_t count, Tensor& y, int64_t at) const {
    int32_t found[kBlock];
    if (output_.real) {
      float values[kBlock];
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(sums[i]) * scale_;
      output_.reals(values, found, count);
    } else {
      output_.integers(sums, found, count);
    }
    narrow(output_.isa, found, at, count, y);
  }

  // The greatest sum of the weights of a row, as if all were positive.
  static int64_t weight_of(const Taps& taps) {
    int64_t found = 0;
    for (int64_t row = 0; row < taps.size; ++row) {
      int64_t sum = 0;
      for (int64_t t = 0; t < taps.count; ++t) sum += std::abs(int64_t{taps.weights[row * taps.count + t]});
      found = std::max(found, sum);
    }
    return found;
  }

  BlockOutput output_;
  const std::vector<int64_t> axes_;
  DataType type_ = DataType::none;
  int32_t zero_ = 0;
  float scale_ = 1;
  std::vector<Taps> taps_;
};

}  // namespace

const Operator resize{"Resize", {1, 7}, arithmetic({{"x_zero_point", type_int}, {"axes", type_ints}, {"multiplier", type_int},
                      {"shift", type_int}, {"scale", type_float}}), shapes::resized, make_kernel<Resize>};

}  // namespace qdqtool
