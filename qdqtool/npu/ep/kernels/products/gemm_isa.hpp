// What each instruction set gives to gemm.hpp; and what they share.
#pragma once
#include "kernels/products/gemm.hpp"

namespace qdqtool {

// Row `row` (counted from the first one multiplied) of a tile from its sums, in any order of lanes and on any path; y
// is written.
void finish_row(Form form, const Epilogue& epilogue, size_t row, size_t width, const int32_t* sums, uint8_t* y);

namespace portable {
constexpr size_t kGroup = 2;
void pack_columns(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first, size_t last,
                  void* panel);
void multiply(const void* packed, size_t rows, const void* panel, size_t width, size_t depth, const Epilogue& epilogue,
              uint8_t* y, size_t y_stride);
}  // namespace portable

#if QDQTOOL_X86
namespace avx2 {
void pack_columns(Form form, const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                  size_t last, void* panel);
void multiply(Form form, const void* packed, size_t rows, const void* panel, size_t width, size_t depth,
              const Epilogue& epilogue, uint8_t* y, size_t y_stride);
void sum_columns(const void* panel, size_t width, size_t depth, int32_t* sums);  // of bytes
}  // namespace avx2

namespace avx512 {
constexpr size_t kGroup = 4;
void pack_columns(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first, size_t last,
                  void* panel);
void multiply(bool rows_unsigned, const void* packed, size_t rows, const void* panel, size_t width, size_t depth,
              const Epilogue& epilogue, uint8_t* y, size_t y_stride);
void sum_columns(bool rows_unsigned, const void* panel, size_t width, size_t depth, int32_t* sums);
}  // namespace avx512
#endif

}  // namespace qdqtool
