// ai.qdqtool::Lookup where the index or the entries have 16 bits: n entries, 256 of an 8-bit index and 65536 of one of 16 bits; one
// table [n], or one for each index of an axis, [C, n].
#include "elements.hpp"
#include "wide.hpp"

namespace qdqtool {

namespace {

// An element read as the place of its entry: its value minus the type's minimum.
template <class T>
size_t place(T x) {
  return static_cast<size_t>(static_cast<int32_t>(x) - static_cast<int32_t>(std::numeric_limits<T>::min()));
}

template <class X, class Y>
void look(const X* __restrict x, const Y* __restrict table, int64_t count, Y* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = table[place(x[i])];
}

class WideLookup : public Kernel {
 public:
  explicit WideLookup(const NodeInfo& node) : axis_(node.attributes.integer("axis", 0)) {
    check_outputs(node, 1);
    check_inputs(node.inputs, 2, 2);
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    table_ = node.inputs[1];
    check_integer(table_.type, "the table");
    check_type(table_.type, node.outputs[0], "the table");
    if (!table_.data) throw Error("the table must be a constant");
    entries_ = int64_t{1} << (8 * size_of(input_));
    const Shape& shape = table_.shape;
    if (shape.empty() || shape.size() > 2 || shape.back() != entries_ || table_.count() == 0) {
      const std::string entries = std::to_string(entries_) + "]";
      throw Error("the table has the shape " + name_of(shape) + "; [" + entries + " or [C, " + entries + " is meant");
    }
    channels_ = shape.size() == 2 ? shape[0] : 0;
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    count_of(shape);
    if (channels_ == 0) return {shape};
    const size_t axis = axis_from_start(axis_, shape.size());
    if (shape[axis] != channels_) {
      throw Error(std::to_string(channels_) + " tables do not fit axis " + std::to_string(axis) + " of " + name_of(shape));
    }
    return {shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    if (channels_ == 0) {
      return for_parts(parallel, count, 1,
                       [&](int64_t begin, int64_t end) { run(inputs[0], outputs[0], begin, end - begin, 0); });
    }
    const int64_t inner = count_between(shape, axis_from_start(axis_, shape.size()) + 1, shape.size());
    for_parts(parallel, count / inner, inner, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) run(inputs[0], outputs[0], row * inner, inner, row % channels_);
    });
  }

 private:
  void run(const Tensor& x, Tensor& y, int64_t first, int64_t count, int64_t channel) const {
    with_integer(input_, [&](auto index) {
      using X = decltype(index);
      with_integer(table_.type, [&](auto entry) {
        using Y = decltype(entry);
        look(x.as<X>() + first, table_.as<Y>() + channel * entries_, count, y.as<Y>() + first);
      });
    });
  }

  const int64_t axis_;
  int64_t entries_, channels_;  // channels_: 0 where there is one table
  DataType input_;
  Tensor table_;  // a constant, which outlives the kernel
};

}  // namespace

std::unique_ptr<Kernel> make_wide_lookup(const NodeInfo& node) { return make_kernel<WideLookup>(node); }

}  // namespace qdqtool
