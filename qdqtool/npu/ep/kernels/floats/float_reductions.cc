// ai.qdqtool::FloatReduce, FloatSoftmax, FloatNorm and FloatPool: sums and maxima in float32, one element after the other in the order of
// the index.
#include "kernels/floats/floats.hpp"
#include "kernels/movement/movement.hpp"
#include "kernels/shared/windows.hpp"

namespace qdqtool {

namespace {

float larger(float most, float x) { return x > most || x != x ? x : most; }

enum class Fold { sum, mean, max, min, sum_square, l1, l2 };

Fold fold_named(const std::string& word) {
  static const std::map<std::string, Fold> known = {{"Sum", Fold::sum}, {"Mean", Fold::mean},            {"Max", Fold::max},
                                                    {"Min", Fold::min}, {"SumSquare", Fold::sum_square}, {"L1", Fold::l1},
                                                    {"L2", Fold::l2}};
  const auto found = known.find(word);
  if (found == known.end()) throw Error("function is '" + word + "', which reduces nothing");
  return found->second;
}

class Reduce : public FloatKernel {
 public:
  explicit Reduce(const NodeInfo& node)
      : FloatKernel(node), fold_(fold_named(node.attributes.text("function", ""))), axes_(node.attributes.integers("axes", {})),
        keep_(node.attributes.integer("keepdims", 1) != 0) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_floats(inputs, 1);
    const Shape& x = inputs[0].shape;
    const std::vector<bool> reduced = reduced_axes(x);
    Shape y;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!reduced[i]) y.push_back(x[i]);
      else if (keep_) y.push_back(1);
      if (reduced[i] && x[i] == 0) throw Error("it reduces an axis without elements");
    }
    return {y};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    return floats(inputs[0].count()) + floats(count_of(infer(inputs)[0]));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Shape& x = inputs[0].shape;
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    FloatMemory memory(scratch);
    float* const numbers = memory.take(inputs[0].count());
    float* const results = memory.take(count);
    read(inputs[0], numbers, parallel);
    const std::vector<bool> reduced = reduced_axes(x);
    const std::vector<int64_t> inner = places(x, reduced, true), outer = places(x, reduced, false);
    const auto length = static_cast<int64_t>(inner.size());
    for_parts(parallel, count, length, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) results[i] = fold(numbers + outer[static_cast<size_t>(i)], inner.data(), length);
    });
    write(results, outputs[0], parallel);
  }

 private:
  std::vector<bool> reduced_axes(const Shape& x) const {
    std::vector<bool> reduced(x.size(), axes_.empty());
    for (const size_t axis : axes_from_start(axes_, x.size())) reduced[axis] = true;
    return reduced;
  }

  // Where the elements of the axes lie that are reduced, or of the others, in the order of the index.
  static std::vector<int64_t> places(const Shape& x, const std::vector<bool>& reduced, bool which) {
    const Shape strides = strides_of(x);
    std::vector<int64_t> found = {0};
    for (size_t i = 0; i < x.size(); ++i) {
      if (reduced[i] != which) continue;
      std::vector<int64_t> longer;
      longer.reserve(found.size() * static_cast<size_t>(x[i]));
      for (const int64_t at : found) {
        for (int64_t j = 0; j < x[i]; ++j) longer.push_back(at + j * strides[i]);
      }
      found = std::move(longer);
    }
    return found;
  }

  float fold(const float* x, const int64_t* at, int64_t length) const {
    if (fold_ == Fold::max || fold_ == Fold::min) {
      float found = x[at[0]];
      for (int64_t i = 1; i < length; ++i) {
        const float v = x[at[i]];
        found = fold_ == Fold::max ? larger(found, v) : v < found || v != v ? v : found;
      }
      return found + 0.0f;
    }
    float total = 0;
    for (int64_t i = 0; i < length; ++i) {
      const float v = x[at[i]];
      total = total + (fold_ == Fold::sum_square || fold_ == Fold::l2 ? v * v : fold_ == Fold::l1 ? std::fabs(v) : v);
    }
    if (fold_ == Fold::mean) return total / static_cast<float>(length);
    return fold_ == Fold::l2 ? std::sqrt(total) : total;
  }

  const Fold fold_;
  const std::vector<int64_t> axes_;
  const bool keep_;
};

// d = x - max, e = e^d, both rounded; y = e / Σe.
class Softmax : public FloatKernel {
 public:
  explicit Softmax(const NodeInfo& node) : FloatKernel(node), axis_(node.attributes.integer("axis", -1)) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_floats(inputs, 1);
    axis_from_start(axis_, inputs[0].shape.size());
    return {inputs[0].shape};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override { return floats(inputs[0].count()); }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    auto* const numbers = static_cast<float*>(scratch);
    read(inputs[0], numbers, parallel);
    const size_t axis = axis_from_start(axis_, shape.size());
    const int64_t length = shape[axis], inner = count_between(shape, axis + 1, shape.size());
    for_parts(parallel, count / length, length * 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) compute(numbers + row / inner * length * inner + row % inner, length, inner);
    });
    write(numbers, outputs[0], parallel);
  }

 private:
  float rounded(float x) const {
    return precision_ == Precision::float16 ? to_float16(x) : precision_ == Precision::bfloat16 ? to_bfloat16(x) : x;
  }

  void compute(float* x, int64_t length, int64_t step) const {
    float most = x[0], total = 0;
    for (int64_t i = 1; i < length; ++i) most = larger(most, x[i * step]);
    for (int64_t i = 0; i < length; ++i) {
      float& e = x[i * step];
      e = rounded(exponential(rounded(e - most)));
      total = total + e;
    }
    for (int64_t i = 0; i < length; ++i) x[i * step] = x[i * step] / total;
  }

  const int64_t axis_;
};

// d = x - Σx / n (without center: x), y = d·(1 / √(Σd² / n + epsilon)), then ·scale, + bias. A group is everything from `axis` on, or
// with num_groups (0: one per channel) a part of the channels of [N, C, …]; scale and bias have an entry per element of a group, or per
// channel, or per group.
class Norm : public FloatKernel {
 public:
  explicit Norm(const NodeInfo& node)
      : FloatKernel(node), axis_(node.attributes.integer("axis", -1)), groups_(node.attributes.integer("num_groups", -1)),
        center_(node.attributes.integer("center", 1) != 0), epsilon_(node.attributes.real("epsilon", 1e-5f)) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 3);
    check_floats(inputs, 3);
    const Shape& x = inputs[0].shape;
    const Layout layout = layout_of(x);
    for (size_t i = 1; i < 3; ++i) {
      if (!has_input(inputs, i)) continue;
      const int64_t entries = inputs[i].count();
      const int64_t most = groups_ < 0 ? layout.length : x[1];
      if (entries < 1 || most % entries) throw Error("input " + std::to_string(i) + " has the shape " + name_of(inputs[i].shape));
    }
    return {x};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    size_t bytes = floats(inputs[0].count());
    for (size_t i = 1; i < 3; ++i) bytes += has_input(inputs, i) ? floats(inputs[i].count()) : 0;
    return bytes;
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Shape& x = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    FloatMemory memory(scratch);
    float* const numbers = memory.take(count);
    read(inputs[0], numbers, parallel);
    const Layout layout = layout_of(x);
    for_parts(parallel, count / layout.length, layout.length * 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) normalize(numbers + row * layout.length, layout.length);
    });
    for (size_t i = 1; i < 3; ++i) {
      if (!has_input(inputs, i)) continue;
      const int64_t entries = inputs[i].count(), inner = layout.covered / entries;
      float* const own = memory.take(entries);
      read(inputs[i], own, parallel);
      for_parts(parallel, count / inner, inner, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const float number = own[part % entries];
          float* const to = numbers + part * inner;
          for (int64_t j = 0; j < inner; ++j) to[j] = i == 1 ? to[j] * number : to[j] + number;
        }
      });
    }
    write(numbers, outputs[0], parallel);
  }

 private:
  struct Layout {
    int64_t length;   // elements of a group
    int64_t covered;  // elements that one tensor of scales covers
  };

  Layout layout_of(const Shape& x) const {
    if (groups_ < 0) {
      const int64_t length = count_between(x, axis_from_start(axis_, x.size()), x.size());
      return {std::max<int64_t>(1, length), std::max<int64_t>(1, length)};
    }
    if (x.size() < 2) throw Error("a tensor of shape " + name_of(x) + " has no channels");
    const int64_t groups = groups_ == 0 ? x[1] : groups_, image = count_between(x, 1, x.size());
    if (groups < 1 || x[1] % groups) throw Error(std::to_string(groups) + " groups of " + std::to_string(x[1]) + " channels");
    return {std::max<int64_t>(1, image / groups), std::max<int64_t>(1, image)};
  }

  void normalize(float* x, int64_t length) const {
    const auto n = static_cast<float>(length);
    if (center_) {
      float total = 0;
      for (int64_t i = 0; i < length; ++i) total = total + x[i];
      const float mean = total / n;
      for (int64_t i = 0; i < length; ++i) x[i] = x[i] - mean;
    }
    float total = 0;
    for (int64_t i = 0; i < length; ++i) total = total + x[i] * x[i];
    const float factor = 1.0f / std::sqrt(total / n + epsilon_);
    for (int64_t i = 0; i < length; ++i) x[i] = x[i] * factor;
  }

  const int64_t axis_, groups_;
  const bool center_;
  const float epsilon_;
};

class Pool : public FloatKernel {
 public:
  explicit Pool(const NodeInfo& node)
      : FloatKernel(node), window_(node), fold_(fold_named(node.attributes.text("function", ""))),
        counts_padding_(node.attributes.integer("count_include_pad", 0) != 0) {
    if (fold_ != Fold::max && fold_ != Fold::mean) throw Error("a pool takes Max or Mean");
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_floats(inputs, 1);
    return {window_.output_shape(inputs[0].shape)};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    return floats(inputs[0].count()) + floats(count_of(window_.output_shape(inputs[0].shape)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    FloatMemory memory(scratch);
    float* const numbers = memory.take(inputs[0].count());
    float* const results = memory.take(count);
    read(inputs[0], numbers, parallel);
    const Windows w = window_.windows(inputs[0].shape);
    const int64_t rows = count / w[2].out;
    for_parts(parallel, rows, w[2].out * w[2].kernel * w[1].kernel, [&](int64_t begin, int64_t end) {
      OutputRow at(w, begin);
      for (int64_t row = begin; row < end; ++row, at.next(w)) {
        const float* const plane = numbers + at.plane * w[0].in * w[1].in * w[2].in;
        for (int64_t i = 0; i < w[2].out; ++i) results[row * w[2].out + i] = fold(w, plane, at, i);
      }
    });
    write(results, outputs[0], parallel);
  }

 private:
  float fold(const Windows& w, const float* x, const OutputRow& at, int64_t column) const {
    const int64_t index[] = {at.depth, at.height, column};
    WindowAxis::Taps taps[3];
    int64_t start[3], counted = 1;
    for (int i = 0; i < 3; ++i) {
      taps[i] = w[i].inside(index[i]);
      start[i] = w[i].start(index[i]);
      counted *= (counts_padding_ ? w[i].padded(index[i]) : taps[i]).count();
    }
    const bool is_max = fold_ == Fold::max;
    float found = is_max ? -std::numeric_limits<float>::infinity() : 0.0f;
    for (int64_t d = taps[0].first; d < taps[0].last; ++d) {
      for (int64_t h = taps[1].first; h < taps[1].last; ++h) {
        const float* const row = x + ((start[0] + d * w[0].dilation) * w[1].in + start[1] + h * w[1].dilation) * w[2].in;
        for (int64_t v = taps[2].first; v < taps[2].last; ++v) {
          const float number = row[start[2] + v * w[2].dilation];
          found = is_max ? larger(found, number) : found + number;
        }
      }
    }
    return is_max ? found + 0.0f : found / static_cast<float>(std::max<int64_t>(1, counted));
  }

  const WindowAttributes window_;
  const Fold fold_;
  const bool counts_padding_;
};

}  // namespace

const Operator float_reduce{"FloatReduce", {1, 1}, floating({{"function", type_string}, {"axes", type_ints},
                            {"keepdims", type_int}}), shapes::reduced, make_kernel<Reduce>};
const Operator float_softmax{"FloatSoftmax", {1, 1}, floating({{"axis", type_int}}), shapes::as_input, make_kernel<Softmax>};
const Operator float_norm{"FloatNorm", {1, 3}, floating({{"axis", type_int}, {"num_groups", type_int}, {"center", type_int},
                          {"epsilon", type_float}}), shapes::as_input, make_kernel<Norm>};
const Operator float_pool{"FloatPool", {1, 1}, floating({{"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints},
                          {"dilations", type_ints}, {"group", type_int}, {"function", type_string}, {"ceil_mode", type_int},
                          {"count_include_pad", type_int}}), shapes::pooled, make_kernel<Pool>};

}  // namespace qdqtool
