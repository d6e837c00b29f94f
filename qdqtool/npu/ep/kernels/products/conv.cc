// ai.qdqtool::Conv and ConvTranspose, on one to three spatial axes.
#include <cstring>
#include <memory>

#include "kernels/products/convolution.hpp"
#include "kernels/products/product.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/wide_products/wide_convolution.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kLargest = int64_t{1} << 31;     // of strides, dilations and pads
constexpr int64_t kMostPhases = int64_t{1} << 12;  // of a transposed convolution: the product of its strides

// The attributes of the spatial axes, with axes of size 1 in front of those that are there.
struct Spatial {
  size_t rank = 0;
  Axes kernel = {1, 1, 1}, strides = {1, 1, 1}, dilations = {1, 1, 1}, begins = {0, 0, 0}, ends = {0, 0, 0},
       output_padding = {0, 0, 0};
};

// `name`'s entries at the last axes of `axes`; from [at, at + rank) of a list of `length`.
void read_axes(const NodeInfo& node, const std::string& name, size_t rank, size_t length, size_t at, int64_t least,
               Axes& axes) {
  const std::vector<int64_t> values = node.attributes.integers(name, {});
  if (values.empty()) return;
  if (values.size() != length) {
    throw Error(name + " has " + std::to_string(values.size()) + " entries; " + std::to_string(length) + " are meant");
  }
  for (size_t i = 0; i < rank; ++i) {
    if (values[at + i] < least || values[at + i] > kLargest)
      throw Error(name + " has the entry " + std::to_string(values[at + i]));
    axes[3 - rank + i] = values[at + i];
  }
}

Spatial spatial_of(const NodeInfo& node, const Shape& weights) {
  Spatial spatial;
  const size_t rank = spatial.rank = weights.size() - 2;
  for (size_t i = 0; i < rank; ++i) spatial.kernel[3 - rank + i] = weights[2 + i];
  const Axes kernel = spatial.kernel;
  read_axes(node, "kernel_shape", rank, rank, 0, 1, spatial.kernel);
  if (spatial.kernel != kernel) throw Error("kernel_shape is not that of W, " + name_of(weights));
  read_axes(node, "strides", rank, rank, 0, 1, spatial.strides);
  read_axes(node, "dilations", rank, rank, 0, 1, spatial.dilations);
  read_axes(node, "pads", rank, 2 * rank, 0, 0, spatial.begins);
  read_axes(node, "pads", rank, 2 * rank, rank, 0, spatial.ends);
  read_axes(node, "output_padding", rank, rank, 0, 0, spatial.output_padding);
  return spatial;
}

template <class Body>
void for_axes(const Axes& sizes, const Body& body) {
  for (int64_t z = 0; z < sizes[0]; ++z) {
    for (int64_t y = 0; y < sizes[1]; ++y) {
      for (int64_t x = 0; x < sizes[2]; ++x) body(Axes{z, y, x});
    }
  }
}

// What Conv and ConvTranspose share: inputs and their checks. W is [first, second, kernel…].
class AnyConv : public Kernel {
 protected:
  AnyConv(const NodeInfo& node, bool is_transposed) {
    check_inputs(node.inputs, 2, 7);
    for (size_t i = 0; i < 2; ++i) check_integer(node.inputs[i].type, i ? "W" : "X");
    is_wide_ = has_16_bit(node, 2);
    const Tensor& w = node.inputs[1];
    if (!w.data) throw Error("W must be a constant");
    if (w.shape.size() < 3 || w.shape.size() > 5)
      throw Error("W has the shape " + name_of(w.shape) + "; one to three spatial axes are computed");
    if (w.count() == 0) throw Error("W has no elements");
    spatial_ = spatial_of(node, w.shape);
    const int64_t groups = node.attributes.integer("group", 1);
    if (groups < 1 || w.shape[0] % groups)
      throw Error("group is " + std::to_string(groups) + ", W " + name_of(w.shape));
    const auto first = static_cast<size_t>(w.shape[0] / groups), second = static_cast<size_t>(w.shape[1]);
    base_.isa = choose_isa(node.isa);
    base_.x_type = node.inputs[0].type, base_.w_type = w.type;
    base_.x_zero_point = zero_point_of(node, "x_zero_point", base_.x_type);
    base_.groups = static_cast<size_t>(groups);
    base_.in_channels = is_transposed ? first : second, base_.out_channels = is_transposed ? second : first;
    const size_t channels = out_channels();
    base_.w_zero_points = zero_points_of(node, "w_zero_points", w.type, channels);
    base_.bias = bias_of(node, 2, channels);
    base_.x_shift = x_shift_of(node);
    requantizer_ = Requantizer::of_inputs(node, 3, channels, integer_types());
  }

  // Weight i of `made` is that at at(i) of W.
  template <class At>
  std::unique_ptr<PreparedConvolution> convolution(Convolving made, const Tensor& w, size_t count, const At& at) const {
    if (!is_wide_) {
      made.weights.resize(count);
      for (size_t i = 0; i < count; ++i) made.weights[i] = w.as<uint8_t>()[at(i)];
      return std::make_unique<Convolution>(std::move(made), requantizer_);
    }
    made.words.resize(count);
    with_integer(w.type, [&](auto element) {
      const auto* from = w.as<decltype(element)>();
      for (size_t i = 0; i < count; ++i) made.words[i] = word_of(from[at(i)]);
    });
    return std::make_unique<WideConvolution>(std::move(made), requantizer_);
  }

  size_t x_bytes() const { return size_of(base_.x_type); }
  size_t y_bytes() const { return size_of(requantizer_.output.type); }
  size_t in_channels() const { return base_.groups * base_.in_channels; }
  size_t out_channels() const { return base_.groups * base_.out_channels; }

  Axes input_axes(const Tensor& x) const {
    check_type(x.type, base_.x_type, "X");
    if (x.shape.size() != spatial_.rank + 2 || x.shape[1] != static_cast<int64_t>(in_channels())) {
      throw Error("X has the shape " + name_of(x.shape) + "; " + std::to_string(in_channels()) + " channels and " +
                  std::to_string(spatial_.rank) + " spatial axes are meant");
    }
    Axes axes = {1, 1, 1};
    for (size_t i = 0; i < spatial_.rank; ++i) axes[3 - spatial_.rank + i] = x.shape[2 + i];
    return axes;
  }

  std::vector<Shape> output_shape(const Shape& x, const Axes& input, const Axes& output) const {
    Shape shape = {x[0], static_cast<int64_t>(out_channels())};
    for (size_t i = 0; i < spatial_.rank; ++i) {
      shape.push_back(output[3 - spatial_.rank + i]);
      if (shape.back() < 1) throw Error("X has the shape " + name_of(x) + ", the output would have no elements");
    }
    count_of(shape);
    // More than the memory of an image with its padding: it must be countable.
    int64_t bytes = static_cast<int64_t>(kTile * (in_channels() + out_channels()));
    for (size_t d = 0; d < 3; ++d) {
      const int64_t reach =
          multiply_sizes(spatial_.kernel[d], spatial_.dilations[d]) + spatial_.begins[d] + spatial_.ends[d];
      bytes = multiply_sizes(bytes, add_sizes(reach, add_sizes(input[d], output[d])));
    }
    return {shape};
  }

  Spatial spatial_;
  Convolving base_;  // taps and weights are the operators' own
  Requantizer requantizer_;
  bool is_wide_ = false;  // something has 16 bits
};

class Conv : public AnyConv {
 public:
  explicit Conv(const NodeInfo& node) : AnyConv(node, false) {
    Convolving from = base_;
    for_axes(spatial_.kernel, [&](const Axes& at) {
      Axes tap;
      for (size_t d = 0; d < 3; ++d) tap[d] = at[d] * spatial_.dilations[d] - spatial_.begins[d];
      from.taps.push_back(tap);
    });
    from.strides = spatial_.strides;
    const size_t taps = from.taps.size(), channels = from.in_channels;
    convolution_ = convolution(std::move(from), node.inputs[1], out_channels() * taps * channels, [=](size_t i) {
      const size_t c = i % channels, t = i / channels % taps, m = i / channels / taps;
      return (m * channels + c) * taps + t;
    });
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Axes input = input_axes(inputs[0]);
    return output_shape(inputs[0].shape, input, output_axes(input));
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Axes input = input_axes(inputs[0]);
    return convolution_->scratch(input, output_axes(input));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const Axes input = input_axes(inputs[0]), output = output_axes(input);
    const size_t x_size = in_channels() * static_cast<size_t>(count_of(input)) * x_bytes(),
                 y_size = out_channels() * static_cast<size_t>(count_of(output)) * y_bytes();
    for (int64_t n = 0; n < inputs[0].shape[0]; ++n) {
      convolution_->run(inputs[0].as<uint8_t>() + static_cast<size_t>(n) * x_size, input, output,
                        outputs[0].as<uint8_t>() + static_cast<size_t>(n) * y_size, scratch, parallel);
    }
  }

 private:
  Axes output_axes(const Axes& input) const {
    Axes output;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t reach = add_sizes(multiply_sizes(spatial_.kernel[d] - 1, spatial_.dilations[d]), 1);
      const int64_t padded = add_sizes(input[d], spatial_.begins[d] + spatial_.ends[d]);
      output[d] = padded < reach ? 0 : (padded - reach) / spatial_.strides[d] + 1;
    }
    return output;
  }

  std::unique_ptr<PreparedConvolution> convolution_;
};

// One convolution for each remainder of the output's positions by the strides: o = phase + stride·t takes the kernel
// elements k with phase + begin - k·dilation = stride·tap, and sees input position t + tap.
class ConvTranspose : public AnyConv {
 public:
  explicit ConvTranspose(const NodeInfo& node) : AnyConv(node, true) {
    const Spatial& s = spatial_;
    int64_t phases = 1;
    for (size_t d = 0; d < 3; ++d) {
      if (s.output_padding[d] >= std::max(s.strides[d], s.dilations[d]))
        throw Error("output_padding is not below the stride or the dilation");
      phases = multiply_sizes(phases, s.strides[d]);
    }
    if (phases > kMostPhases) throw Error("the product of the strides is " + std::to_string(phases) + "; 4096 at most");
    for_axes(s.strides, [&](const Axes& phase) { add(node.inputs[1], phase); });
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Axes input = input_axes(inputs[0]);
    return output_shape(inputs[0].shape, input, output_axes(input));
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Axes input = input_axes(inputs[0]), output = output_axes(input);
    size_t most = 0;
    for (const Phase& phase : phases_)
      most = std::max(most, phase.convolution->scratch(input, sub_axes(output, phase.at)));
    return most + (phases_.size() > 1 ? sub_bytes(output) : 0);
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const Axes input = input_axes(inputs[0]), output = output_axes(input);
    const size_t x_size = in_channels() * static_cast<size_t>(count_of(input)) * x_bytes(),
                 y_size = out_channels() * static_cast<size_t>(count_of(output)) * y_bytes();
    for (int64_t n = 0; n < inputs[0].shape[0]; ++n) {
      const uint8_t* x = inputs[0].as<uint8_t>() + static_cast<size_t>(n) * x_size;
      uint8_t* y = outputs[0].as<uint8_t>() + static_cast<size_t>(n) * y_size;
      for (const Phase& phase : phases_) {
        if (phases_.size() == 1) {
          phase.convolution->run(x, input, output, y, scratch, parallel);
          continue;
        }
        const Axes sub = sub_axes(output, phase.at);
        auto* part = static_cast<uint8_t*>(scratch);
        if (count_of(sub) == 0) continue;
        phase.convolution->run(x, input, sub, part, part + sub_bytes(output), parallel);
        if (y_bytes() == 1) spread(part, sub, phase.at, y, output, parallel);
        else spread(reinterpret_cast<uint16_t*>(part), sub, phase.at, reinterpret_cast<uint16_t*>(y), output, parallel);
      }
    }
  }

 private:
  struct Phase {
    Axes at;
    std::unique_ptr<PreparedConvolution> convolution;
  };

  void add(const Tensor& weights, const Axes& phase) {
    const Spatial& s = spatial_;
    Convolving from = base_;
    std::vector<size_t> elements;  // of the kernel
    size_t element = 0;
    for_axes(s.kernel, [&](const Axes& k) {
      Axes tap;
      bool is_seen = true;
      for (size_t d = 0; d < 3; ++d) {
        const int64_t distance = phase[d] + s.begins[d] - k[d] * s.dilations[d];
        is_seen = is_seen && distance % s.strides[d] == 0;
        tap[d] = distance / s.strides[d];
      }
      if (is_seen) from.taps.push_back(tap), elements.push_back(element);
      ++element;
    });
    const size_t taps = from.taps.size(), in = from.in_channels, out = from.out_channels;
    const auto at = [&](size_t i) {
      const size_t c = i % in, t = i / in % taps, m = i / in / taps;
      return ((m / out * in + c) * out + m % out) * element + elements[t];
    };
    phases_.push_back({phase, convolution(std::move(from), weights, out_channels() * taps * in, at)});
  }

  Axes output_axes(const Axes& input) const {
    const Spatial& s = spatial_;
    Axes output;
    for (size_t d = 0; d < 3; ++d) {
      if (input[d] < 1) throw Error("X has no elements");
      const int64_t reach = add_sizes(multiply_sizes(s.kernel[d] - 1, s.dilations[d]), 1);
      const int64_t whole =
          add_sizes(multiply_sizes(s.strides[d], input[d] - 1), add_sizes(reach, s.output_padding[d]));
      output[d] = std::max<int64_t>(0, whole - s.begins[d] - s.ends[d]);
    }
    return output;
  }

  // Positions of the output that a phase computes.
  Axes sub_axes(const Axes& output, const Axes& phase) const {
    Axes sub;
    for (size_t d = 0; d < 3; ++d) {
      sub[d] = output[d] > phase[d] ? (output[d] - phase[d] + spatial_.strides[d] - 1) / spatial_.strides[d] : 0;
    }
    return sub;
  }

  size_t sub_bytes(const Axes& output) const {
    return aligned(out_channels() * static_cast<size_t>(count_of(sub_axes(output, {0, 0, 0}))) * y_bytes());
  }

  template <class T>
  void spread(const T* part, const Axes& sub, const Axes& phase, T* y, const Axes& output,
              const ParallelFor& parallel) const {
    const Axes& strides = spatial_.strides;
    for_parts(parallel, static_cast<int64_t>(out_channels()), count_of(sub), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T* from = part + c * count_of(sub);
        T* plane = y + c * count_of(output);
        for (int64_t z = 0; z < sub[0]; ++z) {
          for (int64_t row = 0; row < sub[1]; ++row, from += sub[2]) {
            T* to =
                plane + ((z * strides[0] + phase[0]) * output[1] + row * strides[1] + phase[1]) * output[2] + phase[2];
            for (int64_t i = 0; i < sub[2]; ++i) to[i * strides[2]] = from[i];
          }
        }
      }
    });
  }

  std::vector<Phase> phases_;
};

std::vector<AttributeField> product_attributes(std::vector<AttributeField> own) {
  own.insert(own.end(), {{"x_zero_point", type_int}, {"w_zero_points", type_ints}, {"kernel_shape", type_ints},
                         {"strides", type_ints}, {"pads", type_ints}, {"dilations", type_ints}, {"group", type_int},
                         {"x_shift", type_int}});
  return arithmetic(own);
}

}  // namespace

const Operator conv{"Conv", {4, 7}, product_attributes({}), shapes::convolved, make_kernel<Conv>};
const Operator conv_transpose{"ConvTranspose", {4, 7}, product_attributes({{"output_padding", type_ints}}),
                              shapes::convolved_back, make_kernel<ConvTranspose>};

}  // namespace qdqtool
