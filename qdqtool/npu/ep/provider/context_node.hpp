// EPContext nodes: how onnxruntime's models carry what a provider has compiled.
#pragma once
#include <string>

#include "provider/api.hpp"

namespace qdqtool {

using HeldNode = Held<ort::Node, 286>;

// Whether a node is an EPContext that this provider has written.
bool is_our_context(const Api& api, const ort::Node* node);

// The payload of such a node: in its attribute, or in the file that the attribute names, beside the model. `model_path` stands for the
// path of a model that is in memory. Throws Error: no such file, or one that is elsewhere.
std::string read_context(const Api& api, const ort::Graph* graph, const ort::Node* node, const std::string& model_path);

// The node that stands for `fused` in the compiled model at `model_path`, with the payload inside or in a file beside the model, which is
// written. "" is the path that onnxruntime gives the compiled model by itself.
HeldNode make_context_node(const Api& api, const ort::Graph* graph, const ort::Node* fused, const std::string& payload,
                           const std::string& model_path, bool embed_payload);

}  // namespace qdqtool
