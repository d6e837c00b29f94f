// The shapes of outputs that rows of the table name.
#include <algorithm>

#include "program/operators.hpp"

namespace qdqtool {

namespace {

// The attribute, or `fallback` in every axis.
std::vector<int64_t> per_axis(const Attributes& attributes, const char* name, size_t axes, int64_t fallback) {
  std::vector<int64_t> values = attributes.integers(name, {});
  if (values.size() < axes) values.assign(axes, fallback);
  return values;
}

struct Window {
  std::vector<int64_t> kernel, strides, pads, dilations;
  Window(const Attributes& attributes, const Shape& weights, size_t axes)
      : kernel(attributes.integers("kernel_shape", {})),
        strides(per_axis(attributes, "strides", axes, 1)),
        pads(per_axis(attributes, "pads", 2 * axes, 0)),
        dilations(per_axis(attributes, "dilations", axes, 1)) {
    if (kernel.size() < axes && weights.size() == axes + 2) kernel.assign(weights.begin() + 2, weights.end());
    if (kernel.size() < axes) kernel.assign(axes, -1);
  }
};

Shape shape_at(const std::vector<Tensor>& inputs, size_t i) { return i < inputs.size() ? inputs[i].shape : Shape(); }

// [N, C, …] → [N, channels, …] under a window; `round_up` as ceil_mode.
std::optional<Shape> windowed(const Attributes& attributes, const Shape& x, const Shape& weights, int64_t channels, bool round_up) {
  if (x.size() < 3) return std::nullopt;
  const size_t axes = x.size() - 2;
  const Window window(attributes, weights, axes);
  Shape y = {x[0], channels};
  for (size_t i = 0; i < axes; ++i) {
    const int64_t padded = x[i + 2] + window.pads[i] + window.pads[i + axes], stride = window.strides[i];
    const int64_t rest = padded - (window.dilations[i] * (window.kernel[i] - 1) + 1);
    if (x[i + 2] < 0 || window.kernel[i] < 0 || stride < 1 || rest < 0) {
      y.push_back(-1);
      continue;
    }
    int64_t size = rest / stride + 1;
    // A window must begin within the input or the padding before it.
    if (round_up && rest % stride && size * stride < x[i + 2] + window.pads[i]) ++size;
    y.push_back(size);
  }
  return y;
}

// numpy's broadcasting.
Shape broadcast_two(const Shape& a, const Shape& b) {
  Shape y(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t p = i < a.size() ? a[a.size() - 1 - i] : 1, q = i < b.size() ? b[b.size() - 1 - i] : 1;
    y[y.size() - 1 - i] = p == 1 || p == q ? q : q == 1 ? p : p < 0 && q < 0 ? -1 : p < 0 ? q : p;
  }
  return y;
}

}  // namespace

namespace shapes {

std::optional<Shape> as_input(const Attributes&, const std::vector<Tensor>& inputs) { return inputs[0].shape; }

std::optional<Shape> broadcast(const Attributes&, const std::vector<Tensor>& inputs) {
  Shape y = {1};
  for (const Tensor& input : inputs) {
    if (input.shape.empty()) return std::nullopt;
    y = broadcast_two(y, input.shape);
  }
  return y;
}

std::optional<Shape> multiplied(const Attributes&, const std::vector<Tensor>& inputs) {
  Shape a = inputs[0].shape, b = shape_at(inputs, 1);
  if (b.empty()) return std::nullopt;
  const bool is_row = a.size() == 1, is_column = b.size() == 1;
  if (is_row) a.insert(a.begin(), 1);
  if (is_column) b.push_back(1);
  const int64_t rows = a[a.size() - 2], columns = b.back();
  Shape y = broadcast_two(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!is_row) y.push_back(rows);
  if (!is_column) y.push_back(columns);
  return y;
}

std::optional<Shape> convolved(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Shape w = shape_at(inputs, 1);
  if (w.empty()) return std::nullopt;
  return windowed(attributes, inputs[0].shape, w, w[0], false);
}

std::optional<Shape> convolved_back(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Shape x = inputs[0].shape, weights = shape_at(inputs, 1);
  if (weights.empty() || x.size() < 3) return std::nullopt;
  const size_t axes = x.size() - 2;
  const Window window(attributes, weights, axes);
  const std::vector<int64_t> more = per_axis(attributes, "output_padding", axes, 0);
  Shape y = {x[0], weights.size() > 1 && weights[1] >= 0 ? weights[1] * attributes.integer("group", 1) : -1};
  for (size_t i = 0; i < axes; ++i) {
    const int64_t size = (x[i + 2] - 1) * window.strides[i] + window.dilations[i] * (window.kernel[i] - 1) + 1 + more[i] -
                         window.pads[i] - window.pads[i + axes];
    y.push_back(x[i + 2] < 0 || window.kernel[i] < 0 || size < 0 ? -1 : size);
  }
  return y;
}

std::optional<Shape> pooled(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Shape& x = inputs[0].shape;
  return windowed(attributes, x, {}, x.size() < 2 ? 0 : x[1], attributes.integer("ceil_mode", 0));
}

std::optional<Shape> reduced(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Shape& x = inputs[0].shape;
  const auto rank = static_cast<int64_t>(x.size());
  const std::vector<int64_t> axes = attributes.integers("axes", {});
  const bool keep = attributes.integer("keepdims", 1);
  Shape y;
  for (int64_t i = 0; i < rank; ++i) {
    const bool is_reduced = axes.empty() || std::count(axes.begin(), axes.end(), i) || std::count(axes.begin(), axes.end(), i - rank);
    if (!is_reduced) y.push_back(x[static_cast<size_t>(i)]);
    else if (keep) y.push_back(1);
  }
  return y;
}

std::optional<Shape> padded(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  const Shape& x = inputs[0].shape;
  const std::vector<int64_t> pads = per_axis(attributes, "pads", 2 * x.size(), 0);
  Shape y = x;
  for (size_t i = 0; i < x.size(); ++i) {
    if (pads[i] || pads[i + x.size()]) y[i] = x[i] < 0 ? -1 : std::max<int64_t>(-1, x[i] + pads[i] + pads[i + x.size()]);
  }
  return y;
}

std::optional<Shape> resized(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  Shape y = inputs[0].shape;
  const std::vector<int64_t> axes = attributes.integers("axes", {});
  for (size_t i = 0; i < axes.size(); ++i) {
    const Shape taps = shape_at(inputs, 1 + 2 * i);
    const auto axis = static_cast<size_t>(axes[i] < 0 ? axes[i] + static_cast<int64_t>(y.size()) : axes[i]);
    if (axis < y.size()) y[axis] = taps.empty() ? -1 : taps[0];
  }
  return y;
}

}  // namespace shapes

}  // namespace qdqtool
