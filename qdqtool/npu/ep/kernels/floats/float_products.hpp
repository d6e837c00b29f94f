// Sums of products in float32: rows [M, K] times columns [K, N], each product rounded, added in the order of k. The columns are the
// lanes of vectors, kFloatColumns to a panel; every lane is its own sum.
#pragma once
#include "kernels/floats/floats.hpp"

namespace qdqtool {

constexpr int64_t kFloatColumns = 16;

inline int64_t panels_of(int64_t columns) { return (columns + kFloatColumns - 1) / kFloatColumns; }
// Floats of one matrix [depth, columns] as panels [columns / 16][depth][16], zeros behind the last column.
inline int64_t panel_floats(int64_t depth, int64_t columns) {
  return multiply_sizes(multiply_sizes(panels_of(columns), depth), kFloatColumns);
}

// Panel `panel` of a matrix [depth, columns] whose element (k, n) is source[k·columns + n].
void pack_floats(const float* source, int64_t depth, int64_t columns, int64_t panel, float* packed);

// totals[m·stride + n] = Σ_k rows[m·depth + k]·panel[k·16 + n] for `count` rows and `width` columns.
void multiply_panel(Isa isa, const float* rows, int64_t count, int64_t depth, const float* panel, int64_t width, float* totals,
                    int64_t stride);

}  // namespace qdqtool
