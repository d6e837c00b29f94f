#include "program/plan.hpp"

#include <algorithm>
#include <limits>
#include <map>

namespace qdqtool {

namespace {

constexpr size_t max_bytes = size_t{1} << (sizeof(size_t) == 8 ? 44 : 30);  // no machine has more; keeps sums from overflowing

size_t rounded(size_t bytes) {
  if (bytes > max_bytes) throw Error("needs " + std::to_string(bytes) + " bytes of memory");
  return std::max((bytes + arena_alignment - 1) / arena_alignment * arena_alignment, arena_alignment);
}

size_t bytes_of(const Tensor& tensor) {
  if (tensor.shape.size() > max_rank) throw Error("has a tensor of " + std::to_string(tensor.shape.size()) + " dimensions");
  const auto count = static_cast<uint64_t>(tensor.count());
  const size_t element = size_of(tensor.type);
  if (count > max_bytes / element) throw Error("has a tensor of " + std::to_string(count) + " elements");
  return count * element;
}

// Hands out bytes of an arena that grows: the smallest gap that fits, else the end. Freed bytes join the gaps beside them.
class Arena {
 public:
  size_t take(size_t bytes) {
    auto best = gaps_.end();
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      if (gap->second >= bytes && (best == gaps_.end() || gap->second < best->second)) best = gap;
    }
    if (best == gaps_.end()) {
      // A gap at the end is made longer rather than left behind.
      size_t at = size_;
      if (!gaps_.empty() && gaps_.rbegin()->first + gaps_.rbegin()->second == size_) {
        at = gaps_.rbegin()->first;
        gaps_.erase(at);
      }
      size_ = at + bytes;
      if (size_ > max_bytes) throw Error("the program needs " + std::to_string(size_) + " bytes of memory");
      return at;
    }
    const size_t at = best->first, left = best->second - bytes;
    gaps_.erase(best);
    if (left) gaps_[at + bytes] = left;
    return at;
  }

  void give_back(size_t at, size_t bytes) {
    auto next = gaps_.lower_bound(at);
    if (next != gaps_.end() && at + bytes == next->first) {
      bytes += next->second;
      next = gaps_.erase(next);
    }
    if (next != gaps_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    gaps_[at] = bytes;
  }

  size_t size() const { return size_; }

 private:
  std::map<size_t, size_t> gaps_;  // first byte → number of bytes
  size_t size_ = 0;
};

class Planner {
 public:
  Planner(const Program& program, const std::vector<std::unique_ptr<Kernel>>& kernels, const std::vector<Tensor>& inputs)
      : program_(program), kernels_(kernels), tensors_(program.values.size()), roots_(program.values.size()),
        places_(program.values.size()), plan_(std::make_shared<Plan>()) {
    for (size_t v = 0; v < program.values.size(); ++v) {
      const Value& value = program.values[v];
      tensors_[v].type = value.type;
      roots_[v] = static_cast<int>(v);
      if (!value.is_constant) continue;
      tensors_[v].shape = value.shape;
      tensors_[v].data = const_cast<void*>(value.data);
      places_[v].kind = Place::constant;
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      plan_->input_shapes.push_back(inputs[i].shape);
      tensors_[program.inputs[i]].shape = inputs[i].shape;
      places_[program.inputs[i]] = {Place::input, i};
    }
  }

  std::shared_ptr<const Plan> plan() {
    infer();
    place_outputs();
    place_arena();
    fill_in();
    return plan_;
  }

 private:
  // Runs `body` for every node; an Error in it gets the node's name.
  template <class Body>
  void for_each_node(Body body) {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      try {
        body(n, program_.nodes[n]);
      } catch (const Error& error) {
        throw Error(describe(program_.nodes[n].info) + ": " + error.what());
      }
    }
  }

  std::vector<Tensor> tensors_at(const std::vector<int>& values) const {
    std::vector<Tensor> found;
    for (const int v : values) found.push_back(v < 0 ? Tensor() : tensors_[v]);
    return found;
  }

  // Shapes, the memory each node needs, and which values are others under another shape.
  void infer() {
    calls_.resize(program_.nodes.size());
    for_each_node([this](size_t n, const Node& node) {
      Call& call = calls_[n];
      call.node = n;
      call.inputs = tensors_at(node.inputs);
      const std::vector<Shape> shapes = kernels_[n]->infer(call.inputs);
      if (shapes.size() != node.outputs.size()) {
        throw Error("has " + std::to_string(shapes.size()) + " outputs, the program names " + std::to_string(node.outputs.size()));
      }
      for (size_t i = 0; i < shapes.size(); ++i) {
        tensors_[node.outputs[i]].shape = shapes[i];
        bytes_of(tensors_[node.outputs[i]]);
      }
      call.outputs = tensors_at(node.outputs);
      if (kernels_[n]->is_view()) {
        const bool has_both = !node.inputs.empty() && node.inputs[0] >= 0 && shapes.size() == 1;
        if (!has_both || bytes_of(call.inputs[0]) != bytes_of(call.outputs[0])) throw Error("is no view of its input");
        roots_[node.outputs[0]] = roots_[node.inputs[0]];
      }
      scratch_.push_back(kernels_[n]->scratch(call.inputs));
      call.has_scratch = scratch_.back() > 0;
    });
  }

  // What the program gives back is written where it goes; what cannot be (an input, a constant, one value twice) is copied at the end.
  void place_outputs() {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const int value = program_.outputs[i], root = roots_[value];
      plan_->output_shapes.push_back(tensors_[value].shape);
      if (places_[root].kind == Place::arena) {
        places_[root] = {Place::output, i};
      } else {
        plan_->copies.push_back({places_[root], tensors_[root].data, i, bytes_of(tensors_[value])});
      }
    }
  }

  // Every other value lives from the node that computes it to the last that reads it, or a view of it.
  void place_arena() {
    constexpr size_t never = std::numeric_limits<size_t>::max();
    std::vector<size_t> last(program_.values.size(), never);
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      for (const int v : program_.nodes[n].inputs) {
        if (v >= 0) last[roots_[v]] = n;
      }
      for (const int v : program_.nodes[n].outputs) last[roots_[v]] = n;
    }
    std::vector<std::vector<int>> dying(program_.nodes.size());
    for (size_t v = 0; v < last.size(); ++v) {
      if (last[v] != never && places_[v].kind == Place::arena) dying[last[v]].push_back(static_cast<int>(v));
    }
    Arena arena;
    for_each_node([&](size_t n, const Node& node) {
      for (const int v : node.outputs) {
        if (roots_[v] == v && places_[v].kind == Place::arena) places_[v].at = arena.take(rounded(bytes_of(tensors_[v])));
      }
      if (calls_[n].has_scratch) {
        const size_t bytes = rounded(scratch_[n]);
        calls_[n].scratch = arena.take(bytes);
        arena.give_back(calls_[n].scratch, bytes);
      }
      for (const int v : dying[n]) arena.give_back(places_[v].at, rounded(bytes_of(tensors_[v])));
    });
    plan_->arena_bytes = arena.size();
  }

  // The calls in order, without the views.
  void fill_in() {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      if (kernels_[n]->is_view()) continue;
      Call& call = calls_[n];
      for (const int v : program_.nodes[n].inputs) call.input_places.push_back(v < 0 ? Place{Place::constant, 0} : places_[roots_[v]]);
      for (const int v : program_.nodes[n].outputs) call.output_places.push_back(places_[roots_[v]]);
      // The view of a constant has its data.
      for (size_t i = 0; i < call.inputs.size(); ++i) {
        const int v = program_.nodes[n].inputs[i];
        if (v >= 0) call.inputs[i].data = tensors_[roots_[v]].data;
      }
      plan_->calls.push_back(std::move(call));
    }
  }

  const Program& program_;
  const std::vector<std::unique_ptr<Kernel>>& kernels_;
  std::vector<Tensor> tensors_;   // of each value
  std::vector<int> roots_;        // of each value: the one whose memory it shares, itself mostly
  std::vector<Place> places_;     // of each root
  std::vector<Call> calls_;       // of each node
  std::vector<size_t> scratch_;   // of each node, bytes
  std::shared_ptr<Plan> plan_;
};

}  // namespace

std::shared_ptr<const Plan> make_plan(const Program& program, const std::vector<std::unique_ptr<Kernel>>& kernels,
                                      const std::vector<Tensor>& inputs) {
  return Planner(program, kernels, inputs).plan();
}

}  // namespace qdqtool
