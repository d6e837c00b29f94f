// Where: elements of one tensor or of another, as a third says, with numpy broadcasting; Trilu: one side of the diagonal.
#include <array>

#include "kernels/movement/indices.hpp"
#include "kernels/shared/broadcast.hpp"

namespace qdqtool {

namespace {

constexpr size_t kOperands = 3;  // condition, then what is taken where it holds, and where not

struct Step {
  int64_t size;
  std::array<int64_t, kOperands> stride;
};

// The axes of the result, the innermost first; those along which all operands step alike are one.
std::vector<Step> steps_of(const std::vector<Tensor>& inputs, const Shape& shape) {
  std::vector<Step> steps;
  std::array<int64_t, kOperands> stride{1, 1, 1};
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t size = shape[shape.size() - 1 - i];
    Step step{size, {0, 0, 0}};
    for (size_t k = 0; k < kOperands; ++k) {
      const Shape& own = inputs[k].shape;
      if (i >= own.size() || own[own.size() - 1 - i] == 1) continue;
      step.stride[k] = stride[k];
      stride[k] *= size;
    }
    if (size == 1) continue;
    bool follows = !steps.empty();
    for (size_t k = 0; follows && k < kOperands; ++k) follows = step.stride[k] == steps.back().stride[k] * steps.back().size;
    if (follows) {
      steps.back().size *= size;
    } else {
      steps.push_back(step);
    }
  }
  if (steps.empty()) steps.push_back({1, {1, 1, 1}});
  return steps;
}

class Where : public Kernel {
 public:
  explicit Where(const NodeInfo& node) : output_(node.outputs.empty() ? DataType::none : node.outputs[0]) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 3, 3);
    check_type(inputs[0].type, DataType::boolean, "the condition");
    for (size_t i = 1; i < kOperands; ++i) check_type(inputs[i].type, output_, "an input");
    return {broadcast_shape(inputs[0].shape, broadcast_shape(inputs[1].shape, inputs[2].shape))};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const std::vector<Step> steps = steps_of(inputs, outputs[0].shape);
    with_bytes_of(output_, [&](auto element) {
      using T = decltype(element);
      T* y = outputs[0].as<T>();
      const Step row = steps[0];
      for_parts(parallel, outputs[0].count() / row.size, row.size, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          std::array<int64_t, kOperands> at{0, 0, 0};
          int64_t rest = r;
          for (size_t k = 1; k < steps.size(); ++k) {
            const int64_t index = rest % steps[k].size;
            rest /= steps[k].size;
            for (size_t o = 0; o < kOperands; ++o) at[o] += index * steps[k].stride[o];
          }
          const uint8_t* condition = inputs[0].as<uint8_t>() + at[0];
          const T *a = inputs[1].as<T>() + at[1], *b = inputs[2].as<T>() + at[2];
          T* to = y + r * row.size;
          for (int64_t i = 0; i < row.size; ++i) {
            to[i] = condition[i * row.stride[0]] ? a[i * row.stride[1]] : b[i * row.stride[2]];
          }
        }
      });
    });
  }

 private:
  const DataType output_;
};

// upper: y[i, j] = x[i, j] where j - i >= k, else j - i <= k; `fill` elsewhere.
class Trilu : public MovingKernel {
 public:
  explicit Trilu(const NodeInfo& node)
      : MovingKernel(node),
        upper_(node.attributes.integer("upper", 1) != 0),
        k_(node.attributes.integer("k", 0)),
        fill_(node.attributes.integer("fill", 0)) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& x = check(inputs, 1, 1);
    if (x.size() < 2) throw Error(name_of(x) + " has no diagonal");
    return {x};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    const int64_t rows = shape[shape.size() - 2], columns = shape.back();
    const int64_t k = std::clamp(k_, -rows, columns);
    with_bytes_of(inputs[0].type, [&](auto element) {
      using T = decltype(element);
      const T *x = inputs[0].as<T>(), fill = static_cast<T>(fill_);
      T* y = outputs[0].as<T>();
      for_parts(parallel, count / columns, columns, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t i = r % rows, edge = std::clamp<int64_t>(upper_ ? i + k : i + k + 1, 0, columns);
          const T* from = x + r * columns;
          T* to = y + r * columns;
          std::copy(from, from + columns, to);
          if (upper_) {
            std::fill(to, to + edge, fill);
          } else {
            std::fill(to + edge, to + columns, fill);
          }
        }
      });
    });
  }

 private:
  const bool upper_;
  const int64_t k_, fill_;
};

}  // namespace

const Operator standard_where{"Where", make_kernel<Where>, type_of_second};
const Operator where{"Where", {3, 3}, {}, shapes::broadcast, make_kernel<Where>, type_of_second};
const Operator trilu{"Trilu", {1, 1}, {{"upper", type_int}, {"k", type_int}, {"fill", type_int}}, shapes::as_input,
                     make_kernel<Trilu>};

}  // namespace qdqtool
