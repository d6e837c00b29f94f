// Kernels on integers of 8 and 16 bits in any mixture: what the kernels on bytes hand their nodes to where one tensor has 16 bits.
#pragma once
#include "../kernel.hpp"

namespace qdqtool {

std::unique_ptr<Kernel> make_wide_add(const NodeInfo& node);
std::unique_ptr<Kernel> make_wide_mul(const NodeInfo& node);
std::unique_ptr<Kernel> make_wide_lookup(const NodeInfo& node);
std::unique_ptr<Kernel> make_wide_average_pool(const NodeInfo& node);
std::unique_ptr<Kernel> make_wide_reduce_mean(const NodeInfo& node);

}  // namespace qdqtool
