// ai.qdqtool::AveragePool where a tensor has 16 bits, and ::MaxPool of 8 or 16 (the standard operator has no kernel of 16 bits in
// onnxruntime): per row of the output, one tap of the windows after the other.
#include "wide.hpp"
#include "mean.hpp"
#include "windows.hpp"

namespace qdqtool {

namespace {

// The windows along a row, in numbers that begin at `first`: found[i] joined with the taps of window i that are not padding.
template <class Join, class T>
void walk(const T* x, const Windows& windows, const OutputRow& row, int64_t* found, const Join& join) {
  const WindowAxis &depth = windows[0], &height = windows[1], &width = windows[2];
  const WindowAxis::Taps in_depth = depth.inside(row.depth), in_height = height.inside(row.height);
  for (int64_t d = in_depth.first; d < in_depth.last; ++d) {
    for (int64_t h = in_height.first; h < in_height.last; ++h) {
      const int64_t z = depth.start(row.depth) + d * depth.dilation, v = height.start(row.height) + h * height.dilation;
      const T* const line = x + ((row.plane * depth.in + z) * height.in + v) * width.in;
      for (int64_t i = 0; i < width.out; ++i) {
        const WindowAxis::Taps taps = width.inside(i);
        const int64_t start = width.start(i);
        for (int64_t k = taps.first; k < taps.last; ++k) {
          found[i] = join(found[i], int64_t{line[start + k * width.dilation]});
        }
      }
    }
  }
}

// A pool: rows of the output in parts, each with its numbers in scratch memory.
class WidePool : public Kernel {
 public:
  WidePool(const NodeInfo& node, DataType input) : attributes_(node), input_(input) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const final {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, input_, "input 0");
    return {attributes_.output_shape(inputs[0].shape)};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const final {
    const Windows windows = attributes_.windows(inputs.at(0).shape);
    const int64_t bytes = multiply_sizes(windows[2].out, sizeof(int64_t));
    return static_cast<size_t>(multiply_sizes(bytes, parts(inputs[0].shape, windows)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const final {
    if (outputs[0].count() == 0) return;
    const Windows windows = attributes_.windows(inputs[0].shape);
    const int64_t rows = outputs[0].count() / windows[2].out, count = parts(inputs[0].shape, windows);
    const auto part = [&](size_t index) {
      const auto p = static_cast<int64_t>(index);
      auto* const found = static_cast<int64_t*>(scratch) + p * windows[2].out;
      OutputRow at(windows, rows * p / count);
      for (int64_t row = rows * p / count; row < rows * (p + 1) / count; ++row, at.next(windows)) {
        line(inputs[0], windows, at, found);
        with_integer(outputs[0].type, [&](auto element) {
          using Y = decltype(element);
          for (int64_t i = 0; i < windows[2].out; ++i) outputs[0].as<Y>()[row * windows[2].out + i] = static_cast<Y>(found[i]);
        });
      }
    };
    if (count == 1) return part(0);
    parallel(static_cast<size_t>(count), part);
  }

 protected:
  // The elements of one row of the output.
  virtual void line(const Tensor& x, const Windows& windows, const OutputRow& row, int64_t* found) const = 0;

 private:
  static int64_t parts(const Shape& input, const Windows& windows) {
    const int64_t rows = input[0] * input[1] * windows[0].out * windows[1].out;
    return std::clamp<int64_t>(rows * windows[2].in / kElementsPerPart, 1, 64);
  }

  const WindowAttributes attributes_;
  const DataType input_;
};

class WideAveragePool : public WidePool {
 public:
  explicit WideAveragePool(const NodeInfo& node) : WideAveragePool(node, Mean(node)) {}

 protected:
  void line(const Tensor& x, const Windows& windows, const OutputRow& row, int64_t* found) const override {
    std::fill(found, found + windows[2].out, 0);
    const int64_t zero = mean_.zero();
    with_integer(mean_.input(), [&](auto element) {
      walk(x.as<decltype(element)>(), windows, row, found, [zero](int64_t sum, int64_t v) { return sum + v - zero; });
    });
    for (int64_t i = 0; i < windows[2].out; ++i) found[i] = mean_(found[i], counted(windows, row, i));
  }

 private:
  WideAveragePool(const NodeInfo& node, const Mean& mean)
      : WidePool(node, mean.input()), mean_(mean), counts_padding_(node.attributes.integer("count_include_pad", 0) != 0) {}

  int64_t counted(const Windows& windows, const OutputRow& row, int64_t i) const {
    const auto taps = [this](const WindowAxis& axis, int64_t window) {
      return (counts_padding_ ? axis.padded(window) : axis.inside(window)).count();
    };
    return taps(windows[0], row.depth) * taps(windows[1], row.height) * taps(windows[2], i);
  }

  const Mean mean_;
  const bool counts_padding_;
};

class WideMaxPool : public WidePool {
 public:
  explicit WideMaxPool(const NodeInfo& node) : WidePool(node, checked(node)), type_(node.outputs[0]) {}

 protected:
  void line(const Tensor& x, const Windows& windows, const OutputRow& row, int64_t* found) const override {
    std::fill(found, found + windows[2].out, limits_of(type_).low);
    with_integer(type_, [&](auto element) {
      walk(x.as<decltype(element)>(), windows, row, found, [](int64_t most, int64_t v) { return v > most ? v : most; });
    });
  }

 private:
  static DataType checked(const NodeInfo& node) {
    check_inputs(node.inputs, 1, 1);
    check_outputs(node, 1);
    check_integer(node.inputs[0].type, "input 0");
    check_type(node.outputs[0], node.inputs[0].type, "the output");
    return node.inputs[0].type;
  }

  const DataType type_;
};

}  // namespace

std::unique_ptr<Kernel> make_wide_average_pool(const NodeInfo& node) { return make_kernel<WideAveragePool>(node); }

void register_wide_pools(KernelTable& table) { table["ai.qdqtool::MaxPool"] = make_kernel<WideMaxPool>; }

}  // namespace qdqtool
