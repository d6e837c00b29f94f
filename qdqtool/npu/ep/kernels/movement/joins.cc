// Concat and Split: blocks of an axis, one tensor each.
#include <cstring>

#include "kernels/movement/movement.hpp"

namespace qdqtool {

namespace {

// Rows of `bytes` bytes, `from` and `to` bytes apart.
struct Rows {
  const char* source;
  char* target;
  int64_t bytes, from, to;
};

void copy_rows(const Rows& rows, int64_t count, const ParallelFor& parallel) {
  if (rows.bytes == 0) return;
  if (rows.bytes == rows.from && rows.bytes == rows.to) {
    return copy_bytes(rows.source, rows.target, count * rows.bytes, parallel);
  }
  for_parts(parallel, count, rows.bytes / 8, [&](int64_t begin, int64_t end) {  // 8 bytes copy as fast as an element
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(rows.target + i * rows.to, rows.source + i * rows.from, static_cast<size_t>(rows.bytes));
    }
  });
}

// Around `axis` of a shape: rows before it, bytes of one step along it.
struct Around {
  int64_t before, step;
  Around(const Shape& shape, size_t axis, DataType type)
      : before(count_between(shape, 0, axis)),
        step(multiply_sizes(count_between(shape, axis + 1, shape.size()), static_cast<int64_t>(size_of(type)))) {}
};

class Concat : public MovingKernel {
 public:
  explicit Concat(const NodeInfo& node) : MovingKernel(node), axis_(node.attributes.integer("axis")) {
    check_outputs(node, 1);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    Shape to = check(inputs, 1, inputs.size());
    const size_t axis = axis_from_start(axis_, to.size());
    for (size_t i = 1; i < inputs.size(); ++i) {
      Shape next = inputs[i].shape;
      check_type(inputs[i].type, inputs[0].type, "an input");
      inputs[i].count();
      if (next.size() == to.size()) {
        const int64_t length = add_sizes(to[axis], next[axis]);
        next[axis] = to[axis];
        if (next == to) {
          to[axis] = length;
          continue;
        }
      }
      throw Error(name_of(inputs[0].shape) + " and " + name_of(inputs[i].shape) + " differ beside axis " +
                  std::to_string(axis));
    }
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Tensor& output = outputs[0];
    if (output.count() == 0) return;
    const size_t axis = axis_from_start(axis_, output.shape.size());
    const Around around(output.shape, axis, output.type);
    char* target = static_cast<char*>(output.data);
    for (const Tensor& input : inputs) {
      const int64_t bytes = input.shape[axis] * around.step;
      copy_rows({static_cast<const char*>(input.data), target, bytes, bytes, output.shape[axis] * around.step},
                around.before, parallel);
      target += bytes;
    }
  }

 private:
  const int64_t axis_;
};

// Lengths from the attribute (opset 11) or input `split`; without them equal parts, of which with num_outputs (opset 18) the last
// may be shorter.
class Split : public MovingKernel {
 public:
  explicit Split(const NodeInfo& node)
      : MovingKernel(node),
        axis_(node.attributes.integer("axis", 0)),
        lengths_(attribute_list(node, "split")),
        parts_(static_cast<int64_t>(node.outputs.size())),
        uneven_(node.attributes.ints.count("num_outputs") > 0) {
    if (node.attributes.integer("num_outputs", parts_) != parts_) {
      throw Error("has " + std::to_string(parts_) + " outputs and num_outputs " +
                  std::to_string(node.attributes.integer("num_outputs")));
    }
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    const Shape& from = check(inputs, 1, 2);
    const size_t axis = axis_from_start(axis_, from.size());
    std::vector<Shape> to;
    for (const int64_t length : lengths(inputs, from[axis])) {
      to.push_back(from);
      to.back()[axis] = length;
    }
    return to;
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Tensor& input = inputs[0];
    if (input.count() == 0) return;
    const size_t axis = axis_from_start(axis_, input.shape.size());
    const Around around(input.shape, axis, input.type);
    const char* source = static_cast<const char*>(input.data);
    for (Tensor& output : outputs) {
      const int64_t bytes = output.shape[axis] * around.step;
      copy_rows({source, static_cast<char*>(output.data), bytes, input.shape[axis] * around.step, bytes}, around.before,
                parallel);
      source += bytes;
    }
  }

 private:
  std::vector<int64_t> lengths(const std::vector<Tensor>& inputs, int64_t whole) const {
    Listed found = attribute_or_input(lengths_, inputs, 1, "split");
    if (!found.has) {
      const int64_t part = whole / parts_ + (whole % parts_ != 0);
      if (whole % parts_ != 0 && !uneven_) {
        throw Error(std::to_string(whole) + " is not " + std::to_string(parts_) + " equal parts");
      }
      for (int64_t i = 0, left = whole; i < parts_; ++i, left -= found.values.back()) {
        found.values.push_back(std::min(part, left));
      }
      return found.values;
    }
    int64_t sum = 0;
    for (const int64_t length : found.values) {
      if (length < 0) throw Error("split has a length of " + std::to_string(length));
      sum = add_sizes(sum, length);
    }
    if (static_cast<int64_t>(found.values.size()) != parts_ || sum != whole) {
      throw Error("split " + name_of(found.values) + " does not fit an axis of " + std::to_string(whole) + " and " +
                  std::to_string(parts_) + " outputs");
    }
    return found.values;
  }

  const int64_t axis_;
  const Listed lengths_;
  const int64_t parts_;
  const bool uneven_;
};

}  // namespace

const Operator standard_concat{"Concat", make_kernel<Concat>};
const Operator standard_split{"Split", make_kernel<Split>};

}  // namespace qdqtool
