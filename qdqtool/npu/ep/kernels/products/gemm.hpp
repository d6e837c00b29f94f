// Sums of products of two matrices of 8-bit integers, rows [M, K] and columns [K, N], and their way to the output type:
//
//   y[m, n] = requantize((Σ_k rows[m, k]·columns[k, n])·2^x_shift + row_offset[m] + column_offset[n]
//                        + row_factor[m]·column_factor[n])
//
// The columns are the lanes of vectors, 64 to a tile; the rows are broadcast, six to a block. A convolution has its
// weights for rows and pixels for columns, a matrix product its first factor for rows. Sums are of 32 bits and wrap:
// they are right where a bound says that they fit, or where the accumulator has no more bits and wraps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/requantize/requantize.hpp"

namespace qdqtool {

constexpr size_t kTile = 64;     // columns computed together
constexpr size_t kRowBlock = 6;  // rows computed together
constexpr size_t kLanes = 16;    // tiles are computed in so many columns, rounded up

// How factors are packed, K in groups. Words: two int16 with their zero point taken off. Bytes: four, unsigned in one
// factor and signed in the other; their top bit is flipped where the other sign is wanted.
enum class Form : uint8_t { words, words_avx2, bytes_avx2, bytes_avx512 };

// bytes_avx2 is chosen by who knows the signed factor (see Residues), and is for signed rows only.
inline Form form_of(Isa isa) {
  return isa == Isa::avx512 ? Form::bytes_avx512 : isa == Isa::avx2 ? Form::words_avx2 : Form::words;
}
inline bool has_bytes(Form form) { return form == Form::bytes_avx2 || form == Form::bytes_avx512; }

// What packing does to a value; zero_point is what stands for 0 afterwards.
struct Packing {
  bool is_signed = false;
  uint8_t flip = 0;
  int32_t subtract = 0;
  int32_t zero_point = 0;
};
Packing packing(Form form, DataType type, int64_t zero_point, bool to_unsigned);

// Packed values per column and group, and bytes of what is packed.
inline size_t group_of(Form form) { return has_bytes(form) ? 4 : 2; }
size_t rows_bytes(Form form, size_t rows, size_t depth);
size_t panel_bytes(Form form, size_t depth);

// rows[m, k] = source[m·stride + k] → packed. zero_points: per row, in place of what `how` takes off (int16 only), or
// null. sums[m] = Σ_k of the packed values, unless null.
void pack_rows(Form form, const Packing& how, const uint8_t* source, size_t stride, size_t rows, size_t depth,
               const int32_t* zero_points, void* packed, int32_t* sums);

// AVX2 adds two products of bytes in 16 bits, which saturate. Weights of a pair of k that might exceed them are split
// in two: what is packed with the others, and what is multiplied once more. Row m has the entries [begins[m], begins[m
// + 1]): signed bytes of four k, and which group they are.
struct Residues {
  std::vector<uint32_t> begins, groups, weights;
};

// Takes from signed weights [rows, depth] what the sums of pairs with bytes of up to 255 have no room for.
Residues take_residues(int8_t* weights, size_t rows, size_t depth);

// A matrix [depth, columns] whose row k begins at data + offsets[k], or at data + k·stride where offsets is null;
// column c of a tile lies there + the offset of its run + c.
struct Columns {
  const uint8_t* data = nullptr;
  const int64_t* offsets = nullptr;
  int64_t stride = 0;
  const uint8_t* row(size_t k) const { return data + (offsets ? offsets[k] : static_cast<int64_t>(k) * stride); }
  size_t depth = 0;
  Packing how;
};

// Columns [begin, end) of a tile, which lie one behind another: column c at offset + c.
struct Run {
  int64_t begin = 0, end = 0, offset = 0;
};

// The tile of `width` columns that `runs` cover, groups [first, last) of it → panel.
void pack_columns(Form form, const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                  size_t last, void* panel);

// Column of a tile of `width` that lane `lane` (below the width rounded up to kLanes) of the packed form holds; it may
// lie at or behind `width`.
size_t column_of(Form form, size_t width, size_t lane);

// One Scaling per column, in the order of lanes, each padded to a whole tile.
struct LaneScalings {
  std::vector<int32_t> multiplier, shift, negative_multiplier, negative_shift;
  std::vector<float> scale, negative_slope;
};

// What is added to a sum, and how it is scaled: per row unless `lanes` is there. Arrays along columns are in the order
// of lanes.
struct Epilogue {
  const Requantizer* requantizer = nullptr;
  Requantizer::Path path = Requantizer::Path::scalar;
  int x_shift = 0;
  const int32_t* row_offsets = nullptr;     // null: 0; of the first row multiplied
  const int32_t* row_factors = nullptr;     // null: there are no factors; else column_factors is there
  const int32_t* column_offsets = nullptr;  // null: 0
  const int32_t* column_factors = nullptr;
  const Residues* residues = nullptr;  // bytes_avx2: of the rows; null where there are none
  const LaneScalings* lanes = nullptr;
  size_t first_lane = 0;    // of the tile, in `lanes`
  size_t first_column = 0;  // of the tile, for the channel of a sum where Path is scalar
  size_t first_row = 0;     // the channel of the first row multiplied
};

// y[m·y_stride + c] for rows m of `rows` (packed, counted from the block that `packed` points at) and columns c <
// width.
void multiply(Form form, bool rows_unsigned, const void* packed, size_t rows, const void* panel, size_t width,
              size_t depth, const Epilogue& epilogue, void* y, size_t y_stride);

// sums[lane] = Σ_k of the packed values of each column.
void sum_columns(Form form, bool rows_unsigned, const void* panel, size_t width, size_t depth, int32_t* sums);

}  // namespace qdqtool
