// The execution provider of one session: which nodes it takes, and what they become.
#pragma once
#include <map>
#include <string>

#include "provider/api.hpp"
#include "provider/context_node.hpp"
#include "provider/fused_node.hpp"

namespace qdqtool {

// What compiled models are marked with, and what such a mark says of this library.
std::string compatibility_info();
ort::Compatibility compatibility_of(const std::string& info);

class Provider : public ort::Ep {
 public:
  // A wrong option is told when a node is compiled: a provider that cannot be made would leave Python with the CPU alone.
  Provider(const Api& api, const ort::SessionOptions* options);

 private:
  using Nodes = std::vector<const ort::Node*>;

  void read_options();
  void take(const ort::Graph* graph, ort::SupportInfo* support);
  void take_to_fail(const ort::Graph* graph, ort::SupportInfo* support) const;
  bool is_body(const ort::Graph* graph, const Nodes& nodes) const;
  void take_partitions(const ort::Graph* graph, const Nodes& nodes, ort::SupportInfo* support);
  void fuse(ort::SupportInfo* support, const Nodes& nodes, bool drop_constants) const;
  std::unique_ptr<FusedNode> compile(const ort::Graph* graph, const ort::Node* fused, HeldNode& context_node) const;
  std::string config(const std::string& key, const std::string& fallback) const;

  const Api& api_;
  const std::map<std::string, std::string> config_;
  std::map<std::string, std::string> options_;  // the provider's own
  std::string compiler_options_;
  std::string compatibility_ = compatibility_info();
  std::string failure_;                         // of options or partitioner, told when the node that stands for it is compiled
  Isa isa_ = Isa::best;
};

}  // namespace qdqtool
