#include "provider/context_node.hpp"

#include <algorithm>
#include <cstring>

#include "provider/platform.hpp"

namespace qdqtool {

namespace {

namespace fs = std::filesystem;

int64_t integer(const Api& api, const ort::Node* node, const char* name, int64_t fallback) {
  const ort::OpAttr* attribute = nullptr;
  if (!api.succeeds(api.Node_GetAttributeByName(node, name, &attribute)) || !attribute) return fallback;
  const std::string bytes = api.bytes_of(attribute, ort::type_int);
  int64_t value = fallback;
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::string text(const Api& api, const ort::Node* node, const char* name) {
  const ort::OpAttr* attribute = nullptr;
  if (!api.succeeds(api.Node_GetAttributeByName(node, name, &attribute)) || !attribute) return "";
  return api.bytes_of(attribute, ort::type_string);
}

}  // namespace

bool is_our_context(const Api& api, const ort::Node* node) {
  const char* op = "";
  api.check(api.Node_GetOperatorType(node, &op));
  return std::strcmp(op, "EPContext") == 0 && text(api, node, "source") == provider_name;
}

std::string read_context(const Api& api, const ort::Graph* graph, const ort::Node* node, const std::string& model_path) {
  const std::string content = text(api, node, "ep_cache_context");
  if (integer(api, node, "main_context", 1) != 1) throw Error("an EPContext node has main_context 0, which this provider does not write");
  if (integer(api, node, "embed_mode", 1) == 1) return content;
  const fs::path file = path_of(content);
  const bool climbs = std::any_of(file.begin(), file.end(), [](const fs::path& part) { return part == ".."; });
  if (file.empty() || file.is_absolute() || file.has_root_name() || climbs) {
    throw Error("an EPContext node names the file '" + content + "', which is not beside the model");
  }
  const ort::PathChar* model = nullptr;
  api.check(api.Graph_GetModelPath(graph, &model));
  // A model from memory has no path: the session's option says where it would be.
  const fs::path beside = model && *model ? fs::path(model) : path_of(model_path);
  return read_below(beside.parent_path(), file);
}

HeldNode make_context_node(const Api& api, const ort::Graph* graph, const ort::Node* fused, const std::string& payload,
                           const std::string& model_path, bool embed_payload) {
  const char* name = "";
  api.check(api.Node_GetName(fused, &name));
  const int64_t embed = embed_payload, main_context = 1;
  std::string content = payload;
  if (!embed) {
    const ort::PathChar* model = nullptr;
    api.check(api.Graph_GetModelPath(graph, &model));
    fs::path target = path_of(model_path);
    if (target.empty() && !(model && *model)) throw Error("a model from memory is compiled to a place that ep.context_file_path names");
    if (target.empty()) target = fs::path(model).replace_extension() += "_ctx.onnx";  // as onnxruntime names it
    const fs::path file = target.stem() += std::string("_") + name + ".qdqnpu";
    write_file(target.parent_path() / file, payload);
    content = utf8_of(file);
  }
  std::vector<ort::OpAttr*> attributes;
  std::vector<Held<ort::OpAttr, 212>> held;
  const auto add = [&](const char* key, const void* data, size_t length, ort::AttributeType type) {
    if (length > static_cast<size_t>(INT32_MAX)) throw Error("the program is too large for an EPContext node; use ep.context_embed_mode 0");
    ort::OpAttr* made = nullptr;
    api.check(api.CreateOpAttr(key, data, static_cast<int>(length), type, &made));
    held.emplace_back(made, api.ReleaseOpAttr);
    attributes.push_back(made);
  };
  add("embed_mode", &embed, 1, ort::type_int);
  add("main_context", &main_context, 1, ort::type_int);
  add("ep_cache_context", content.data(), content.size(), ort::type_string);
  add("source", provider_name, std::strlen(provider_name), ort::type_string);
  add("partition_name", name, std::strlen(name), ort::type_string);
  std::vector<std::string> inputs, outputs;
  for (auto* value : api.list<ort::ValueInfo>(fused, api.Node_GetNumInputs, api.Node_GetInputs)) inputs.push_back(api.name_of(value));
  for (auto* value : api.list<ort::ValueInfo>(fused, api.Node_GetNumOutputs, api.Node_GetOutputs)) outputs.push_back(api.name_of(value));
  const auto pointers = [](const std::vector<std::string>& names) {
    std::vector<const char*> found;
    for (const std::string& name : names) found.push_back(name.c_str());
    return found;
  };
  ort::Node* node = nullptr;
  ort::Status* status = api.editor.CreateNode("EPContext", "com.microsoft", name, pointers(inputs).data(), inputs.size(),
                                               pointers(outputs).data(), outputs.size(), attributes.data(), attributes.size(), &node);
  for (size_t i = 0; i < held.size(); ++i) {
    if (!attributes[i]) held[i].release();  // it is freed
  }
  api.check(status);
  return HeldNode(node, api.ReleaseNode);
}

}  // namespace qdqtool
