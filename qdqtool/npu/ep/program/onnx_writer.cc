#include "program/onnx_writer.hpp"

#include <cstring>
#include <set>

#include "program/operators.hpp"
#include "program/protobuf.hpp"

namespace qdqtool {

namespace {

using protobuf::Writer;

constexpr size_t inline_limit = 4096;
constexpr int string_type = 8;  // TensorProto.STRING

// TensorProto.DataType of an element type of onnxruntime: the same numbers up to 23, the three after them stand in another order.
int onnx_type(int type) {
  switch (type) {
    case 24: return 25;  // UINT2
    case 25: return 26;  // INT2
    case 26: return 24;  // FLOAT8E8M0
    default: return type;
  }
}

class ModelWriter {
 public:
  ModelWriter(const Api& api, const ort::Graph* graph) : api_(api), graph_(graph) {}

  std::string write() {
    Writer model, body = graph();
    int64_t ir_version = 0;
    api_.check(api_.Graph_GetOnnxIRVersion(graph_, &ir_version));
    model.integer(1, ir_version);
    model.message(7, body);
    size_t count = 0;
    api_.check(api_.Graph_GetNumOperatorSets(graph_, &count));
    std::vector<const char*> domains(count);
    std::vector<int64_t> versions(count);
    if (count) api_.check(api_.Graph_GetOperatorSets(graph_, domains.data(), versions.data(), count));
    for (size_t i = 0; i < count; ++i) {
      Writer opset;
      opset.bytes(1, domains[i]);
      // Once a session has had our operators, onnxruntime 1.23 says 1000 in all others.
      opset.integer(2, operator_domain == std::string_view(domains[i]) ? operator_version : versions[i]);
      model.message(8, opset);
    }
    return model.bytes();
  }

 private:
  using Values = std::vector<const ort::ValueInfo*>;

  Writer graph() {
    Writer out;
    for (const ort::Node* node : api_.list<ort::Node>(graph_, api_.Graph_GetNumNodes, api_.Graph_GetNodes)) {
      out.message(1, this->node(node));
      for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(node, api_.Node_GetNumOutputs, api_.Node_GetOutputs)) {
        if (!api_.name_of(value).empty()) out.message(13, value_info(value));
      }
    }
    const char* name = nullptr;
    api_.check(api_.Graph_GetName(graph_, &name));
    out.bytes(2, name && *name ? name : "graph");
    std::set<std::string> constants, written;
    Values replaceable;
    for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(graph_, api_.Graph_GetNumInitializers, api_.Graph_GetInitializers)) {
      bool is_constant = false;
      const ort::Value* data = nullptr;
      api_.check(api_.ValueInfo_IsConstantInitializer(value, &is_constant));
      if (is_constant) api_.check(api_.ValueInfo_GetInitializerValue(value, &data));
      if (is_constant && data && has_bytes(data)) {
        constants.insert(api_.name_of(value));
        out.message(5, tensor(api_.name_of(value), data, inline_limit));
      } else {
        replaceable.push_back(value);
      }
    }
    Values inputs = api_.list<ort::ValueInfo>(graph_, api_.Graph_GetNumInputs, api_.Graph_GetInputs);
    inputs.insert(inputs.end(), replaceable.begin(), replaceable.end());
    for (const ort::ValueInfo* value : inputs) {
      const std::string input = api_.name_of(value);
      if (!constants.count(input) && written.insert(input).second) out.message(11, value_info(value));
    }
    for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(graph_, api_.Graph_GetNumOutputs, api_.Graph_GetOutputs)) {
      out.message(12, value_info(value));
    }
    return out;
  }

  Writer node(const ort::Node* node) {
    Writer out;
    const char *op = "", *domain = "", *name = "";
    api_.check(api_.Node_GetOperatorType(node, &op));
    api_.check(api_.Node_GetDomain(node, &domain));
    api_.check(api_.Node_GetName(node, &name));
    for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(node, api_.Node_GetNumInputs, api_.Node_GetInputs)) {
      out.bytes(1, api_.name_of(value));
    }
    for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(node, api_.Node_GetNumOutputs, api_.Node_GetOutputs)) {
      out.bytes(2, api_.name_of(value));
    }
    out.bytes(3, name);
    out.bytes(4, op);
    bool is_first_graph = true;
    for (const ort::OpAttr* attribute : api_.list<ort::OpAttr>(node, api_.Node_GetNumAttributes, api_.Node_GetAttributes)) {
      int type = 0;
      api_.check(api_.OpAttr_GetType(attribute, &type));
      if (type == ort::type_graph) {
        out.message(5, subgraph(attribute, is_first_graph ? node : nullptr));
        is_first_graph = false;
      } else {
        out.message(5, this->attribute(attribute, type));
      }
    }
    out.bytes(7, domain);
    return out;
  }

  Writer named(const ort::OpAttr* attribute, int64_t onnx_kind) {
    Writer out;
    const char* name = "";
    api_.check(api_.OpAttr_GetName(attribute, &name));
    out.bytes(1, name);
    out.integer(20, onnx_kind);
    return out;
  }

  Writer attribute(const ort::OpAttr* attribute, int type) {
    if (type == ort::type_tensor) {
      Writer out = named(attribute, 4);
      ort::Value* value = nullptr;
      api_.check(api_.OpAttr_GetTensorAttributeAsOrtValue(attribute, &value));
      const Held<ort::Value, 96> held(value, api_.ReleaseValue);
      if (has_bytes(value)) out.message(5, tensor("", value, SIZE_MAX));  // freed below: its bytes, never its address
      return out;
    }
    if (type == ort::type_strings) return named(attribute, 8);  // of operators that no NPU takes
    const std::string bytes = api_.bytes_of(attribute, type);
    const auto each = [&bytes](auto number, auto write) {
      for (size_t at = 0; at + sizeof number <= bytes.size(); at += sizeof number) {
        std::memcpy(&number, bytes.data() + at, sizeof number);
        write(number);
      }
    };
    Writer out;
    switch (type) {
      case ort::type_int:
        out = named(attribute, 2);
        each(int64_t{}, [&out](int64_t number) { out.integer(3, number); });
        break;
      case ort::type_ints:
        out = named(attribute, 7);
        each(int64_t{}, [&out](int64_t number) { out.integer(8, number); });
        break;
      case ort::type_float:
        out = named(attribute, 1);
        each(float{}, [&out](float number) { out.real(2, number); });
        break;
      case ort::type_floats:
        out = named(attribute, 6);
        each(float{}, [&out](float number) { out.real(7, number); });
        break;
      case ort::type_string:
        out = named(attribute, 3);
        out.bytes(4, bytes);
        break;
      default:
        throw Error("onnxruntime hands out an attribute of the unknown kind " + std::to_string(type));
    }
    return out;
  }

  // `reader`: the node whose reads from outside this subgraph is to show.
  Writer subgraph(const ort::OpAttr* attribute, const ort::Node* reader) {
    Writer out = named(attribute, 5), graph;
    if (reader) {
      for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(reader, api_.Node_GetNumImplicitInputs, api_.Node_GetImplicitInputs)) {
        Writer identity;
        identity.bytes(1, api_.name_of(value));
        identity.bytes(2, api_.name_of(value) + "/read_inside");
        identity.bytes(4, "Identity");
        graph.message(1, identity);
      }
    }
    graph.bytes(2, "subgraph");
    out.message(6, graph);
    return out;
  }

  Writer value_info(const ort::ValueInfo* value) {
    Writer out;
    out.bytes(1, api_.name_of(value));
    const ort::TypeInfo* type = nullptr;
    const ort::TensorInfo* info = nullptr;
    if (!api_.succeeds(api_.GetValueInfoTypeInfo(value, &type)) || !type) return out;
    api_.check(api_.CastTypeInfoToTensorInfo(type, &info));
    if (!info) return out;  // a sequence, a map: known by name only
    const Tensor tensor = api_.type_of(info);
    Writer tensor_type, type_proto;
    tensor_type.integer(1, onnx_type(static_cast<int>(tensor.type)));
    const bool has_shape = api_.runtime >= 24 ? api_.TensorTypeAndShape_HasShape(info) : !tensor.shape.empty();
    if (has_shape) {
      std::vector<const char*> symbols(tensor.shape.size());
      if (!symbols.empty()) api_.check(api_.GetSymbolicDimensions(info, symbols.data(), symbols.size()));
      Writer shape;
      for (size_t i = 0; i < symbols.size(); ++i) {
        Writer dim;
        if (tensor.shape[i] >= 0) dim.integer(1, tensor.shape[i]);
        else if (symbols[i] && *symbols[i]) dim.bytes(2, symbols[i]);
        shape.message(1, dim);
      }
      tensor_type.message(2, shape);
    }
    type_proto.message(1, tensor_type);
    out.message(2, type_proto);
    return out;
  }

  bool has_bytes(const ort::Value* value) {
    ort::TensorInfo* info = nullptr;
    api_.check(api_.GetTensorTypeAndShape(value, &info));
    const Held<ort::TensorInfo, 99> held(info, api_.ReleaseTensorTypeAndShapeInfo);
    return static_cast<int>(api_.type_of(info).type) != string_type;
  }

  Writer tensor(const std::string& name, const ort::Value* value, size_t limit) {
    const Tensor tensor = api_.tensor_of(value);
    size_t size = 0;
    api_.check(api_.GetTensorSizeInBytes(value, &size));
    Writer out;
    for (const int64_t dim : tensor.shape) out.integer(1, dim);
    out.integer(2, onnx_type(static_cast<int>(tensor.type)));
    out.bytes(8, name);
    if (size <= limit) {
      out.bytes(9, {tensor.as<char>(), size});
      return out;
    }
    const auto entry = [&out](const char* key, const std::string& text) {
      Writer pair;
      pair.bytes(1, key);
      pair.bytes(2, text);
      out.message(13, pair);
    };
    entry("location", "qdqtool-memory");
    entry("offset", std::to_string(reinterpret_cast<uintptr_t>(tensor.data)));
    entry("length", std::to_string(size));
    out.integer(14, 1);  // TensorProto.EXTERNAL
    return out;
  }

  const Api& api_;
  const ort::Graph* graph_;
};

}  // namespace

std::string write_model(const Api& api, const ort::Graph* graph) { return ModelWriter(api, graph).write(); }

}  // namespace qdqtool
