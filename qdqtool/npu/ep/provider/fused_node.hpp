// One node of a session that is a program: what onnxruntime calls to run it.
#pragma once
#include "program/interpreter.hpp"
#include "program/payload.hpp"
#include "provider/api.hpp"

namespace qdqtool {

class FusedNode : public ort::NodeComputeInfo {
 public:
  // `fused` is the node in the session; `context` the EPContext node it was made of, or nullptr. Inputs and outputs of the program belong
  // to those of the node with the same names; those of an EPContext node that was renamed, to those in the same places.
  // Throws Error: the payload is damaged, or the program does not fit the node.
  FusedNode(const Api& api, Payload payload, const ort::Node* fused, const ort::Node* context, Isa isa);

 private:
  void run(ort::KernelContext* context) const;

  const Api& api_;
  Interpreter interpreter_;
  std::vector<size_t> inputs_, outputs_;  // of each input and output of the program, its index in the node
};

}  // namespace qdqtool
