#include "provider/custom_ops.hpp"

#include <algorithm>
#include <atomic>
#include <new>

#include "program/program.hpp"
#include "provider/mutex.hpp"
#include "provider/node_attributes.hpp"

namespace qdqtool {

namespace {

using ort::CustomOp;

// Memory that kernels need besides their outputs, kept from run to run; runs at the same time have one each.
class Scratch {
 public:
  struct Block {
    size_t bytes = 0;
    std::unique_ptr<char, void (*)(char*)> memory{nullptr, [](char* memory) { ::operator delete(memory, std::align_val_t{64}); }};
  };
  Block take(size_t bytes) {
    Block block;
    {
      const Lock lock(mutex_);
      if (!free_.empty()) {
        block = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (block.bytes < bytes) {
      block.bytes = 0;
      block.memory.reset(static_cast<char*>(::operator new(bytes, std::align_val_t{64})));
      block.bytes = bytes;
    }
    return block;
  }
  void give_back(Block block) {
    const Lock lock(mutex_);
    free_.push_back(std::move(block));
  }

 private:
  Mutex mutex_;
  std::vector<Block> free_;
};

// What onnxruntime creates of an operator: one node of a session.
struct NodeKernel {
  const Api& api;
  NodeInfo info;
  std::unique_ptr<Kernel> kernel;
  Scratch scratch;

  explicit NodeKernel(const Api& api) : api(api) {}
  void compute(ort::KernelContext* context);
};

// An operator as onnxruntime knows it. Types are left open (the kernel refuses what it does not take) and inferred per node.
struct DomainOp : CustomOp {
  const Api& api;
  const Operator& op;

  DomainOp(const Api& api, const Operator& op);
  std::unique_ptr<NodeKernel> create(const ort::KernelInfo* info) const;
  void infer(ort::ShapeInferContext* context) const;
};

std::unique_ptr<NodeKernel> DomainOp::create(const ort::KernelInfo* info) const {
  auto node = std::make_unique<NodeKernel>(api);
  size_t size = 0, inputs = 0, outputs = 0;
  api.check(api.KernelInfo_GetNodeName(info, nullptr, &size));
  std::string name(size, '\0');
  api.check(api.KernelInfo_GetNodeName(info, name.data(), &size));
  node->info.name = name.c_str();
  node->info.op_type = op.name;
  try {
    node->info.attributes = attributes_of(api, info, op);
    api.check(api.KernelInfo_GetInputCount(info, &inputs));
    api.check(api.KernelInfo_GetOutputCount(info, &outputs));
    op.check(inputs, node->info.attributes);
    std::vector<DataType> types;
    for (size_t i = 0; i < inputs; ++i) {
      Tensor input;
      int is_constant = 0;
      const ort::Value* value = nullptr;
      ort::TypeInfo* type = nullptr;
      if (api.succeeds(api.KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value)) && is_constant && value) {
        input = api.tensor_of(value);
      } else if (api.succeeds(api.KernelInfo_GetInputTypeInfo(info, i, &type)) && type) {  // else: left out
        const Held<ort::TypeInfo, 98> held(type, api.ReleaseTypeInfo);
        const ort::TensorInfo* tensor = nullptr;
        api.check(api.CastTypeInfoToTensorInfo(type, &tensor));
        if (tensor) input.type = api.type_of(tensor).type;
      }
      types.push_back(input.type);
      node->info.inputs.push_back(std::move(input));
    }
    node->info.outputs = op.output_types(node->info.attributes, types, outputs);
    node->kernel = op.make(node->info);
  } catch (const Error& error) {
    throw Error(describe(node->info) + ": " + error.what());
  }
  return node;
}

void NodeKernel::compute(ort::KernelContext* context) {
  std::vector<Tensor> inputs, outputs;
  for (size_t i = 0; i < info.inputs.size(); ++i) {
    const ort::Value* value = nullptr;
    api.check(api.KernelContext_GetInput(context, i, &value));
    inputs.push_back(api.tensor_of(value));
  }
  try {
    for (const Shape& shape : kernel->infer(inputs)) {
      ort::Value* value = nullptr;
      Tensor output;
      api.check(api.KernelContext_GetOutput(context, outputs.size(), shape.data(), shape.size(), &value));
      api.check(api.GetTensorMutableData(value, &output.data));
      output.type = info.outputs.at(outputs.size());
      output.shape = shape;
      outputs.push_back(std::move(output));
    }
    Scratch::Block block = scratch.take(kernel->scratch(inputs));
    kernel->run(inputs, outputs, block.memory.get(), [this, context](size_t count, const std::function<void(size_t)>& body) {
      api.parallel_for(context, count, body);
    });
    scratch.give_back(std::move(block));
  } catch (const Error& error) {
    throw Error(describe(info) + ": " + error.what());
  }
}

// onnxruntime takes a dimension without a name for a number, and one with another's name for equal to it.
std::string unknown_name() {
  static std::atomic<size_t> count{0};
  return "qdqtool_" + std::to_string(count++);
}

// The type of the output always, its shape when the shapes of the inputs tell it: models without value_info load, too. What is wrong
// with a node is told when its kernel is made: onnxruntime takes errors here for "not known".
void DomainOp::infer(ort::ShapeInferContext* context) const {
  NodeInfo info;
  info.op_type = op.name;
  info.attributes = attributes_of(api, context, op);
  size_t inputs = 0;
  api.check(api.ShapeInferContext_GetInputCount(context, &inputs));
  std::vector<DataType> types;
  std::vector<std::string> names = {"", ""};  // of unknown dimensions: number -i is names[i]
  for (size_t i = 0; i < inputs; ++i) {
    ort::TensorInfo* tensor = nullptr;  // belongs to the context
    api.check(api.ShapeInferContext_GetInputTypeShape(context, i, &tensor));
    info.inputs.push_back(tensor ? api.type_of(tensor) : Tensor());
    types.push_back(info.inputs.back().type);
    Shape& shape = info.inputs.back().shape;
    std::vector<const char*> symbols(shape.size());
    if (!symbols.empty()) api.check(api.GetSymbolicDimensions(tensor, symbols.data(), symbols.size()));
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] >= 0 || !symbols[d] || !*symbols[d]) continue;
      auto known = std::find(names.begin() + 2, names.end(), symbols[d]);
      if (known == names.end()) known = names.insert(names.end(), symbols[d]);
      shape[d] = names.begin() - known;
    }
  }
  ort::TensorInfo* made = nullptr;
  api.check(api.CreateTensorTypeAndShapeInfo(&made));
  const Held<ort::TensorInfo, 99> held(made, api.ReleaseTensorTypeAndShapeInfo);
  api.check(api.SetTensorElementType(made, static_cast<int>(op.output_types(info.attributes, types, 1)[0])));
  if (std::optional<Shape> shape = op.output_shape(info.attributes, info.inputs)) {
    std::vector<std::string> text;
    std::vector<const char*> symbols;
    for (int64_t& dim : *shape) {
      text.push_back(dim >= 0 ? "" : dim < -1 ? names[static_cast<size_t>(-dim)] : unknown_name());
      dim = std::max<int64_t>(dim, -1);
    }
    for (const std::string& name : text) symbols.push_back(name.c_str());
    api.check(api.SetDimensions(made, shape->data(), shape->size()));
    api.check(api.SetSymbolicDimensions(made, symbols.data(), symbols.size()));
  }
  api.check(api.ShapeInferContext_SetOutputTypeShape(context, 0, made));
}

DomainOp::DomainOp(const Api& api, const Operator& op) : api(api), op(op) {
  const auto one = [](const CustomOp*) { return 1; };
  const auto since = [](const CustomOp*) { return operator_version; };
  version = ort::oldest_api;
  GetName = [](const CustomOp* self) { return static_cast<const DomainOp*>(self)->op.name.c_str(); };
  GetExecutionProviderType = [](const CustomOp*) { return "CPUExecutionProvider"; };
  GetInputTypeCount = [](const CustomOp* self) { return static_cast<const DomainOp*>(self)->op.inputs.most; };
  GetInputType = GetOutputType = [](const CustomOp*, size_t) { return 0; };  // any
  GetOutputTypeCount = [](const CustomOp*) { return size_t{1}; };
  GetInputCharacteristic = [](const CustomOp* self, size_t index) {
    // A bias may be left out. onnxruntime 1.23 must not be told: it infers types from inputs that are not there, and crashes.
    const auto* op = static_cast<const DomainOp*>(self);
    const size_t required = op->api.runtime >= 24 ? std::min<size_t>(2, op->op.inputs.least) : op->op.inputs.least;
    return index < required ? 0 : 1;  // required, optional
  };
  GetOutputCharacteristic = GetInputMemoryType = [](const CustomOp*, size_t) { return 0; };  // required; in memory of the CPU
  GetVariadicInputMinArity = GetVariadicInputHomogeneity = GetVariadicOutputMinArity = GetVariadicOutputHomogeneity = one;
  GetStartVersion = GetEndVersion = since;
  CreateKernelV2 = [](const CustomOp* self, const void*, const ort::KernelInfo* info, void** out) {
    const auto* op = static_cast<const DomainOp*>(self);
    return op->api.guard([&] { *out = op->create(info).release(); });
  };
  KernelComputeV2 = [](void* kernel, ort::KernelContext* context) {
    auto* node = static_cast<NodeKernel*>(kernel);
    return node->api.guard([&] { node->compute(context); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<NodeKernel*>(kernel); };
  InferOutputShape = [](const CustomOp* self, ort::ShapeInferContext* context) {
    const auto* op = static_cast<const DomainOp*>(self);
    return op->api.guard([&] { op->infer(context); });
  };
}

}  // namespace

void add_custom_ops(const Api& api, ort::SessionOptions* options) {
  // onnxruntime keeps the addresses: the domain and its operators live as long as the process.
  static Mutex mutex;
  static std::map<const Api*, ort::CustomOpDomain*>& domains = *new std::map<const Api*, ort::CustomOpDomain*>;
  const Lock lock(mutex);
  ort::CustomOpDomain*& domain = domains[&api];
  if (!domain) {
    ort::CustomOpDomain* made = nullptr;
    api.check(api.CreateCustomOpDomain(operator_domain, &made));
    for (const auto& [key, op] : operators()) {
      if (!op->is_standard) api.check(api.CustomOpDomain_Add(made, new DomainOp(api, *op)));
    }
    domain = made;
  }
  api.check(api.AddCustomOpDomain(options, domain));
}

}  // namespace qdqtool
