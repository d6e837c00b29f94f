#include "program/interpreter.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "program/plan.hpp"

namespace qdqtool {

namespace {

constexpr size_t max_plans = 8;  // combinations of input shapes that are remembered

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) text += (text.size() > 1 ? ", " : "") + (dim < 0 ? std::string("?") : std::to_string(dim));
  return text + "]";
}

}  // namespace

// A copy of the plan's calls with addresses in them. Only inputs and outputs of the program change from run to run.
struct Workspace {
  struct Free {
    void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{arena_alignment}); }
  };

  std::shared_ptr<const Plan> plan;
  std::unique_ptr<char, Free> arena;
  size_t arena_bytes = 0;
  std::vector<Call> calls;
  struct Patch {
    Tensor* tensor;
    Place place;
  };
  std::vector<Patch> patches;

  void bind(std::shared_ptr<const Plan> wanted) {
    plan = nullptr;  // until all is bound
    if (wanted->arena_bytes > arena_bytes) {
      arena.reset();
      arena_bytes = 0;
      arena.reset(static_cast<char*>(::operator new(wanted->arena_bytes, std::align_val_t{arena_alignment})));
      arena_bytes = wanted->arena_bytes;
    }
    calls = wanted->calls;
    patches.clear();
    for (Call& call : calls) {
      for (size_t i = 0; i < call.inputs.size(); ++i) place(call.inputs[i], call.input_places[i]);
      for (size_t i = 0; i < call.outputs.size(); ++i) place(call.outputs[i], call.output_places[i]);
    }
    plan = std::move(wanted);
  }

  void place(Tensor& tensor, Place where) {
    if (where.kind == Place::arena) tensor.data = arena.get() + where.at;
    if (where.kind == Place::input || where.kind == Place::output) patches.push_back({&tensor, where});
  }
};

Interpreter::Interpreter(std::shared_ptr<const Program> program) : program_(std::move(program)) {
  for (const Node& node : program_->nodes) {
    try {
      kernels_.push_back(node.op->make(node.info));
    } catch (const Error& error) {
      throw Error(describe(node.info) + ": " + error.what());
    }
  }
  std::vector<Tensor> inputs;
  for (const int v : program_->inputs) {
    const Value& value = program_->values[v];
    if (!value.has_shape || std::count(value.shape.begin(), value.shape.end(), -1)) return;
    inputs.push_back({value.type, value.shape, nullptr});
  }
  give_back(take(plan_for(inputs)));
}

Interpreter::~Interpreter() = default;

void Interpreter::check_inputs(const std::vector<Tensor>& inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& stated = program_->values[program_->inputs[i]];
    const Tensor& given = inputs[i];
    bool fits = given.type == stated.type && (!stated.has_shape || given.shape.size() == stated.shape.size());
    for (size_t d = 0; fits && stated.has_shape && d < stated.shape.size(); ++d) {
      fits = stated.shape[d] < 0 || stated.shape[d] == given.shape[d];
    }
    if (fits) continue;
    const auto text = [](DataType type, const Shape& shape) { return "type " + std::to_string(int(type)) + " " + text_of(shape); };
    throw Error("input '" + stated.name + "' of the program is " + text(stated.type, stated.shape) + ", the session gives " +
                text(given.type, given.shape));
  }
}

std::shared_ptr<const Plan> Interpreter::plan_for(const std::vector<Tensor>& inputs) const {
  const auto fits = [&inputs](const std::shared_ptr<const Plan>& plan) {
    return std::equal(inputs.begin(), inputs.end(), plan->input_shapes.begin(), plan->input_shapes.end(),
                      [](const Tensor& tensor, const Shape& shape) { return tensor.shape == shape; });
  };
  {
    const Lock lock(mutex_);
    const auto found = std::find_if(plans_.begin(), plans_.end(), fits);
    if (found != plans_.end()) {
      plans_.splice(plans_.begin(), plans_, found);
      return *found;
    }
  }
  auto plan = make_plan(*program_, kernels_, inputs);  // two threads may make the same one: no harm
  const Lock lock(mutex_);
  plans_.push_front(plan);
  if (plans_.size() > max_plans) plans_.pop_back();
  return plan;
}

std::unique_ptr<Workspace> Interpreter::take(std::shared_ptr<const Plan> plan) const {
  std::unique_ptr<Workspace> workspace;
  {
    const Lock lock(mutex_);
    // One that is bound to the plan, else any: binding again costs less than another arena.
    auto found = std::find_if(workspaces_.rbegin(), workspaces_.rend(), [&plan](const auto& free) { return free->plan == plan; });
    if (found == workspaces_.rend()) found = workspaces_.rbegin();
    if (found != workspaces_.rend()) {
      workspace = std::move(*found);
      workspaces_.erase(std::next(found).base());
    }
  }
  if (!workspace) workspace = std::make_unique<Workspace>();
  if (workspace->plan != plan) workspace->bind(std::move(plan));
  return workspace;
}

void Interpreter::give_back(std::unique_ptr<Workspace> workspace) const {
  const Lock lock(mutex_);
  workspaces_.push_back(std::move(workspace));
}

void Interpreter::run(const std::vector<Tensor>& inputs, const Allocate& allocate, const ParallelFor& parallel) const {
  check_inputs(inputs);
  std::unique_ptr<Workspace> workspace = take(plan_for(inputs));
  const Plan& plan = *workspace->plan;
  std::vector<void*> outputs(plan.output_shapes.size());
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = allocate(i, plan.output_shapes[i]);
  for (const Workspace::Patch& patch : workspace->patches) {
    patch.tensor->data = patch.place.kind == Place::input ? inputs[patch.place.at].data : outputs[patch.place.at];
  }
  for (Call& call : workspace->calls) {
    try {
      void* scratch = call.has_scratch ? workspace->arena.get() + call.scratch : nullptr;
      kernels_[call.node]->run(call.inputs, call.outputs, scratch, parallel);
    } catch (const Error& error) {
      throw Error(describe(program_->nodes[call.node].info) + ": " + error.what());
    }
  }
  for (const Copy& copy : plan.copies) {
    const void* from = copy.from.kind == Place::constant ? copy.data
                       : copy.from.kind == Place::input  ? inputs[copy.from.at].data
                                                         : outputs[copy.from.at];
    if (copy.bytes) std::memcpy(outputs[copy.output], from, copy.bytes);
  }
  give_back(std::move(workspace));
}

}  // namespace qdqtool
