// ai.qdqtool::ReduceMean, ::ReduceSum, ::ReduceMax and ::ReduceMin of 8 or 16 bits, over any axes. Axes that are kept, and axes that are
// not, are merged where they lie side by side; then either rows of the input are gathered into one number, or rows into a row.
#include "kernels/reductions/mean.hpp"
#include "kernels/reductions/reduced_axes.hpp"
#include "kernels/shared/elements.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kColumns = 256;               // numbers that are gathered at a time
constexpr int64_t kRows = int64_t{1} << 14;     // rows of 16 bits whose sums 32 bits hold

// Numbers are gathered by adding, or by keeping the greater or the lesser one, from `none` on.
struct Adding {
  static constexpr int32_t none = 0;
  template <class T>
  static QDQTOOL_INLINE T join(T a, T b) { return a + b; }
};
struct Greater {
  static constexpr int32_t none = std::numeric_limits<int32_t>::min();
  template <class T>
  static QDQTOOL_INLINE T join(T a, T b) { return a > b ? a : b; }
};
struct Lesser {
  static constexpr int32_t none = std::numeric_limits<int32_t>::max();
  template <class T>
  static QDQTOOL_INLINE T join(T a, T b) { return a < b ? a : b; }
};

template <class Gather, class T>
struct GatherLoop {
  static QDQTOOL_INLINE void run(const void* elements, int64_t count, int64_t* __restrict into) {
    const T* __restrict x = static_cast<const T*>(elements);
    int64_t found = *into, i = 0;
    for (; i + kColumns <= count; i += kColumns) {
      int32_t part = Gather::none;
      for (int j = 0; j < kColumns; ++j) part = Gather::join(part, static_cast<int32_t>(x[i + j]));
      found = Gather::join(found, int64_t{part});
    }
    for (; i < count; ++i) found = Gather::join(found, static_cast<int64_t>(x[i]));
    *into = found;
  }
};

template <class Gather, class T>
struct GatherRowsLoop {
  static QDQTOOL_INLINE void run(const void* elements, int64_t count, int32_t* __restrict into) {
    const T* __restrict x = static_cast<const T*>(elements);
    if (count == kColumns) {
      for (int j = 0; j < kColumns; ++j) into[j] = Gather::join(into[j], static_cast<int32_t>(x[j]));
    } else {
      for (int64_t j = 0; j < count; ++j) into[j] = Gather::join(into[j], static_cast<int32_t>(x[j]));
    }
  }
};

// Columns of parts into those of all.
template <class Gather>
void join_parts(const int32_t* part, int64_t count, int64_t* into) {
  for (int64_t j = 0; j < count; ++j) into[j] = Gather::join(into[j], int64_t{part[j]});
}

// How elements of a type are gathered.
struct Gathering {
  int32_t none = 0;
  void (*row)(const void* elements, int64_t count, int64_t* into) = nullptr;
  void (*rows)(const void* elements, int64_t count, int32_t* into) = nullptr;
  void (*parts)(const int32_t* part, int64_t count, int64_t* into) = nullptr;
};

template <class Gather>
Gathering gathering_of(DataType type, Isa isa) {
  Gathering found{Gather::none, nullptr, nullptr, join_parts<Gather>};
  with_integer(type, [&](auto element) {
    using T = decltype(element);
    found.row = loop_of<GatherLoop<Gather, T>, const void*, int64_t, int64_t*>(isa);
    found.rows = loop_of<GatherRowsLoop<Gather, T>, const void*, int64_t, int32_t*>(isa);
  });
  return found;
}

// A reduction: element() makes an output of what is gathered.
class Reduction : public Kernel {
 public:
  Reduction(const NodeInfo& node, DataType input, Gathering (*gathering)(DataType, Isa))
      : isa_(choose_isa(node.isa)), reduced_(node), input_(input), gathering_(gathering(input, isa_)) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const final {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, input_, "input 0");
    int64_t count = 1;
    const Shape to = reduced_.shape(inputs[0].shape, count);
    const std::string undefined = count == 0 && qdqtool::count_of(to) > 0 ? undefined_of(name_of(inputs[0].shape)) : "";
    if (!undefined.empty()) throw Error(undefined);
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const final {
    if (outputs[0].count() == 0) return;
    const MergedAxes axes(inputs[0].shape, reduced_.of(inputs[0].shape.size()));
    axes.last_goes ? gather(inputs[0], outputs[0], axes, parallel) : gather_rows(inputs[0], outputs[0], axes, parallel);
  }

 protected:
  // What `count` elements that were gathered become.
  virtual int64_t element(int64_t gathered, int64_t count) const = 0;
  // What is wrong where no elements of a shape are reduced; nothing where that is defined.
  virtual std::string undefined_of(const std::string& shape) const {
    return "no elements of " + shape + " are reduced, which is not defined";
  }

 private:
  void gather(const Tensor& x, Tensor& y, const MergedAxes& axes, const ParallelFor& parallel) const {
    const int64_t rows = qdqtool::count_of(axes.gone), count = rows * axes.length;
    for_parts(parallel, qdqtool::count_of(axes.kept), count, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kColumns) {
        const int64_t width = std::min(kColumns, end - first);
        int32_t elements[kColumns];
        for (int64_t j = 0; j < width; ++j) {
          const int64_t start = offset_of(axes.kept, first + j);
          int64_t found = gathering_.none;
          for (int64_t row = 0; row < rows; ++row) {
            gathering_.row(at(x, start + offset_of(axes.gone, row)), axes.length, &found);
          }
          elements[j] = static_cast<int32_t>(element(found, count));
        }
        narrow(isa_, elements, first, width, y);
      }
    });
  }

  void gather_rows(const Tensor& x, Tensor& y, const MergedAxes& axes, const ParallelFor& parallel) const {
    const int64_t rows = qdqtool::count_of(axes.gone), strips = (axes.length + kColumns - 1) / kColumns;
    for_parts(parallel, qdqtool::count_of(axes.kept) * strips, rows * kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % strips * kColumns, width = std::min(kColumns, axes.length - first);
        const int64_t start = offset_of(axes.kept, i / strips) + first;
        int64_t found[kColumns];
        std::fill(found, found + width, gathering_.none);
        for (int64_t row = 0; row < rows;) {
          int32_t part[kColumns];
          std::fill(part, part + width, gathering_.none);
          for (const int64_t last = std::min(rows, row + kRows); row < last; ++row) {
            gathering_.rows(at(x, start + offset_of(axes.gone, row)), width, part);
          }
          gathering_.parts(part, width, found);
        }
        int32_t elements[kColumns];
        for (int64_t j = 0; j < width; ++j) elements[j] = static_cast<int32_t>(element(found[j], rows));
        narrow(isa_, elements, i / strips * axes.length + first, width, y);
      }
    });
  }

  const void* at(const Tensor& x, int64_t element) const {
    return static_cast<const uint8_t*>(x.data) + element * static_cast<int64_t>(size_of(input_));
  }

  const Isa isa_;
  const Reduced reduced_;
  const DataType input_;
  const Gathering gathering_;
};

// A mean, or a sum: the mean of one.
template <bool divides>
class Sum : public Reduction {
 public:
  explicit Sum(const NodeInfo& node) : Sum(node, Mean(node)) {}

 protected:
  int64_t element(int64_t gathered, int64_t count) const override {
    return mean_(gathered - count * mean_.zero(), divides ? count : 1);
  }
  std::string undefined_of(const std::string& shape) const override {
    return divides ? "the mean of no elements of " + shape + " is not defined" : "";
  }

 private:
  Sum(const NodeInfo& node, const Mean& mean) : Reduction(node, mean.input(), gathering_of<Adding>), mean_(mean) {}

  const Mean mean_;
};

template <class Gather>
class Extreme : public Reduction {
 public:
  explicit Extreme(const NodeInfo& node) : Reduction(node, checked(node), gathering_of<Gather>) {}

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

const std::vector<AttributeField> sum_attributes = arithmetic({{"x_zero_point", type_int}, {"axes", type_ints},
                                                               {"keepdims", type_int}, {"multiplier", type_int},
                                                               {"shift", type_int}, {"scale", type_float},
                                                               {"factor", type_float}});
const Operator reduce_mean{"ReduceMean", {1, 1}, sum_attributes, shapes::reduced, make_kernel<Sum<true>>};
const Operator reduce_sum{"ReduceSum", {1, 1}, sum_attributes, shapes::reduced, make_kernel<Sum<false>>};
const Operator reduce_max{"ReduceMax", {1, 1}, {{"axes", type_ints}, {"keepdims", type_int}}, shapes::reduced,
                          make_kernel<Extreme<Greater>>};
const Operator reduce_min{"ReduceMin", {1, 1}, {{"axes", type_ints}, {"keepdims", type_int}}, shapes::reduced,
                          make_kernel<Extreme<Lesser>>};

}  // namespace qdqtool
