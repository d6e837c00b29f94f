// The shapes of a product of matrices with numpy's rules: matrices [rows, depth] of A and [depth, columns] of B for each
// batch of the output.
#pragma once
#include <vector>

#include "program/kernel.hpp"

namespace qdqtool {

struct MatrixShapes {
  size_t rows = 1, depth = 1, columns = 1;
  size_t a_count = 1, b_count = 1;  // matrices
  std::vector<size_t> a_of, b_of;   // which of them, for each batch of the output
  Shape output;
};

// Throws Error where A does not multiply B.
MatrixShapes matrix_shapes(const Shape& a, const Shape& b);

}  // namespace qdqtool
