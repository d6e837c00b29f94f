// Slice and Pad: less of an axis, or more of it.
#include "kernels/movement/movement.hpp"

namespace qdqtool {

namespace {

// Every step-th index from start on, `count` of them.
struct Range {
  int64_t start = 0, step = 1, count = 0;
};

// What ONNX's Slice takes of an axis of `size`: start and end may be negative or out of range, as in Python.
Range range_of(int64_t start, int64_t end, int64_t step, int64_t size) {
  if (step == 0) throw Error("a step is 0");
  if (size == 0) return {0, 1, 0};
  const bool forward = step > 0;
  const auto bounded = [&](int64_t index, int64_t low, int64_t high) {
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  start = forward ? bounded(start, 0, size) : bounded(start, 0, size - 1);
  end = forward ? bounded(end, 0, size) : bounded(end, -1, size - 1);
  const uint64_t length = forward ? (end > start ? static_cast<uint64_t>(end - start) : 0)
                                  : (start > end ? static_cast<uint64_t>(start - end) : 0);
  const uint64_t pace = forward ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const auto count = static_cast<int64_t>(length / pace + (length % pace != 0));
  return {start, count > 1 ? step : 1, count};
}

class Slice : public MovingKernel {
 public:
  explicit Slice(const NodeInfo& node) : MovingKernel(node) { check_outputs(node, 1); }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check(inputs, 3, 5);
    Shape to;
    for (const Range& range : ranges(inputs)) to.push_back(range.count);
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const size_t element = size_of(inputs[0].type);
    const Shape strides = strides_of(inputs[0].shape);
    std::vector<Axis> axes;
    int64_t first = 0;
    const std::vector<Range> taken = ranges(inputs);
    for (size_t i = 0; i < taken.size(); ++i) {
      first += taken[i].start * strides[i];
      axes.push_back({taken[i].count, taken[i].step * strides[i], nullptr});
    }
    const char* source = static_cast<const char*>(inputs[0].data) + first * static_cast<int64_t>(element);
    move_elements(axes, element, source, outputs[0].data, nullptr, parallel);
  }

 private:
  static std::vector<Range> ranges(const std::vector<Tensor>& inputs) {
    const Shape& from = inputs[0].shape;
    std::vector<Range> taken;
    for (const int64_t size : from) taken.push_back({0, 1, size});
    const std::vector<int64_t> starts = integers_in(inputs[1], "starts"), ends = integers_in(inputs[2], "ends");
    std::vector<int64_t> axes, steps(starts.size(), 1);
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
    if (has_input(inputs, 3)) axes = integers_in(inputs[3], "axes");
    if (has_input(inputs, 4)) steps = integers_in(inputs[4], "steps");
    if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
      throw Error("starts, ends, axes and steps differ in length");
    }
    const std::vector<size_t> named = axes_from_start(axes, from.size());
    for (size_t i = 0; i < named.size(); ++i) taken[named[i]] = range_of(starts[i], ends[i], steps[i], from[named[i]]);
    return taken;
  }
};

enum class Mode { constant, reflect, edge, wrap };

Mode mode_named(const std::string& name) {
  if (name == "constant") return Mode::constant;
  if (name == "reflect") return Mode::reflect;
  if (name == "edge") return Mode::edge;
  if (name == "wrap") return Mode::wrap;
  throw Error("mode '" + name + "' is unknown; one of constant, reflect, edge, wrap");
}

constexpr int64_t kFarthest = int64_t{1} << 60;  // pads beyond are refused: sums with them stay within 64 bits

// Elements before and after an axis; negative ones cut, before anything is reflected or repeated.
struct Ends {
  int64_t before = 0, after = 0;
};

// The index of the input for index `at` of the output, -1 for the constant; size is the input's.
int64_t source_index(int64_t at, Ends ends, int64_t size, Mode mode) {
  int64_t index = at - ends.before;
  if (mode == Mode::constant) return index < 0 || index >= size ? -1 : index;
  const int64_t low = std::max<int64_t>(0, -ends.before), kept = size - low - std::max<int64_t>(0, -ends.after);
  index -= low;
  if (mode == Mode::edge) return low + std::clamp<int64_t>(index, 0, kept - 1);
  const int64_t period = mode == Mode::wrap ? kept : std::max<int64_t>(1, 2 * (kept - 1));
  index %= period;
  if (index < 0) index += period;
  return low + (index < kept ? index : period - index);
}

// ai.qdqtool::Pad has the pads of all axes as an attribute, and the constant as its second input.
class Pad : public MovingKernel {
 public:
  explicit Pad(const NodeInfo& node, size_t constant = 2)
      : MovingKernel(node),
        constant_(constant),
        pads_(attribute_list(node, "pads")),
        mode_(mode_named(node.attributes.text("mode", "constant"))) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, constant_ + 2);
    if (has_input(inputs, constant_)) {
      const Tensor& constant = inputs[constant_];
      check_type(constant.type, inputs[0].type, "the constant");
      if (constant.count() != 1) throw Error("the constant has the shape " + name_of(constant.shape));
    }
    const std::vector<Ends> ends = ends_of(inputs);
    Shape to;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto [before, after] = ends[i];
      const int64_t kept = add_sizes(add_sizes(from[i], std::min<int64_t>(before, 0)), std::min<int64_t>(after, 0));
      to.push_back(add_sizes(add_sizes(from[i], before), after));
      if (to.back() < 0) {
        throw Error("the pads cut more than axis " + std::to_string(i) + " of " + name_of(from) + " has");
      }
      if (mode_ != Mode::constant && kept <= 0 && to.back() > 0) {
        throw Error("the pads of axis " + std::to_string(i) + " of " + name_of(from) + " leave nothing to repeat");
      }
    }
    return {to};
  }

  // A map for each axis that changes, of as many entries as the output is long there.
  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Shape to = infer(inputs)[0];
    if (count_of(to) == 0) return 0;
    int64_t entries = 0;
    for (size_t i = 0; i < to.size(); ++i) entries = add_sizes(entries, to[i]);
    return static_cast<size_t>(multiply_sizes(entries, sizeof(int64_t)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const Shape& from = inputs[0].shape;
    const std::vector<Ends> ends = ends_of(inputs);
    const Shape strides = strides_of(from);
    auto* map = static_cast<int64_t*>(scratch);
    std::vector<Axis> axes;
    for (size_t i = 0; i < from.size(); ++i) {
      const int64_t length = outputs[0].shape[i];
      const bool changes = ends[i].before != 0 || ends[i].after != 0;
      axes.push_back({length, strides[i], changes ? map : nullptr});
      for (int64_t at = 0; changes && at < length; ++at) *map++ = source_index(at, ends[i], from[i], mode_);
    }
    const void* fill = has_input(inputs, constant_) ? inputs[constant_].data : nullptr;
    move_elements(axes, size_of(inputs[0].type), inputs[0].data, outputs[0].data, fill, parallel);
  }

 private:
  std::vector<Ends> ends_of(const std::vector<Tensor>& inputs) const {
    const size_t rank = inputs[0].shape.size();
    const Listed pads = constant_ == 1 ? pads_ : attribute_or_input(pads_, inputs, 1, "pads");
    std::vector<int64_t> axes;
    for (size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
    if (constant_ == 2 && has_input(inputs, 3)) axes = integers_in(inputs[3], "axes");
    if (pads.values.size() != 2 * axes.size()) {
      throw Error(std::to_string(pads.values.size()) + " pads for " + std::to_string(axes.size()) +
                  " axes; two for each are needed");
    }
    for (const int64_t pad : pads.values) {
      if (pad < -kFarthest || pad > kFarthest) throw Error("a pad of " + std::to_string(pad) + " elements");
    }
    std::vector<Ends> ends(rank);
    const std::vector<size_t> named = axes_from_start(axes, rank);
    for (size_t i = 0; i < named.size(); ++i) ends[named[i]] = {pads.values[i], pads.values[i + named.size()]};
    return ends;
  }

  const size_t constant_;
  const Listed pads_;
  const Mode mode_;
};

std::unique_ptr<Kernel> make_own_pad(const NodeInfo& node) { return std::make_unique<Pad>(node, 1); }

}  // namespace

const Operator standard_slice{"Slice", make_kernel<Slice>};
const Operator standard_pad{"Pad", make_kernel<Pad>};
const Operator pad{"Pad", {1, 2}, {{"pads", type_ints}, {"mode", type_string}}, shapes::padded, make_own_pad};

}  // namespace qdqtool
