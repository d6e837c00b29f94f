#include "provider/fused_node.hpp"

#include <algorithm>

namespace qdqtool {

namespace {

using Names = std::vector<std::string>;

Names names_of(const Api& api, const std::vector<const ort::ValueInfo*>& values) {
  Names names;
  for (const ort::ValueInfo* value : values) names.push_back(api.name_of(value));
  return names;
}

// For each value of the program, where the node has it. `context`: names in the EPContext node, empty when there is none.
std::vector<size_t> match(const Program& program, const std::vector<int>& values, const Names& node, const Names& context,
                          const char* what) {
  std::vector<size_t> places;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string& name = program.values[values[i]].name;
    auto found = std::find(node.begin(), node.end(), name);
    if (found == node.end() && context.size() == values.size()) found = std::find(node.begin(), node.end(), context[i]);
    if (found == node.end()) throw Error(std::string("the program has an ") + what + " '" + name + "', its node has not");
    places.push_back(static_cast<size_t>(found - node.begin()));
  }
  return places;
}

}  // namespace

FusedNode::FusedNode(const Api& api, Payload payload, const ort::Node* fused, const ort::Node* context, Isa isa)
    : api_(api), interpreter_(read_program(std::move(payload.bytes), payload.program, payload.program_size, isa)) {
  version = api.version;
  CreateState = [](ort::NodeComputeInfo*, ort::NodeComputeContext*, void** out) -> ort::Status* { return *out = nullptr, nullptr; };
  ReleaseState = [](ort::NodeComputeInfo*, void*) {};
  Compute = [](ort::NodeComputeInfo* self, void*, ort::KernelContext* context) {
    const auto* node = static_cast<const FusedNode*>(self);
    return node->api_.guard([&] { node->run(context); });
  };

  const Program& program = interpreter_.program();
  const auto inputs_of = [&api](const ort::Node* node) {
    return api.list<ort::ValueInfo>(node, api.Node_GetNumInputs, api.Node_GetInputs);
  };
  const auto outputs_of = [&api](const ort::Node* node) {
    return api.list<ort::ValueInfo>(node, api.Node_GetNumOutputs, api.Node_GetOutputs);
  };
  const auto outputs = outputs_of(fused);
  inputs_ = match(program, program.inputs, names_of(api, inputs_of(fused)), context ? names_of(api, inputs_of(context)) : Names(), "input");
  outputs_ = match(program, program.outputs, names_of(api, outputs), context ? names_of(api, outputs_of(context)) : Names(), "output");

  // onnxruntime allocates outputs by the types it knows: they must be the program's, or kernels would write beyond them.
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const ort::TypeInfo* type = nullptr;
    const ort::TensorInfo* tensor = nullptr;
    api.check(api.GetValueInfoTypeInfo(outputs[outputs_[i]], &type));
    api.check(api.CastTypeInfoToTensorInfo(type, &tensor));
    const Value& value = program.values[program.outputs[i]];
    const int stated = tensor ? static_cast<int>(api.type_of(tensor).type) : 0;
    if (stated != static_cast<int>(value.type)) {
      throw Error("output '" + value.name + "' is of type " + std::to_string(static_cast<int>(value.type)) + " in the program, " +
                  std::to_string(stated) + " in the model");
    }
  }
  std::vector<size_t> served = outputs_;
  std::sort(served.begin(), served.end());
  served.erase(std::unique(served.begin(), served.end()), served.end());
  if (served.size() != outputs_.size() || served.size() != outputs.size()) {
    throw Error("the program computes " + std::to_string(served.size()) + " of the " + std::to_string(outputs.size()) +
                " outputs of its node");
  }
}

void FusedNode::run(ort::KernelContext* context) const {
  std::vector<Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (const size_t place : inputs_) {
    const ort::Value* value = nullptr;
    api_.check(api_.KernelContext_GetInput(context, place, &value));
    inputs.push_back(api_.tensor_of(value));
  }
  const auto allocate = [this, context](size_t index, const Shape& shape) {
    ort::Value* value = nullptr;
    void* data = nullptr;
    api_.check(api_.KernelContext_GetOutput(context, outputs_[index], shape.data(), shape.size(), &value));
    api_.check(api_.GetTensorMutableData(value, &data));
    return data;
  };
  interpreter_.run(inputs, allocate, [this, context](size_t count, const std::function<void(size_t)>& body) {
    api_.parallel_for(context, count, body);
  });
}

}  // namespace qdqtool
