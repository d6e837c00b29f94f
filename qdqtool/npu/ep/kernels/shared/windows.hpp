// Where the windows of a pool lie, over one to three axes behind [N, C]. Axes that are not there have length 1.
#pragma once
#include <array>

#include "kernels/shared/arguments.hpp"

namespace qdqtool {

constexpr int kChunk = 16;  // elements of a row that are computed at a time

inline int64_t in_chunks(int64_t count) { return (count + kChunk - 1) / kChunk * kChunk; }

// One axis of an input and its windows: window i starts at i·stride - before and takes every dilation-th of `kernel` elements.
struct WindowAxis {
  int64_t in = 1, out = 1;
  int64_t kernel = 1, stride = 1, dilation = 1;
  int64_t before = 0, after = 0;

  int64_t start(int64_t window) const { return window * stride - before; }

  // The taps [first, last) of a window that lie in [low, high).
  struct Taps {
    int64_t first, last;
    int64_t count() const { return std::max<int64_t>(0, last - first); }
  };
  Taps taps(int64_t window, int64_t low, int64_t high) const {
    const auto before_reaching = [this, from = start(window)](int64_t at) {  // taps that lie before `at`
      if (at <= from) return int64_t{0};
      return std::min(kernel, dilation == 1 ? at - from : (at - from + dilation - 1) / dilation);
    };
    return {before_reaching(low), before_reaching(high)};
  }
  Taps inside(int64_t window) const { return taps(window, 0, in); }
  Taps padded(int64_t window) const { return taps(window, -before, in + after); }
};

using Windows = std::array<WindowAxis, 3>;

// A row of the output, [plane, depth, height], counted without divisions.
struct OutputRow {
  int64_t plane, depth, height;

  OutputRow(const Windows& w, int64_t row)
      : plane(row / w[1].out / w[0].out), depth(row / w[1].out % w[0].out), height(row % w[1].out) {}
  void next(const Windows& w) {
    if (++height < w[1].out) return;
    height = 0;
    if (++depth < w[0].out) return;
    depth = 0;
    ++plane;
  }
};

// The rows of an input [N·C, D, H, W] that one row of the output takes: those of its windows that are not padding.
template <class T>
struct InputRows {
  const T* first;
  int64_t depth_step, height_step;  // elements to the next
  int64_t depth_count, height_count;

  InputRows(const T* input, const Windows& w, const OutputRow& row) {
    const WindowAxis::Taps depth = w[0].inside(row.depth), height = w[1].inside(row.height);
    const int64_t d = w[0].start(row.depth) + depth.first * w[0].dilation,
                  h = w[1].start(row.height) + height.first * w[1].dilation;
    depth_step = w[0].dilation * w[1].in * w[2].in, height_step = w[1].dilation * w[2].in;
    depth_count = depth.count(), height_count = height.count();
    first = depth_count && height_count ? input + ((row.plane * w[0].in + d) * w[1].in + h) * w[2].in : input;
  }
};

// kernel_shape, strides, pads, dilations, auto_pad and ceil_mode of a node, as ONNX defines them.
class WindowAttributes {
 public:
  explicit WindowAttributes(const NodeInfo& node);

  // For an input [N, C, …]; Error when a window does not fit.
  Windows windows(const Shape& input) const;
  // [N, C, …] of the output.
  Shape output_shape(const Shape& input) const;
  // Elements of a whole window.
  int64_t taps() const;

 private:
  enum class AutoPad { none, same_upper, same_lower, valid };

  WindowAxis fit(size_t axis, int64_t in) const;

  std::vector<int64_t> kernel_, strides_, dilations_, pads_;
  AutoPad auto_pad_ = AutoPad::none;
  bool ceil_mode_;
};

}  // namespace qdqtool
