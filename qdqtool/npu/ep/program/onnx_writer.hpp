// A graph that onnxruntime holds, as the ModelProto that the compiler reads.
#pragma once
#include <string>

#include "provider/api.hpp"

namespace qdqtool {

// Constants of more than 4096 bytes stay where they are: the tensor says location "qdqtool-memory", offset = address, length = bytes,
// which is good as long as onnxruntime holds the graph. Initializers that a feed may replace are inputs, not constants. What a control-flow
// node reads from outside is read by Identity nodes in its first subgraph; the rest of the subgraphs is not written.
std::string write_model(const Api& api, const ort::Graph* graph);

}  // namespace qdqtool
