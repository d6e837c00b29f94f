// Output shapes of the operators of ai.qdqtool before there are kernels: onnxruntime asks for them while it loads a model.
// A wrong model is left to the kernels, whose messages are better.
#include <algorithm>

#include "operators.hpp"

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

// [N, C, …] → [N, channels, …] under a window; `round_up` as ceil_mode.
Shape windowed(const Attributes& attributes, const Shape& x, const Shape& weights, int64_t channels, bool round_up) {
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

Shape transposed(const Attributes& attributes, const Shape& x, const Shape& weights) {
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

// numpy's broadcasting.
Shape broadcast(const Shape& a, const Shape& b) {
  Shape y(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t p = i < a.size() ? a[a.size() - 1 - i] : 1, q = i < b.size() ? b[b.size() - 1 - i] : 1;
    y[y.size() - 1 - i] = p == 1 || p == q ? q : q == 1 ? p : p < 0 && q < 0 ? -1 : p < 0 ? q : p;
  }
  return y;
}

Shape multiplied(Shape a, Shape b) {
  const bool is_row = a.size() == 1, is_column = b.size() == 1;
  if (is_row) a.insert(a.begin(), 1);
  if (is_column) b.push_back(1);
  const int64_t rows = a[a.size() - 2], columns = b.back();
  Shape y = broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!is_row) y.push_back(rows);
  if (!is_column) y.push_back(columns);
  return y;
}

Shape reduced(const Attributes& attributes, const Shape& x) {
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

Shape padded(const Attributes& attributes, const Shape& x) {
  const std::vector<int64_t> pads = per_axis(attributes, "pads", 2 * x.size(), 0);
  Shape y = x;
  for (size_t i = 0; i < x.size(); ++i) {
    if (pads[i] || pads[i + x.size()]) y[i] = x[i] < 0 ? -1 : std::max<int64_t>(-1, x[i] + pads[i] + pads[i + x.size()]);
  }
  return y;
}

Shape resized(const Attributes& attributes, const std::vector<Tensor>& inputs) {
  Shape y = inputs[0].shape;
  const std::vector<int64_t> axes = attributes.integers("axes", {});
  for (size_t i = 0; i < axes.size(); ++i) {
    const Shape taps = 1 + 2 * i < inputs.size() ? inputs[1 + 2 * i].shape : Shape();
    const auto axis = static_cast<size_t>(axes[i] < 0 ? axes[i] + static_cast<int64_t>(y.size()) : axes[i]);
    if (axis < y.size()) y[axis] = taps.empty() ? -1 : taps[0];
  }
  return y;
}

}  // namespace

bool output_shape(const Operator& op, const Attributes& attributes, const std::vector<Tensor>& inputs, Shape& y) try {
  const auto shape = [&inputs](size_t i) { return i < inputs.size() ? inputs[i].shape : Shape(); };
  const Shape x = shape(0), w = shape(1);
  if (x.empty()) return false;  // a scalar, or a tensor of unknown rank
  if (op.name == "Lookup" || op.name == "Softmax") return y = x, true;
  if (op.name == "Norm") return y = x, true;
  if (op.name == "Requantize") return y = x, true;
  if (op.name == "Resize") return y = resized(attributes, inputs), true;
  if (op.name == "Pad") return y = padded(attributes, x), true;
  if (op.name == "Trilu" || op.name == "RotaryEmbedding") return y = x, true;
  if (op.name.compare(0, 6, "Reduce") == 0) return y = reduced(attributes, x), true;
  if ((op.name == "AveragePool" || op.name == "MaxPool") && x.size() > 2) return y = windowed(attributes, x, {}, x[1], attributes.integer("ceil_mode", 0)), true;
  if (op.name == "FloatCast" || op.name == "FloatFunction" || op.name == "FloatLookup" || op.name == "FloatNorm" ||
      op.name == "FloatSoftmax" || op.name == "Quantize") {
    return y = x, true;
  }
  if (op.name == "FloatPool" && x.size() > 2) {
    return y = windowed(attributes, x, {}, x[1], attributes.integer("ceil_mode", 0)), true;
  }
  if (op.name == "FloatReduce") return y = reduced(attributes, x), true;
  if (w.empty()) return false;
  if (op.name == "Add" || op.name == "Mul") return y = broadcast(x, w), true;
  if (op.name == "Div" || op.name == "Min" || op.name == "Max") return y = broadcast(x, w), true;
  if (op.name == "FloatElementwise") return y = broadcast(x, w), true;
  if (op.name == "FloatWhere" && !shape(2).empty()) return y = broadcast(x, broadcast(w, shape(2))), true;
  if (op.name == "FloatMatMul") return y = multiplied(x, w), true;
  if (op.name == "FloatConv" && x.size() > 2) return y = windowed(attributes, x, w, w[0], false), true;
  if (op.name == "FloatConvTranspose" && x.size() > 2) return y = transposed(attributes, x, w), true;
  if (op.name == "MatMul" || op.name == "BlockedMatMul") return y = multiplied(x, w), true;
  if (op.name == "Where" && !shape(2).empty()) return y = broadcast(x, broadcast(w, shape(2))), true;
  if (op.name == "Conv" && x.size() > 2) return y = windowed(attributes, x, w, w[0], false), true;
  if (op.name == "ConvTranspose" && x.size() > 2) return y = transposed(attributes, x, w), true;
  return false;
} catch (const Error&) {
  return false;  // an attribute of another type
}

}  // namespace qdqtool
