// ScatterElements, ScatterND, TensorScatter: the data with some elements replaced; of two updates of one element the last stays.
#include <cstring>

#include "kernels/movement/indices.hpp"

namespace qdqtool {

namespace {

void refuse_reduction(const NodeInfo& node) {
  const std::string reduction = node.attributes.text("reduction", "none");
  if (reduction != "none") throw Error("reduces (" + reduction + "); elements are replaced");
}

void copy_all(const Tensor& from, Tensor& to, const ParallelFor& parallel) {
  copy_bytes(from.data, to.data, from.count() * static_cast<int64_t>(size_of(from.type)), parallel);
}

// output[i, indices[i, j, k], k] = updates[i, j, k] for axis 1
class ScatterElements : public MovingKernel {
 public:
  explicit ScatterElements(const NodeInfo& node) : MovingKernel(node), axis_(node.attributes.integer("axis", 0)) {
    check_outputs(node, 1);
    refuse_reduction(node);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& data = check(inputs, 3, 3);
    check_elements(data, inputs[1], axis_from_start(axis_, data.size()));
    check_type(inputs[2].type, inputs[0].type, "what is scattered");
    if (inputs[2].shape != inputs[1].shape) {
      throw Error("scatters " + name_of(inputs[2].shape) + " to the indices " + name_of(inputs[1].shape));
    }
    return {data};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Tensor& indices = inputs[1];
    copy_all(inputs[0], outputs[0], parallel);
    const int64_t count = indices.count();
    if (count == 0) return;
    const Elements elements(inputs[0].shape, indices.shape, axis_from_start(axis_, inputs[0].shape.size()));
    check_all(indices, elements.size);
    // What differs before the axis meets in no element: such parts run at once.
    const int64_t parts = count_between(indices.shape, 0, elements.axis), rows = count / elements.length;
    const int64_t inner = elements.axis + 1 == indices.shape.size() ? 1 : rows / parts;
    with_bytes_of(inputs[0].type, [&](auto element) {
      using T = decltype(element);
      const T* updates = inputs[2].as<T>();
      T* y = outputs[0].as<T>();
      for_parts(parallel, rows / inner, inner * elements.length, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin * inner; row < end * inner; ++row) {
          T* to = y + elements.offset(row);
          for (int64_t i = 0; i < elements.length; ++i) {
            const int64_t at = row * elements.length + i;
            to[i * elements.pace() + index_from_start(indices, at, elements.size) * elements.step] = updates[at];
          }
        }
      });
    });
  }

 private:
  const int64_t axis_;
};

// output[indices[i…]…] = updates[i…]
class ScatterND : public MovingKernel {
 public:
  explicit ScatterND(const NodeInfo& node) : MovingKernel(node) {
    check_outputs(node, 1);
    refuse_reduction(node);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& data = check(inputs, 3, 3);
    check_tuples(data, inputs[1], 0);
    check_type(inputs[2].type, inputs[0].type, "what is scattered");
    Shape wanted(inputs[1].shape.begin(), inputs[1].shape.end() - 1);
    wanted.insert(wanted.end(), data.begin() + inputs[1].shape.back(), data.end());
    if (inputs[2].shape != wanted) {
      throw Error("scatters " + name_of(inputs[2].shape) + " to the indices " + name_of(inputs[1].shape) + " of " +
                  name_of(data));
    }
    return {data};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Tensor &data = inputs[0], &indices = inputs[1];
    copy_all(data, outputs[0], parallel);
    if (inputs[2].count() == 0) return;
    const Tuples tuples(data, indices, 0);
    const auto element = static_cast<int64_t>(size_of(data.type));
    const int64_t bytes = count_between(data.shape, tuples.length, data.shape.size()) * element;
    for (int64_t row = 0; row < tuples.rows; ++row) {
      std::memcpy(static_cast<char*>(outputs[0].data) + tuples.offset(data, indices, row) * element,
                  static_cast<const char*>(inputs[2].data) + row * bytes, static_cast<size_t>(bytes));
    }
  }
};

// output[b, …, write_indices[b] + i, …] = update[b, …, i, …] along `axis`; circular: beyond the end from the start on.
class TensorScatter : public MovingKernel {
 public:
  explicit TensorScatter(const NodeInfo& node) : MovingKernel(node), axis_(node.attributes.integer("axis", -2)) {
    check_outputs(node, 1);
    const std::string mode = node.attributes.text("mode", "linear");
    if (mode != "linear" && mode != "circular") throw Error("mode is '" + mode + "'; one of linear, circular");
    circular_ = mode == "circular";
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& data = check(inputs, 2, 3);
    const size_t axis = axis_from_start(axis_, data.size());
    if (axis == 0) throw Error("axis 0 is the batch");
    check_type(inputs[1].type, inputs[0].type, "the update");
    Shape update = inputs[1].shape;
    bool fits = update.size() == data.size() && update[axis] <= data[axis];
    if (fits) update[axis] = data[axis];
    if (!fits || update != data) throw Error(name_of(inputs[1].shape) + " is no update of " + name_of(data));
    if (has_input(inputs, 2)) {
      check_index_type(inputs[2]);
      if (inputs[2].shape != Shape{data[0]}) throw Error("write_indices has the shape " + name_of(inputs[2].shape));
    }
    return {data};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    copy_all(inputs[0], outputs[0], parallel);
    if (inputs[1].count() == 0) return;
    const size_t axis = axis_from_start(axis_, shape.size());
    const int64_t batches = shape[0], rows = count_between(shape, 1, axis), size = shape[axis], more = inputs[1].shape[axis];
    const int64_t step = count_between(shape, axis + 1, shape.size()) * static_cast<int64_t>(size_of(inputs[0].type));
    const auto* update = static_cast<const char*>(inputs[1].data);
    auto* y = static_cast<char*>(outputs[0].data);
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t start = has_input(inputs, 2) ? index_at(inputs[2], b) : 0;
      if (start < 0 || start >= size + (more == 0) || (!circular_ && start > size - more)) {
        throw Error("writes " + std::to_string(more) + " elements from " + std::to_string(start) + " on of an axis of " +
                    std::to_string(size));
      }
      const int64_t first = std::min(more, size - start);  // what is left goes to the start
      for (int64_t row = b * rows; row < (b + 1) * rows; ++row) {
        char* to = y + row * size * step;
        const char* from = update + row * more * step;
        std::memcpy(to + start * step, from, static_cast<size_t>(first * step));
        std::memcpy(to, from + first * step, static_cast<size_t>((more - first) * step));
      }
    }
  }

 private:
  const int64_t axis_;
  bool circular_ = false;
};

}  // namespace

const Operator standard_scatter_elements{"ScatterElements", make_kernel<ScatterElements>};
const Operator standard_scatter_nd{"ScatterND", make_kernel<ScatterND>};
const Operator standard_tensor_scatter{"TensorScatter", make_kernel<TensorScatter>};

}  // namespace qdqtool
