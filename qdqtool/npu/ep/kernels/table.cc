// Which operators there are: every family of kernels puts its own in.
#include "../kernel.hpp"

namespace qdqtool {

void register_products(KernelTable& table);
void register_elementwise(KernelTable& table);
void register_lookup(KernelTable& table);
void register_pools(KernelTable& table);
void register_softmax(KernelTable& table);
void register_norms(KernelTable& table);
void register_movement(KernelTable& table);
void register_quantize(KernelTable& table);
void register_reencode(KernelTable& table);
void register_reductions(KernelTable& table);
void register_wide_pools(KernelTable& table);
void register_extremes(KernelTable& table);
void register_division(KernelTable& table);
void register_rotary(KernelTable& table);
void register_resize(KernelTable& table);
void register_float_elementwise(KernelTable& table);
void register_float_quantize(KernelTable& table);
void register_float_matmul(KernelTable& table);
void register_float_convolutions(KernelTable& table);
void register_float_reductions(KernelTable& table);

const KernelTable& kernel_table() {
  static const KernelTable made = [] {
    KernelTable table;
    register_products(table);
    register_elementwise(table);
    register_lookup(table);
    register_pools(table);
    register_softmax(table);
    register_norms(table);
    register_movement(table);
    register_quantize(table);
    register_reencode(table);
    register_reductions(table);
    register_wide_pools(table);
    register_extremes(table);
    register_division(table);
    register_rotary(table);
    register_resize(table);
    register_float_elementwise(table);
    register_float_quantize(table);
    register_float_matmul(table);
    register_float_convolutions(table);
    register_float_reductions(table);
    return table;
  }();
  return made;
}

}  // namespace qdqtool
