#include "kernels/products/gemm.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/products/gemm_isa.hpp"

namespace qdqtool {

namespace {

constexpr size_t kGroupBytes = 4;  // four bytes, or two int16

size_t groups_in(size_t depth, size_t group) { return (depth + group - 1) / group; }

// Packs blocks of rows; `pack_row(row, groups, to)` writes the groups of a row, each `step` bytes behind the one
// before.
template <class PackRow>
void pack_blocks(size_t rows, size_t groups, const PackRow& pack_row, void* packed) {
  auto* to = static_cast<uint8_t*>(packed);
  for (size_t begin = 0; begin < rows; begin += kRowBlock) {
    const size_t height = std::min(kRowBlock, rows - begin);
    for (size_t r = 0; r < height; ++r) pack_row(begin + r, to + r * kGroupBytes, height * kGroupBytes);
    to += groups * height * kGroupBytes;
  }
}

}  // namespace

Packing packing(Form form, DataType type, int64_t zero_point, bool to_unsigned) {
  Packing how;
  how.is_signed = type == DataType::int8;
  const auto zero = static_cast<int32_t>(zero_point);
  if (!has_bytes(form)) {
    how.subtract = zero;
    return how;
  }
  how.zero_point = zero;
  if (how.is_signed == to_unsigned) how.flip = 0x80, how.zero_point += to_unsigned ? 128 : -128;
  return how;
}

size_t rows_bytes(Form form, size_t rows, size_t depth) {
  const size_t group = group_of(form);
  return rows * groups_in(depth, group) * kGroupBytes;
}

size_t panel_bytes(Form form, size_t depth) { return rows_bytes(form, kTile, depth); }

void pack_rows(Form form, const Packing& how, const uint8_t* source, size_t stride, size_t rows, size_t depth,
               const int32_t* zero_points, void* packed, int32_t* sums) {
  const size_t group = group_of(form), groups = groups_in(depth, group), whole = depth / group;
  if (has_bytes(form)) {
    const uint32_t flips = how.flip * uint32_t{0x01010101};
    const bool is_signed = how.is_signed != (how.flip != 0);
    const auto pack_row = [&](size_t row, uint8_t* to, size_t step) {
      const uint8_t* from = source + row * stride;
      for (size_t g = 0; g < whole; ++g, to += step) {
        uint32_t four;
        std::memcpy(&four, from + g * 4, 4);
        four ^= flips;
        std::memcpy(to, &four, 4);
      }
      if (whole < groups) {
        uint8_t four[4] = {};
        for (size_t k = whole * 4; k < depth; ++k) four[k % 4] = from[k] ^ how.flip;
        std::memcpy(to, four, 4);
      }
      if (!sums) return;
      int32_t sum = 0;
      for (size_t k = 0; k < depth; ++k) {
        const auto byte = static_cast<uint8_t>(from[k] ^ how.flip);
        sum += is_signed ? static_cast<int8_t>(byte) : byte;
      }
      sums[row] = sum;
    };
    return pack_blocks(rows, groups, pack_row, packed);
  }
  const auto pack_row = [&](size_t row, uint8_t* to, size_t step) {
    const uint8_t* from = source + row * stride;
    const int32_t zero_point = zero_points ? zero_points[row] : how.subtract;
    const int32_t flip = how.is_signed ? 0x80 : 0;  // flipped and less 128, a signed byte has its value
    int32_t sum = 0;
    for (size_t g = 0; g < groups; ++g, to += step) {
      const size_t k = g * 2;
      const int32_t a = (from[k] ^ flip) - flip - zero_point,
                    b = k + 1 < depth ? (from[k + 1] ^ flip) - flip - zero_point : 0;
      const int16_t two[2] = {static_cast<int16_t>(a), static_cast<int16_t>(b)};
      std::memcpy(to, two, 4);
      sum += a + b;
    }
    if (sums) sums[row] = sum;
  };
  pack_blocks(rows, groups, pack_row, packed);
}

Residues take_residues(int8_t* weights, size_t rows, size_t depth) {
  constexpr int most = 128;  // 128·255 is below 2^15
  Residues found;
  found.begins.push_back(0);
  for (size_t m = 0; m < rows; ++m, weights += depth) {
    for (size_t begin = 0; begin < depth; begin += 4) {
      int8_t taken[4] = {};
      const size_t end = std::min(begin + 4, depth);
      for (size_t k = begin; k + 1 < end; k += 2) {
        int a = weights[k], b = weights[k + 1];
        const int sign = a < 0 ? -1 : 1;
        if (sign * b <= 0 || sign * (a + b) <= most) continue;
        const int excess = sign * (a + b) - most, from_a = std::min(excess, sign * a);
        taken[k - begin] = static_cast<int8_t>(sign * from_a);
        taken[k + 1 - begin] = static_cast<int8_t>(sign * (excess - from_a));
        weights[k] = static_cast<int8_t>(a - taken[k - begin]);
        weights[k + 1] = static_cast<int8_t>(b - taken[k + 1 - begin]);
      }
      uint32_t four;
      std::memcpy(&four, taken, sizeof four);
      if (four) found.groups.push_back(static_cast<uint32_t>(begin / 4)), found.weights.push_back(four);
    }
    found.begins.push_back(static_cast<uint32_t>(found.groups.size()));
  }
  return found;
}

size_t column_of(Form form, size_t width, size_t lane) {
  if (form == Form::bytes_avx512 && width > kTile - kLanes) return lane % 16 / 4 * 16 + lane / 16 * 4 + lane % 4;
  if (form == Form::words_avx2 || form == Form::bytes_avx2)
    return lane / 16 * 16 + lane % 8 / 4 * 8 + lane / 8 % 2 * 4 + lane % 4;
  return lane;
}

void pack_columns(Form form, const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first,
                  size_t last, void* panel) {
#if QDQTOOL_X86
  if (form == Form::bytes_avx512) return avx512::pack_columns(columns, runs, run_count, width, first, last, panel);
  if (form != Form::words) return avx2::pack_columns(form, columns, runs, run_count, width, first, last, panel);
#endif
  (void)form;
  portable::pack_columns(columns, runs, run_count, width, first, last, panel);
}

void multiply(Form form, bool rows_unsigned, const void* packed, size_t rows, const void* panel, size_t width,
              size_t depth, const Epilogue& epilogue, void* y, size_t y_stride) {
  auto* bytes = static_cast<uint8_t*>(y);
#if QDQTOOL_X86
  if (form == Form::bytes_avx512)
    return avx512::multiply(rows_unsigned, packed, rows, panel, width, depth, epilogue, bytes, y_stride);
  if (form != Form::words) return avx2::multiply(form, packed, rows, panel, width, depth, epilogue, bytes, y_stride);
#endif
  (void)form, (void)rows_unsigned;
  portable::multiply(packed, rows, panel, width, depth, epilogue, bytes, y_stride);
}

void sum_columns(Form form, bool rows_unsigned, const void* panel, size_t width, size_t depth, int32_t* sums) {
#if QDQTOOL_X86
  if (form == Form::bytes_avx512) return avx512::sum_columns(rows_unsigned, panel, width, depth, sums);
  if (form == Form::bytes_avx2) return avx2::sum_columns(panel, width, depth, sums);
#endif
  (void)rows_unsigned;
  // Values of a column, and of a part of the columns in one group, lie apart by these.
  const size_t step = form == Form::words_avx2 ? 1 : kLanes, next = form == Form::words_avx2 ? 2 : 1;
  const size_t groups = groups_in(depth, 2);
  for (size_t lane = 0; lane < (width + kLanes - 1) / kLanes * kLanes; ++lane) {
    const int16_t* column =
        static_cast<const int16_t*>(panel) + lane / kLanes * groups * kLanes * 2 + lane % kLanes * next;
    uint32_t sum = 0;
    for (size_t g = 0; g < groups; ++g, column += kLanes * 2) sum += static_cast<uint32_t>(column[0] + column[step]);
    sums[lane] = static_cast<int32_t>(sum);
  }
}

void finish_row(Form form, const Epilogue& epilogue, size_t row, size_t width, const int32_t* sums, uint8_t* y) {
  const Requantizer& requantizer = *epilogue.requantizer;
  const uint32_t base = epilogue.row_offsets ? static_cast<uint32_t>(epilogue.row_offsets[row]) : 0;
  const uint32_t factor = epilogue.row_factors ? static_cast<uint32_t>(epilogue.row_factors[row]) : 0;
  int32_t held[kTile];
  for (size_t lane = 0; lane < kTile; ++lane) {
    const size_t column = column_of(form, width, lane);
    if (column >= width) continue;
    uint32_t sum = (static_cast<uint32_t>(sums[lane]) << epilogue.x_shift) + base;
    if (epilogue.column_offsets) sum += static_cast<uint32_t>(epilogue.column_offsets[lane]);
    if (epilogue.row_factors) sum += factor * static_cast<uint32_t>(epilogue.column_factors[lane]);
    held[column] = static_cast<int32_t>(sum);
  }
  if (!epilogue.lanes) return requantizer.row(held, width, epilogue.first_row + row, y, epilogue.path);
  for (size_t column = 0; column < width; ++column) {
    requantizer.row(held + column, 1, epilogue.first_column + column, y + column, epilogue.path);
  }
}

namespace portable {

namespace {

// The values of one row of a tile, one behind another; the first `width` of 64 are written.
void gather_row(const uint8_t* row, const Run* runs, size_t run_count, uint8_t* values) {
  for (size_t i = 0; i < run_count; ++i) {
    const Run& run = runs[i];
    std::memcpy(values + run.begin, row + run.offset + run.begin, static_cast<size_t>(run.end - run.begin));
  }
}

}  // namespace

void pack_columns(const Columns& columns, const Run* runs, size_t run_count, size_t width, size_t first, size_t last,
                  void* panel) {
  const size_t groups = groups_in(columns.depth, kGroup), parts = (width + kLanes - 1) / kLanes;
  uint8_t values[kTile] = {};
  for (size_t k = first * kGroup; k < last * kGroup; ++k) {
    const bool is_there = k < columns.depth;
    if (is_there) gather_row(columns.row(k), runs, run_count, values);
    for (size_t part = 0; part < parts; ++part) {
      int16_t* to = static_cast<int16_t*>(panel) + (part * groups * kGroup + k) * kLanes;
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const uint8_t byte = values[part * kLanes + lane];
        const int32_t value = (columns.how.is_signed ? static_cast<int8_t>(byte) : byte) - columns.how.subtract;
        to[lane] = static_cast<int16_t>(is_there ? value : 0);
      }
    }
  }
}

namespace {

// Sums of one row of a block of `height` and kLanes columns. Compilers make vectors of the loops over lanes.
void sum_row(const int16_t* row, size_t height, const int16_t* columns, size_t groups, int32_t* sums) {
  uint32_t held[kLanes] = {};
  for (size_t g = 0; g < groups; ++g, row += height * kGroup, columns += kLanes * kGroup) {
    const int16_t a = row[0], b = row[1];
    for (size_t lane = 0; lane < kLanes; ++lane) held[lane] += static_cast<uint32_t>(a * columns[lane]);
    for (size_t lane = 0; lane < kLanes; ++lane) held[lane] += static_cast<uint32_t>(b * columns[kLanes + lane]);
  }
  std::memcpy(sums, held, sizeof held);
}

}  // namespace

void multiply(const void* packed, size_t rows, const void* panel, size_t width, size_t depth, const Epilogue& epilogue,
              uint8_t* y, size_t y_stride) {
  const size_t groups = groups_in(depth, kGroup), parts = (width + kLanes - 1) / kLanes;
  const auto* from = static_cast<const int16_t*>(packed);
  int32_t sums[kRowBlock * kTile] = {};
  for (size_t begin = 0; begin < rows; begin += kRowBlock) {
    const size_t height = std::min(kRowBlock, rows - begin);
    for (size_t part = 0; part < parts; ++part) {
      const int16_t* columns = static_cast<const int16_t*>(panel) + part * groups * kLanes * kGroup;
      for (size_t r = 0; r < height; ++r)
        sum_row(from + r * kGroup, height, columns, groups, sums + r * kTile + part * kLanes);
    }
    for (size_t r = 0; r < height; ++r) {
      finish_row(Form::words, epilogue, begin + r, width, sums + r * kTile, y + (begin + r) * y_stride);
    }
    from += groups * height * kGroup;
  }
}

}  // namespace portable

}  // namespace qdqtool
