// Which operators there are: every family of kernels puts its own in.
#include "../kernel.hpp"

namespace qdqtool {

void register_products(KernelTable& table);
void register_elementwise(KernelTable& table);
void register_lookup(KernelTable& table);
void register_pools(KernelTable& table);
void register_softmax(KernelTable& table);
void register_movement(KernelTable& table);
void register_quantize(KernelTable& table);

const KernelTable& kernel_table() {
  static const KernelTable made = [] {
    KernelTable table;
    register_products(table);
    register_elementwise(table);
    register_lookup(table);
    register_pools(table);
    register_softmax(table);
    register_movement(table);
    register_quantize(table);
    return table;
  }();
  return made;
}

}  // namespace qdqtool
