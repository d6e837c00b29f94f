#include "provider/provider.hpp"

#include <algorithm>

#include "kernels/shared/isa.hpp"
#include "program/onnx_writer.hpp"
#include "provider/compiler.hpp"

namespace qdqtool {

namespace {

const std::string option_prefix = "ep.npusimexecutionprovider.";  // how onnxruntime names a provider's options
const char* const context_enable = "ep.context_enable";       // "1" where a compiled model is to be written
const char* const option_names[] = {"boundary", "isa", "target", "target_sha256"};

bool begins_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

}  // namespace

std::string compatibility_info() { return "qdqtool-npu;format=" + std::to_string(program_format); }

ort::Compatibility compatibility_of(const std::string& info) {
  if (!begins_with(info, "qdqtool-npu;")) return ort::not_applicable;
  return info == compatibility_info() ? ort::optimal : ort::unsupported;
}

void Provider::read_options() {
  for (const auto& [key, value] : config_) {
    const bool is_own = begins_with(key, option_prefix);
    const std::string name = is_own ? key.substr(option_prefix.size()) : key;
    if (!is_own && !begins_with(key, "session.") && key != context_enable) continue;
    if (is_own) {
      const auto known = [&name](const char* option) { return name == option; };
      if (std::none_of(std::begin(option_names), std::end(option_names), known)) {
        throw Error("there is no option '" + name + "' of " + provider_name + "; it has boundary, isa, target and target_sha256");
      }
      options_[name] = value;
    }
    if (value.find('\n') != std::string::npos) throw Error("option '" + name + "' has more than one line");
    compiler_options_ += name + "=" + value + "\n";
  }
  if (options_.count("isa")) isa_ = isa_named(options_["isa"]);
}

Provider::Provider(const Api& api, const ort::SessionOptions* options) : api_(api), config_(api.config_of(options)) {
  try {
    read_options();
  } catch (const Error& error) {
    failure_ = error.what();
  }
  version = api.version;
  GetName = [](const ort::Ep*) { return provider_name; };
  GetCapability = [](ort::Ep* self, const ort::Graph* graph, ort::SupportInfo* support) {
    auto* provider = static_cast<Provider*>(self);
    return provider->api_.guard([&] {
      try {
        if (provider->failure_.empty()) provider->take(graph, support);
      } catch (const std::exception& error) {
        provider->failure_ = error.what();
      }
      if (!provider->failure_.empty()) provider->take_to_fail(graph, support);
    });
  };
  Compile = [](ort::Ep* self, const ort::Graph** graphs, const ort::Node** fused, size_t count, ort::NodeComputeInfo** infos,
               ort::Node** context_nodes) {
    auto* provider = static_cast<Provider*>(self);
    return provider->api_.guard([&] {
      std::vector<std::unique_ptr<FusedNode>> made;
      std::vector<HeldNode> made_context;
      for (size_t i = 0; i < count; ++i) {
        made_context.emplace_back(nullptr, provider->api_.ReleaseNode);
        made.push_back(provider->compile(graphs[i], fused[i], made_context[i]));
      }
      for (size_t i = 0; i < count; ++i) {  // all are there: nothing fails any more
        infos[i] = made[i].release();
        if (context_nodes && made_context[i]) context_nodes[i] = made_context[i].release();
      }
    });
  };
  ReleaseNodeComputeInfos = [](ort::Ep*, ort::NodeComputeInfo** infos, size_t count) {
    for (size_t i = 0; i < count; ++i) delete static_cast<FusedNode*>(infos[i]);
  };
  GetCompiledModelCompatibilityInfo = [](ort::Ep* self, const ort::Graph*) { return static_cast<Provider*>(self)->compatibility_.c_str(); };
}

// A model with our EPContext nodes is compiled: they are all there is to take. Of any other, the compiler says what to take. The bodies
// of If and Loop are asked about first, and stay where they are.
void Provider::take(const ort::Graph* graph, ort::SupportInfo* support) {
  const Nodes nodes = api_.list<ort::Node>(graph, api_.Graph_GetNumNodes, api_.Graph_GetNodes);
  bool is_compiled = false;
  for (const ort::Node* node : nodes) {
    if (!is_our_context(api_, node)) continue;
    fuse(support, {node}, false);  // a constant may stand before it: onnxruntime folds what is constant
    is_compiled = true;
  }
  if (is_compiled || nodes.empty() || is_body(graph, nodes)) return;
  take_partitions(graph, nodes, support);
}

// An error while nodes are taken would be logged, and all of them would go to the CPU. So one is taken, and its compilation fails with
// the reason.
void Provider::take_to_fail(const ort::Graph* graph, ort::SupportInfo* support) const {
  const Nodes nodes = api_.list<ort::Node>(graph, api_.Graph_GetNumNodes, api_.Graph_GetNodes);
  if (nodes.empty()) return;
  const auto has_subgraph = [this](const ort::Node* node) {
    for (const ort::OpAttr* attribute : api_.list<ort::OpAttr>(node, api_.Node_GetNumAttributes, api_.Node_GetAttributes)) {
      int type = 0;
      api_.check(api_.OpAttr_GetType(attribute, &type));
      if (type == ort::type_graph) return true;
    }
    return false;
  };
  const auto plain = std::find_if_not(nodes.begin(), nodes.end(), has_subgraph);
  fuse(support, {plain == nodes.end() ? nodes.front() : *plain}, true);
}

// Whether `graph` is the body of a node. onnxruntime 1.23 does not tell: there, a graph counts as one that reads values from outside,
// has no inputs (the branches of If), or begins with a counter and a condition (Loop).
bool Provider::is_body(const ort::Graph* graph, const Nodes& nodes) const {
  const ort::Node* parent = nullptr;
  api_.check(api_.Graph_GetParentNode(graph, &parent));
  if (parent || api_.runtime >= 24) return parent;
  for (const ort::Node* node : nodes) {
    for (const ort::ValueInfo* value : api_.list<ort::ValueInfo>(node, api_.Node_GetNumInputs, api_.Node_GetInputs)) {
      bool is_outside = false;
      if (value) api_.check(api_.ValueInfo_IsFromOuterScope(value, &is_outside));
      if (is_outside) return true;
    }
  }
  const auto inputs = api_.list<ort::ValueInfo>(graph, api_.Graph_GetNumInputs, api_.Graph_GetInputs);
  const auto type_of = [this](const ort::ValueInfo* value) {
    const ort::TypeInfo* type = nullptr;
    const ort::TensorInfo* tensor = nullptr;
    api_.check(api_.GetValueInfoTypeInfo(value, &type));
    api_.check(api_.CastTypeInfoToTensorInfo(type, &tensor));
    return tensor ? api_.type_of(tensor).type : DataType::none;
  };
  return inputs.empty() || (inputs.size() > 1 && type_of(inputs[0]) == DataType::int64 && type_of(inputs[1]) == DataType::boolean);
}

void Provider::take_partitions(const ort::Graph* graph, const Nodes& nodes, ort::SupportInfo* support) {
  const std::string answer = ask_compiler(Question::partition, compiler_options_, write_model(api_, graph));
  std::vector<Nodes> groups(1);
  size_t number = 0;
  bool has_digit = false;
  std::vector<bool> taken(nodes.size());
  const auto close_number = [&] {
    if (!has_digit || number >= nodes.size() || taken[number]) throw Error("the compiler's partitions are not lists of nodes: " + answer);
    taken[number] = true;
    groups.back().push_back(nodes[number]);
    number = 0;
    has_digit = false;
  };
  for (const char c : answer) {
    if (c >= '0' && c <= '9') {
      number = std::min(number * 10 + static_cast<size_t>(c - '0'), nodes.size());
      has_digit = true;
    } else if (c == ',' || c == ';') {
      close_number();
      if (c == ';') groups.emplace_back();
    } else {
      throw Error("the compiler's partitions are not lists of nodes: " + answer);
    }
  }
  if (!answer.empty()) close_number();
  for (const Nodes& group : groups) {
    if (!group.empty()) fuse(support, group, true);
  }
}

void Provider::fuse(ort::SupportInfo* support, const Nodes& nodes, bool drop_constants) const {
  ort::NodeFusionOptions options;
  options.version = api_.version;
  options.drop_constant_initializers = drop_constants;  // the program has them
  api_.check(api_.ep.AddNodesToFuse(support, nodes.data(), nodes.size(), &options));
}

std::unique_ptr<FusedNode> Provider::compile(const ort::Graph* graph, const ort::Node* fused, HeldNode& context_node) const {
  if (!failure_.empty()) throw Error(failure_);
  const Nodes nodes = api_.list<ort::Node>(graph, api_.Graph_GetNumNodes, api_.Graph_GetNodes);
  if (nodes.size() == 1 && is_our_context(api_, nodes[0])) {
    Payload payload = read_payload(read_context(api_, graph, nodes[0], config("ep.context_file_path", "")));
    const auto option = [this](const char* name) { return options_.count(name) ? options_.at(name) : std::string(); };
    check_target(payload, option("target"), option("target_sha256"));
    if (!option("target").empty() && has_compiler()) ask_compiler(Question::check, compiler_options_, payload.header);
    return std::make_unique<FusedNode>(api_, std::move(payload), fused, nodes[0], isa_);
  }
  Payload payload = read_payload(ask_compiler(Question::lower, compiler_options_, write_model(api_, graph)));
  if (config(context_enable, "0") == "1") {
    const bool embed = config("ep.context_embed_mode", "0") == "1";
    context_node = make_context_node(api_, graph, fused, payload.bytes, config("ep.context_file_path", ""), embed);
  }
  return std::make_unique<FusedNode>(api_, std::move(payload), fused, nullptr, isa_);
}

std::string Provider::config(const std::string& key, const std::string& fallback) const {
  const auto found = config_.find(key);
  return found == config_.end() ? fallback : found->second;
}

}  // namespace qdqtool
