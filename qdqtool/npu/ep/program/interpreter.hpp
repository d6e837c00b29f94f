// Runs a program: one kernel after the other, in memory planned once for each combination of input shapes.
#pragma once
#include <list>
#include <memory>
#include <vector>

#include "program/program.hpp"
#include "provider/mutex.hpp"

namespace qdqtool {

struct Plan;       // everything that follows from the shapes of the inputs
struct Workspace;  // the memory of one run, bound to a plan

class Interpreter {
 public:
  // Prepares the kernels; plans at once when the program states the shapes of all its inputs. Throws Error, which names the node.
  explicit Interpreter(std::shared_ptr<const Program> program);
  ~Interpreter();

  const Program& program() const { return *program_; }

  // Gives the memory of output `index`, of this shape.
  using Allocate = std::function<void*(size_t index, const Shape& shape)>;
  // Inputs are read where they are and outputs written where they go. Any number of threads may run at a time: each has a workspace.
  void run(const std::vector<Tensor>& inputs, const Allocate& allocate, const ParallelFor& parallel) const;

 private:
  std::shared_ptr<const Plan> plan_for(const std::vector<Tensor>& inputs) const;
  std::unique_ptr<Workspace> take(std::shared_ptr<const Plan> plan) const;
  void give_back(std::unique_ptr<Workspace> workspace) const;
  void check_inputs(const std::vector<Tensor>& inputs) const;

  std::shared_ptr<const Program> program_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  mutable Mutex mutex_;
  mutable std::list<std::shared_ptr<const Plan>> plans_;        // the last used first
  mutable std::vector<std::unique_ptr<Workspace>> workspaces_;  // those that nobody uses
};

}  // namespace qdqtool
