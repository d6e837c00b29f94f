// ai.qdqtool::ReduceMean where a tensor has 16 bits, and ::ReduceSum, ::ReduceMax and ::ReduceMin of 8 or 16. Either rows of the input
// are gathered into one number, or rows into a row.
#include "reduced_axes.hpp"
#include "wide.hpp"
#include "mean.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kColumns = 256;  // numbers that rows are gathered into at a time

// Numbers are gathered by adding, or by keeping the greater or the lesser one.
struct Adding {
  static QDQTOOL_INLINE int64_t join(int64_t a, int64_t b) { return a + b; }
};
struct Greater {
  static QDQTOOL_INLINE int64_t join(int64_t a, int64_t b) { return a > b ? a : b; }
};
struct Lesser {
  static QDQTOOL_INLINE int64_t join(int64_t a, int64_t b) { return a < b ? a : b; }
};

template <class Gather, class T>
struct GatherLoop {
  static QDQTOOL_INLINE void run(const T* __restrict x, int64_t count, int64_t* into) {
    int64_t found = *into;
    for (int64_t i = 0; i < count; ++i) found = Gather::join(found, x[i]);
    *into = found;
  }
};

template <class Gather, class T>
struct GatherRowsLoop {
  static QDQTOOL_INLINE void run(const T* __restrict x, int64_t count, int64_t* __restrict into) {
    for (int64_t i = 0; i < count; ++i) into[i] = Gather::join(into[i], x[i]);
  }
};

// A reduction: numbers begin at `first_`, and element() makes an output of one.
template <class Gather>
class Reduction : public Kernel {
 public:
  Reduction(const NodeInfo& node, DataType input, int64_t first)
      : isa_(choose_isa(node.isa)), reduced_(node), input_(input), first_(first) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const final {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, input_, "input 0");
    int64_t count = 1;
    const Shape to = reduced_.shape(inputs[0].shape, count);
    if (count == 0 && !is_defined_of_none() && qdqtool::count_of(to) > 0) {
      throw Error("no elements of " + name_of(inputs[0].shape) + " are reduced, which is not defined");
    }
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const final {
    if (outputs[0].count() == 0) return;
    const MergedAxes axes(inputs[0].shape, reduced_.of(inputs[0].shape.size()));
    with_integer(input_, [&](auto from) {
      with_integer(outputs[0].type, [&](auto to) {
        const auto* x = inputs[0].as<decltype(from)>();
        auto* y = outputs[0].as<decltype(to)>();
        axes.last_goes ? gather(x, y, axes, parallel) : gather_rows(x, y, axes, parallel);
      });
    });
  }

 protected:
  // What `count` elements that were gathered become.
  virtual int64_t element(int64_t gathered, int64_t count) const = 0;
  virtual bool is_defined_of_none() const { return false; }

 private:
  template <class X, class Y>
  void gather(const X* x, Y* y, const MergedAxes& axes, const ParallelFor& parallel) const {
    const int64_t rows = qdqtool::count_of(axes.gone), count = rows * axes.length;
    for_parts(parallel, qdqtool::count_of(axes.kept), count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const X* from = x + offset_of(axes.kept, i);
        int64_t found = first_;
        for (int64_t row = 0; row < rows; ++row) {
          run_loop<GatherLoop<Gather, X>>(isa_, from + offset_of(axes.gone, row), axes.length, &found);
        }
        y[i] = static_cast<Y>(element(found, count));
      }
    });
  }

  template <class X, class Y>
  void gather_rows(const X* x, Y* y, const MergedAxes& axes, const ParallelFor& parallel) const {
    const int64_t rows = qdqtool::count_of(axes.gone), strips = (axes.length + kColumns - 1) / kColumns;
    for_parts(parallel, qdqtool::count_of(axes.kept) * strips, rows * kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % strips * kColumns, width = std::min(kColumns, axes.length - first);
        const X* from = x + offset_of(axes.kept, i / strips) + first;
        int64_t found[kColumns];
        std::fill(found, found + width, first_);
        for (int64_t row = 0; row < rows; ++row) {
          run_loop<GatherRowsLoop<Gather, X>>(isa_, from + offset_of(axes.gone, row), width,
                                              static_cast<int64_t*>(found));
        }
        Y* to = y + i / strips * axes.length + first;
        for (int64_t j = 0; j < width; ++j) to[j] = static_cast<Y>(element(found[j], rows));
      }
    });
  }

  const Isa isa_;
  const Reduced reduced_;
  const DataType input_;
  const int64_t first_;
};

// The attribute's divisor: the count of a mean, 1 of a sum.
template <bool divides>
class WideSum : public Reduction<Adding> {
 public:
  explicit WideSum(const NodeInfo& node) : WideSum(node, Mean(node)) {}

 protected:
  int64_t element(int64_t gathered, int64_t count) const override {
    return mean_(gathered - count * mean_.zero(), divides ? count : 1);
  }
  bool is_defined_of_none() const override { return !divides; }

 private:
  WideSum(const NodeInfo& node, const Mean& mean) : Reduction<Adding>(node, mean.input(), 0), mean_(mean) {}

  const Mean mean_;
};

template <class Gather>
class Extreme : public Reduction<Gather> {
 public:
  explicit Extreme(const NodeInfo& node)
      : Reduction<Gather>(node, checked(node),
                          Gather::join(0, 1) == 1 ? std::numeric_limits<int64_t>::min()
                                                  : std::numeric_limits<int64_t>::max()) {}

 protected:
  int64_t element(int64_t gathered, int64_t) const override { return gathered; }

 private:
  static DataType checked(const NodeInfo& node) {
    check_inputs(node.inputs, 1, 1);
    check_outputs(node, 1);
    check_integer(node.inputs[0].type, "input 0");
    check_type(node.outputs[0], node.inputs[0].type, "the output");
    return node.inputs[0].type;
  }
};

}  // namespace

std::unique_ptr<Kernel> make_wide_reduce_mean(const NodeInfo& node) { return make_kernel<WideSum<true>>(node); }

void register_reductions(KernelTable& table) {
  table["ai.qdqtool::ReduceSum"] = make_kernel<WideSum<false>>;
  table["ai.qdqtool::ReduceMax"] = make_kernel<Extreme<Greater>>;
  table["ai.qdqtool::ReduceMin"] = make_kernel<Extreme<Lesser>>;
}

}  // namespace qdqtool
