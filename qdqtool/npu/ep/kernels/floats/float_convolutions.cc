// ai.qdqtool::FloatConv and FloatConvTranspose on [N, C, one to three axes].
//
//   FloatConv           Σ over channel, then the places of the kernel, of what lies there (0 in the padding) times the weight
//   FloatConvTranspose  for each place of the kernel Σ over channels, added to where it goes in the order of the places
//
// Then the bias [M].
#include "kernels/floats/float_products.hpp"
#include "kernels/shared/windows.hpp"

namespace qdqtool {

namespace {

// What both have: weights and bias as floats, read once where they are constants.
class Convolution : public FloatKernel {
 public:
  explicit Convolution(const NodeInfo& node) : FloatKernel(node), window_(node), group_(node.attributes.integer("group", 1)) {
    check_inputs(node.inputs, 2, 3);
    check_floats(node.inputs, 3);
    if (group_ < 1) throw Error("group is " + std::to_string(group_));
    weights_ = constant(node.inputs[1]);
    if (has_input(node.inputs, 2)) bias_ = constant(node.inputs[2]);
    kernel_ = node.attributes.integers("kernel_shape", {});
  }

 protected:
  void check(const std::vector<Tensor>& inputs, size_t channels_axis) const {
    check_inputs(inputs, 2, 3);
    check_floats(inputs, 3);
    const Shape &x = inputs[0].shape, &w = inputs[1].shape;
    if (x.size() != kernel_.size() + 2 || w.size() != x.size()) throw Error("the weight " + name_of(w) + " does not fit " + name_of(x));
    if (!std::equal(kernel_.begin(), kernel_.end(), w.begin() + 2)) throw Error("kernel_shape does not fit the weight " + name_of(w));
    const int64_t read = channels_axis == 1 ? multiply_sizes(w[1], group_) : w[0];
    if (read != x[1] || w[0] % group_) throw Error("the weight " + name_of(w) + " does not fit the channels of " + name_of(x));
    const int64_t written = channels_axis == 1 ? w[0] : multiply_sizes(w[1], group_);
    if (has_input(inputs, 2) && inputs[2].count() != written) throw Error("the bias has the shape " + name_of(inputs[2].shape));
  }

  size_t constants_bytes(const std::vector<Tensor>& inputs) const {
    size_t bytes = weights_.empty() ? floats(inputs[1].count()) : 0;
    if (has_input(inputs, 2) && bias_.empty()) bytes += floats(inputs[2].count());
    return bytes;
  }

  const float* read_once(const std::vector<float>& known, const Tensor& tensor, FloatMemory& memory, const ParallelFor& parallel) const {
    if (!known.empty()) return known.data();
    float* const numbers = memory.take(tensor.count());
    read(tensor, numbers, parallel);
    return numbers;
  }

  // totals [N, M, pixels] plus the bias.
  void finish(const std::vector<Tensor>& inputs, float* totals, FloatMemory& memory, Tensor& y, const ParallelFor& parallel) const {
    if (has_input(inputs, 2)) {
      const float* const bias = read_once(bias_, inputs[2], memory, parallel);
      const int64_t channels = y.shape[1], pixels = count_between(y.shape, 2, y.shape.size());
      for_parts(parallel, y.shape[0] * channels, pixels, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t p = 0; p < pixels; ++p) totals[i * pixels + p] = totals[i * pixels + p] + bias[i % channels];
        }
      });
    }
    write(totals, y, parallel);
  }

  const WindowAttributes window_;
  const int64_t group_;
  std::vector<int64_t> kernel_;
  std::vector<float> weights_, bias_;
};

class Conv : public Convolution {
 public:
  using Convolution::Convolution;

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check(inputs, 1);
    Shape y = window_.output_shape(inputs[0].shape);
    y[1] = inputs[1].shape[0];
    count_of(y);
    return {y};
  }

  // The input, the output, panels of 16 pixels for as many parts as there may be.
  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Shape y = infer(inputs)[0];
    const int64_t depth = count_between(inputs[1].shape, 1, inputs[1].shape.size());
    return floats(inputs[0].count()) + floats(count_of(y)) + constants_bytes(inputs) +
           floats(multiply_sizes(kMostParts, multiply_sizes(depth, kFloatColumns)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Shape &x = inputs[0].shape, &w = inputs[1].shape, &y = outputs[0].shape;
    if (outputs[0].count() == 0) return;
    FloatMemory memory(scratch);
    float* const numbers = memory.take(inputs[0].count());
    float* const totals = memory.take(outputs[0].count());
    const float* const weights = read_once(weights_, inputs[1], memory, parallel);
    const int64_t depth = count_between(w, 1, w.size()), channels = x[1] / group_, rows = y[1] / group_;
    float* const panels = memory.take(kMostParts * depth * kFloatColumns);
    read(inputs[0], numbers, parallel);
    const Windows windows = window_.windows(x);
    const int64_t pixels = count_between(y, 2, y.size()), plane = count_between(x, 2, x.size()), count = panels_of(pixels);
    const int64_t tasks = x[0] * group_ * count, parts = std::min(tasks, kMostParts);
    const auto part = [&](int64_t index) {
      float* const panel = panels + index * depth * kFloatColumns;
      for (int64_t task = tasks * index / parts; task < tasks * (index + 1) / parts; ++task) {
        const int64_t matrix = task / count, group = matrix % group_, first = task % count * kFloatColumns;
        const int64_t width = std::min(kFloatColumns, pixels - first);
        gather(windows, numbers + matrix * channels * plane, channels, plane, first, width, panel);
        multiply_panel(isa_, weights + group * rows * depth, rows, depth, panel, width, totals + matrix * rows * pixels + first, pixels);
      }
    };
    if (parts == 1) {
      part(0);
    } else {
      parallel(static_cast<size_t>(parts), [&](size_t index) { part(static_cast<int64_t>(index)); });
    }
    finish(inputs, totals, memory, outputs[0], parallel);
  }

 private:
  static constexpr int64_t kMostParts = 24;

  // What `width` pixels from `first` on read: [channels·taps][16].
  static void gather(const Windows& w, const float* x, int64_t channels, int64_t plane, int64_t first, int64_t width, float* panel) {
    for (int64_t n = 0; n < kFloatColumns; ++n) {
      const bool there = n < width;
      const int64_t pixel = there ? first + n : first;
      const int64_t at[] = {w[0].start(pixel / w[2].out / w[1].out), w[1].start(pixel / w[2].out % w[1].out), w[2].start(pixel % w[2].out)};
      float* to = panel + n;
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t i = 0; i < w[0].kernel; ++i) {
          const int64_t d = at[0] + i * w[0].dilation;
          for (int64_t j = 0; j < w[1].kernel; ++j) {
            const int64_t h = at[1] + j * w[1].dilation;
            const bool row = there && d >= 0 && d < w[0].in && h >= 0 && h < w[1].in;
            const float* const from = row ? x + c * plane + (d * w[1].in + h) * w[2].in : x;
            for (int64_t k = 0; k < w[2].kernel; ++k, to += kFloatColumns) {
              const int64_t v = at[2] + k * w[2].dilation;
              *to = row && v >= 0 && v < w[2].in ? from[v] : 0.0f;
            }
          }
        }
      }
    }
  }
};

class ConvTranspose : public Convolution {
 public:
  explicit ConvTranspose(const NodeInfo& node) : Convolution(node) {
    const std::vector<int64_t> ones(kernel_.size(), 1);
    strides_ = node.attributes.integers("strides", ones);
    dilations_ = node.attributes.integers("dilations", ones);
    pads_ = node.attributes.integers("pads", std::vector<int64_t>(2 * kernel_.size(), 0));
    more_ = node.attributes.integers("output_padding", std::vector<int64_t>(kernel_.size(), 0));
    if (more_.size() != kernel_.size()) throw Error("output_padding has " + std::to_string(more_.size()) + " numbers");
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check(inputs, 0);
    Shape y = {inputs[0].shape[0], multiply_sizes(inputs[1].shape[1], group_)};
    for (size_t i = 0; i < kernel_.size(); ++i) {
      const int64_t size = inputs[0].shape[i + 2];
      if (size < 1) throw Error("an axis of its input has no elements");
      const int64_t whole = add_sizes(multiply_sizes(size - 1, strides_[i]), dilations_[i] * (kernel_[i] - 1) + 1 + more_[i]);
      y.push_back(whole - pads_[i] - pads_[i + kernel_.size()]);
      if (more_[i] < 0 || y.back() < 1) throw Error("its output has no elements along axis " + std::to_string(i + 2));
    }
    count_of(y);
    return {y};
  }

  // The input, the output, a sum per pixel of the input for each output channel.
  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Shape y = infer(inputs)[0];
    const int64_t pixels = count_between(inputs[0].shape, 2, inputs[0].shape.size());
    return floats(inputs[0].count()) + floats(count_of(y)) + constants_bytes(inputs) +
           floats(multiply_sizes(multiply_sizes(y[0], y[1]), pixels));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Shape &x = inputs[0].shape, &w = inputs[1].shape, &y = outputs[0].shape;
    if (outputs[0].count() == 0) return;
    FloatMemory memory(scratch);
    float* const numbers = memory.take(inputs[0].count());
    float* const totals = memory.take(outputs[0].count());
    const int64_t pixels = count_between(x, 2, x.size()), places = count_between(y, 2, y.size()), taps = count_between(w, 2, w.size());
    float* const sums = memory.take(y[0] * y[1] * pixels);
    const float* const weights = read_once(weights_, inputs[1], memory, parallel);
    read(inputs[0], numbers, parallel);
    const int64_t channels = x[1] / group_, written = w[1];
    for_parts(parallel, y[0] * y[1], pixels * taps * channels, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / y[1], group = i % y[1] / written, m = i % y[1] % written;
        float* const sum = sums + i * pixels;
        float* const total = totals + i * places;
        std::fill(total, total + places, 0.0f);
        for (int64_t tap = 0; tap < taps; ++tap) {
          std::fill(sum, sum + pixels, 0.0f);
          for (int64_t c = 0; c < channels; ++c) {
            const float factor = weights[((group * channels + c) * written + m) * taps + tap];
            const float* const from = numbers + (batch * x[1] + group * channels + c) * pixels;
            for (int64_t p = 0; p < pixels; ++p) sum[p] = sum[p] + from[p] * factor;
          }
          spread(x, y, tap, sum, total);
        }
      }
    });
    finish(inputs, totals, memory, outputs[0], parallel);
  }

 private:
  // The sums of one place of the kernel to where they go.
  void spread(const Shape& x, const Shape& y, int64_t tap, const float* sum, float* total) const {
    const size_t rank = kernel_.size();
    int64_t first[3] = {}, place[3] = {};
    for (size_t i = rank; i-- > 0; tap /= kernel_[i]) first[i] = tap % kernel_[i] * dilations_[i] - pads_[i];
    const int64_t pixels = count_between(x, 2, x.size());
    for (int64_t p = 0; p < pixels; ++p) {
      int64_t at = 0;
      bool inside = true;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t v = first[i] + place[i] * strides_[i];
        inside = inside && v >= 0 && v < y[i + 2];
        at = at * y[i + 2] + v;
      }
      if (inside) total[at] = total[at] + sum[p];
      for (size_t i = rank; i-- > 0;) {
        if (++place[i] < x[i + 2]) break;
        place[i] = 0;
      }
    }
  }

  std::vector<int64_t> strides_, dilations_, pads_, more_;
};

std::vector<AttributeField> window_attributes(std::vector<AttributeField> own) {
  own.insert(own.end(), {{"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints}, {"dilations", type_ints},
                         {"group", type_int}});
  return floating(own);
}

}  // namespace

const Operator float_conv{"FloatConv", {2, 3}, window_attributes({}), shapes::convolved, make_kernel<Conv>};
const Operator float_conv_transpose{"FloatConvTranspose", {2, 3}, window_attributes({{"output_padding", type_ints}}),
                                    shapes::convolved_back, make_kernel<ConvTranspose>};

}  // namespace qdqtool
