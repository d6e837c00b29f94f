// GatherElements and GatherND: elements, or blocks of them, from where computed indices say.
#include <cstring>

#include "kernels/movement/indices.hpp"

namespace qdqtool {

namespace {

// output[i, j, k] = data[i, indices[i, j, k], k] for axis 1
class GatherElements : public MovingKernel {
 public:
  explicit GatherElements(const NodeInfo& node) : MovingKernel(node), axis_(node.attributes.integer("axis", 0)) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& data = check(inputs, 2, 2);
    check_elements(data, inputs[1], axis_from_start(axis_, data.size()));
    return {inputs[1].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Tensor& indices = inputs[1];
    const int64_t count = indices.count();
    if (count == 0) return;
    const Elements elements(inputs[0].shape, indices.shape, axis_from_start(axis_, inputs[0].shape.size()));
    check_all(indices, elements.size);
    with_bytes_of(inputs[0].type, [&](auto element) {
      using T = decltype(element);
      const T* data = inputs[0].as<T>();
      T* y = outputs[0].as<T>();
      for_parts(parallel, count / elements.length, elements.length, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* from = data + elements.offset(row);
          for (int64_t i = 0; i < elements.length; ++i) {
            const int64_t at = row * elements.length + i;
            y[at] = from[i * elements.pace() + index_from_start(indices, at, elements.size) * elements.step];
          }
        }
      });
    });
  }

 private:
  const int64_t axis_;
};

// output[b…, i…] = data[b…, indices[b…, i…]…]
class GatherND : public MovingKernel {
 public:
  explicit GatherND(const NodeInfo& node)
      : MovingKernel(node), batch_(static_cast<size_t>(std::max<int64_t>(0, node.attributes.integer("batch_dims", 0)))) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& data = check(inputs, 2, 2);
    check_tuples(data, inputs[1], batch_);
    Shape to(inputs[1].shape.begin(), inputs[1].shape.end() - 1);
    to.insert(to.end(), data.begin() + static_cast<std::ptrdiff_t>(batch_) + inputs[1].shape.back(), data.end());
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor&) const override {
    if (outputs[0].count() == 0) return;
    const Tensor &data = inputs[0], &indices = inputs[1];
    const Tuples tuples(data, indices, batch_);
    const int64_t block = count_between(data.shape, batch_ + tuples.length, data.shape.size());
    const auto element = static_cast<int64_t>(size_of(data.type));
    for (int64_t row = 0; row < tuples.rows; ++row) {
      std::memcpy(static_cast<char*>(outputs[0].data) + row * block * element,
                  static_cast<const char*>(data.data) + tuples.offset(data, indices, row) * element,
                  static_cast<size_t>(block * element));
    }
  }

 private:
  const size_t batch_;
};

}  // namespace

const Operator standard_gather_elements{"GatherElements", make_kernel<GatherElements>};
const Operator standard_gather_nd{"GatherND", make_kernel<GatherND>};

}  // namespace qdqtool
