// ai.qdqtool::MatMul: numpy's product of matrices, B packed once where it is a constant. Vectors run along the columns
// of B.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/products/exact.hpp"
#include "kernels/products/gemm.hpp"
#include "kernels/products/matrix_shapes.hpp"
#include "kernels/products/product.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/wide_products/wide_gemm.hpp"

namespace qdqtool {

namespace {

using Shapes = MatrixShapes;

int32_t plus(int32_t a, int64_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }

// Matrices B, packed: panels, and what is added to sums along their columns in the order of lanes.
struct PackedColumns {
  void* panels = nullptr;      // [matrices, tiles], each of panel_bytes(), aligned
  int32_t* offsets = nullptr;  // [matrices, tiles, kTile]
};

class MatMul : public Kernel {
 public:
  explicit MatMul(const NodeInfo& node) : form_(form_of(choose_isa(node.isa))), x_shift_(x_shift_of(node)) {
    check_inputs(node.inputs, 2, 7);
    for (size_t i = 0; i < 2; ++i) check_integer(node.inputs[i].type, i ? "B" : "A");
    const Tensor& b = node.inputs[1];
    a_type_ = node.inputs[0].type, b_type_ = b.type;
    a_zero_point_ = zero_point_of(node, "a_zero_point", a_type_);
    a_packing_ = packing(form_, a_type_, a_zero_point_, true);
    is_constant_ = b.data != nullptr;
    size_t channels = 1;
    if (is_constant_) {
      b_shape_ = b.shape;
      const Shapes shapes =
          matrix_shapes({1, b.shape.empty() ? 1 : b.shape[b.shape.size() == 1 ? 0 : b.shape.size() - 2]}, b.shape);
      channels = shapes.columns;
      if (channels == 0) throw Error("B has no elements");
    }
    b_zero_points_ = zero_points_of(node, "b_zero_points", b_type_, channels);
    if (has_input(node.inputs, 2)) {
      const size_t length = is_constant_ ? channels : static_cast<size_t>(node.inputs[2].count());
      bias_ = bias_of(node, 2, length);
    }
    requantizer_ = Requantizer::of_inputs(node, 3, channels);
    // A zero point that all columns share is taken off on packing; else it meets the sum of the row.
    const bool is_shared =
        std::all_of(b_zero_points_.begin(), b_zero_points_.end(), [&](int32_t z) { return z == b_zero_points_[0]; });
    b_packing_ = packing(form_, b_type_, is_shared ? b_zero_points_[0] : 0, false);
    if (is_constant_) prepare(b);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override { return {shapes(inputs).output}; }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Shapes s = shapes(inputs);
    const Memory memory = memory_of(s);
    // All of it is a small multiple of the inputs' bytes, which count_of() has accepted, but for empty matrices.
    return memory.total;
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const Shapes s = shapes(inputs);
    const auto* a = inputs[0].as<uint8_t>();
    const auto* b = inputs[1].as<uint8_t>();
    auto* y = outputs[0].as<uint8_t>();
    if (outputs[0].count() == 0) return;
    bool is_exact = is_exact_;
    Requantizer::Path path = path_;
    if (!is_constant_) judge(bounds_of(s), is_exact, path);
    if (is_exact) {
      return with_type(a_type_, [&](auto a_element) {
        with_type(b_type_, [&](auto b_element) {
          run_exact(s, reinterpret_cast<const decltype(a_element)*>(a), reinterpret_cast<const decltype(b_element)*>(b),
                    y, parallel);
        });
      });
    }

    const Memory memory = memory_of(s);
    auto* base = static_cast<uint8_t*>(scratch);
    const Tiles tiles{s.columns};
    PackedColumns columns{const_cast<uint8_t*>(panels_.data() + panels_begin_), const_cast<int32_t*>(offsets_.data())};
    if (!is_constant_) {
      columns.panels = base + memory.panels, columns.offsets = reinterpret_cast<int32_t*>(base + memory.offsets);
      parallel(s.b_count * tiles.count(), [&](size_t item) { pack_tile(b, s, tiles, item, columns); });
    }
    auto* sums = reinterpret_cast<int32_t*>(base + memory.sums);
    const size_t blocks = (s.rows + kRowBlock - 1) / kRowBlock;
    pack_a(s, a, base, memory, sums, parallel);

    const double operations =
        static_cast<double>(s.rows) * static_cast<double>(s.columns) * static_cast<double>(s.depth);
    const size_t items = s.a_of.size() * tiles.count();
    const size_t cuts =
        items >= kParts
            ? 1
            : parts_for(blocks, operations * static_cast<double>(s.a_of.size()) / static_cast<double>(items),
                        kParts / std::max<size_t>(1, items));
    const Parts parts{items * cuts,
                      parts_for(items * cuts, operations * static_cast<double>(s.a_of.size()), 2 * kParts)};
    parallel(parts.parts, [&](size_t part) {
      for (size_t index = parts.begin(part); index < parts.begin(part + 1); ++index) {
        const size_t batch = index / cuts / tiles.count(), tile = index / cuts % tiles.count();
        const Parts rows{blocks, cuts};
        const size_t begin = rows.begin(index % cuts) * kRowBlock,
                     end = std::min(s.rows, rows.begin(index % cuts + 1) * kRowBlock);
        product(s, batch, tile, begin, end, columns, base + s.a_of[batch] * memory.a_matrix,
                sums + s.a_of[batch] * s.rows, path, y + batch * s.rows * s.columns);
      }
    });
  }

 private:
  // Where things lie in the scratch memory: matrices A, sums of their rows, panels of B and its offsets.
  struct Memory {
    size_t a_matrix = 0, sums = 0, panels = 0, offsets = 0, total = 0;
  };

  Memory memory_of(const Shapes& s) const {
    Memory memory;
    memory.a_matrix = aligned(rows_bytes(form_, s.rows, s.depth));
    memory.sums = s.a_count * memory.a_matrix;
    memory.panels = memory.sums + aligned(s.a_count * s.rows * sizeof(int32_t));
    memory.offsets = memory.panels;
    memory.total = memory.panels;
    if (!is_constant_) {
      const size_t tiles = s.b_count * Tiles{s.columns}.count();
      memory.offsets += tiles * panel_size(s);
      memory.total = memory.offsets + tiles * kTile * sizeof(int32_t);
    }
    return memory;
  }

  size_t panel_size(const Shapes& s) const { return aligned(panel_bytes(form_, s.depth)); }
  int32_t b_zero_point(size_t column) const { return b_zero_points_[b_zero_points_.size() == 1 ? 0 : column]; }
  // What stands for 0 in a packed column.
  int64_t packed_zero_point(size_t column) const {
    if (has_bytes(form_)) return b_zero_point(column) + (b_packing_.flip ? -128 : 0);
    return b_zero_point(column) - b_packing_.subtract;
  }

  Shapes shapes(const std::vector<Tensor>& inputs) const {
    check_type(inputs[0].type, a_type_, "A");
    check_type(inputs[1].type, b_type_, "B");
    if (is_constant_ && inputs[1].shape != b_shape_)
      throw Error("B has the shape " + name_of(inputs[1].shape) + ", not " + name_of(b_shape_));
    const Shapes found = matrix_shapes(inputs[0].shape, inputs[1].shape);
    if (!is_constant_ && !bias_.empty() && bias_.size() != found.columns) {
      throw Error("the bias has " + std::to_string(bias_.size()) + " entries, B " + std::to_string(found.columns) +
                  " columns");
    }
    return found;
  }

  // |sum| of any B that is not known.
  std::vector<int64_t> bounds_of(const Shapes& s) const {
    const Int128 most =
        Int128{most_of(a_type_, a_zero_point_) * most_of(b_type_, b_zero_points_[0])} * static_cast<int64_t>(s.depth);
    int64_t bias = 0;
    for (const int32_t value : bias_) bias = std::max<int64_t>(bias, std::abs(int64_t{value}));
    return {static_cast<int64_t>(std::min<Int128>((most << x_shift_) + bias, Int128{1} << 62))};
  }

  void judge(const std::vector<int64_t>& bounds, bool& is_exact, Requantizer::Path& path) const {
    const bool fits = std::all_of(bounds.begin(), bounds.end(), [](int64_t bound) { return bound < int64_t{1} << 31; });
    is_exact = !fits && !(requantizer_.accumulator.wraps && requantizer_.accumulator.bits <= 32);
    path = requantizer_.plan(bounds);
  }

  // The constant B: bounds, panels, and arrays along its columns in the order of lanes.
  void prepare(const Tensor& b) {
    const Shapes s = matrix_shapes({1, b.shape[b.shape.size() == 1 ? 0 : b.shape.size() - 2]}, b.shape);
    const int64_t most = most_of(a_type_, a_zero_point_);
    std::vector<int64_t> bounds(s.columns, 0);
    const auto* values = b.as<uint8_t>();
    for (size_t matrix = 0; matrix < s.b_count; ++matrix) {
      std::vector<int64_t> sums(s.columns, 0);
      for (size_t k = 0; k < s.depth; ++k) {
        for (size_t n = 0; n < s.columns; ++n, ++values) {
          sums[n] += std::abs((b_type_ == DataType::int8 ? static_cast<int8_t>(*values) : *values) - b_zero_point(n));
        }
      }
      for (size_t n = 0; n < s.columns; ++n) bounds[n] = std::max(bounds[n], sums[n]);
    }
    for (size_t n = 0; n < s.columns; ++n) {
      const Int128 bound = (Int128{bounds[n]} * most << x_shift_) + (bias_.empty() ? 0 : std::abs(int64_t{bias_[n]}));
      bounds[n] = static_cast<int64_t>(std::min<Int128>(bound, Int128{1} << 62));
    }
    judge(bounds, is_exact_, path_);
    if (is_exact_) return;
    const Tiles tiles{s.columns};
    panels_.resize(s.b_count * tiles.count() * panel_size(s) + kAlignment);
    panels_begin_ = (kAlignment - reinterpret_cast<uintptr_t>(panels_.data()) % kAlignment) % kAlignment;
    offsets_.resize(s.b_count * tiles.count() * kTile);
    const PackedColumns columns{panels_.data() + panels_begin_, offsets_.data()};
    for (size_t item = 0; item < s.b_count * tiles.count(); ++item) pack_tile(b.as<uint8_t>(), s, tiles, item, columns);

    const bool has_lanes = requantizer_.channels.size() > 1;
    bool has_factors = false;
    for (size_t n = 0; n < s.columns; ++n) has_factors = has_factors || packed_zero_point(n) != 0;
    for (size_t tile = 0; tile < tiles.count(); ++tile) {
      for (size_t lane = 0; lane < kTile; ++lane) {
        const size_t column = column_of(form_, tiles.width(tile), lane), n = tiles.begin(tile) + column;
        const bool is_there = column < tiles.width(tile);
        const Scaling scaling = is_there && has_lanes ? requantizer_.channels[n] : Scaling{};
        if (has_factors) factors_.push_back(is_there ? plus(0, -packed_zero_point(n) * (int64_t{1} << x_shift_)) : 0);
        if (!has_lanes) continue;
        lanes_.multiplier.push_back(scaling.multiplier), lanes_.shift.push_back(scaling.shift);
        lanes_.negative_multiplier.push_back(scaling.negative_multiplier),
            lanes_.negative_shift.push_back(scaling.negative_shift);
        lanes_.scale.push_back(scaling.scale), lanes_.negative_slope.push_back(scaling.negative_slope);
      }
    }
  }

  void pack_tile(const uint8_t* b, const Shapes& s, const Tiles& tiles, size_t item, const PackedColumns& to) const {
    const size_t tile = item % tiles.count(), width = tiles.width(tile);
    const size_t group = group_of(form_), groups = (s.depth + group - 1) / group;
    auto* panel = static_cast<uint8_t*>(to.panels) + item * panel_size(s);
    int32_t* offsets = to.offsets + item * kTile;
    Columns columns;
    columns.data = b + item / tiles.count() * s.depth * s.columns + tiles.begin(tile);
    columns.stride = static_cast<int64_t>(s.columns);
    columns.depth = s.depth;
    columns.how = b_packing_;
    const Run run{0, static_cast<int64_t>(width), 0};
    pack_columns(form_, columns, &run, 1, width, 0, groups, panel);
    // Σ(a − za)(b − zb) = Σa·b − zb·Σa − za·Σb + K·za·zb, in packed values and their zero points; the first two terms
    // are not constant.
    int32_t sums[kTile] = {};
    if (a_packing_.zero_point) sum_columns(form_, true, panel, width, s.depth, sums);
    for (size_t lane = 0; lane < kTile; ++lane) {
      const size_t column = column_of(form_, width, lane), n = tiles.begin(tile) + column;
      if (column >= width) {
        offsets[lane] = 0;
        continue;
      }
      const int64_t offset =
          a_packing_.zero_point * (static_cast<int64_t>(s.depth) * packed_zero_point(n) - sums[lane]);
      offsets[lane] = plus(bias_.empty() ? 0 : bias_[n], offset * (int64_t{1} << x_shift_));
    }
  }

  void pack_a(const Shapes& s, const uint8_t* a, uint8_t* to, const Memory& memory, int32_t* sums,
              const ParallelFor& parallel) const {
    const size_t blocks = (s.rows + kRowBlock - 1) / kRowBlock;
    const bool has_sums = is_constant_ ? !factors_.empty() : packed_zero_point(0) != 0;
    for_parts(parallel, static_cast<int64_t>(s.a_count * blocks), static_cast<int64_t>(kRowBlock * s.depth),
              [&](int64_t first, int64_t last) {
                for (auto index = static_cast<size_t>(first); index < static_cast<size_t>(last); ++index) {
                  const size_t matrix = index / blocks, begin = index % blocks * kRowBlock,
                               rows = std::min(kRowBlock, s.rows - begin);
                  pack_rows(form_, a_packing_, a + (matrix * s.rows + begin) * s.depth, s.depth, rows, s.depth, nullptr,
                            to + matrix * memory.a_matrix + rows_bytes(form_, begin, s.depth),
                            has_sums ? sums + matrix * s.rows + begin : nullptr);
                }
              });
  }

  void product(const Shapes& s, size_t batch, size_t tile, size_t begin, size_t end, const PackedColumns& columns,
               const uint8_t* packed, const int32_t* sums, Requantizer::Path path, uint8_t* y) const {
    const Tiles tiles{s.columns};
    const size_t item = s.b_of[batch] * tiles.count() + tile;
    alignas(kAlignment) int32_t same_factor[kTile];
    Epilogue epilogue;
    epilogue.requantizer = &requantizer_;
    epilogue.path = path;
    epilogue.x_shift = x_shift_;
    epilogue.column_offsets = columns.offsets + item * kTile;
    if (is_constant_ && !factors_.empty()) {
      epilogue.row_factors = sums + begin, epilogue.column_factors = factors_.data() + tile * kTile;
    } else if (!is_constant_ && packed_zero_point(0) != 0) {
      std::fill(std::begin(same_factor), std::end(same_factor),
                plus(0, -packed_zero_point(0) * (int64_t{1} << x_shift_)));
      epilogue.row_factors = sums + begin, epilogue.column_factors = same_factor;
    }
    if (!lanes_.multiplier.empty()) epilogue.lanes = &lanes_, epilogue.first_lane = tile * kTile;
    epilogue.first_column = tiles.begin(tile);
    multiply(form_, true, packed + rows_bytes(form_, begin, s.depth), end - begin,
             static_cast<const uint8_t*>(columns.panels) + item * panel_size(s), tiles.width(tile), s.depth, epilogue,
             y + begin * s.columns + tiles.begin(tile), s.columns);
  }

  template <class A, class B, class Y>
  void run_exact(const Shapes& s, const A* a, const B* b, Y* y, const ParallelFor& parallel) const {
    parallel(s.a_of.size() * s.rows, [&](size_t index) {
      const size_t batch = index / s.rows;
      const Factor<A> row = {a + (s.a_of[batch] * s.rows + index % s.rows) * s.depth, 1, a_zero_point_};
      for (size_t n = 0; n < s.columns; ++n) {
        const Factor<B> column = {b + s.b_of[batch] * s.depth * s.columns + n, static_cast<int64_t>(s.columns),
                                  b_zero_point(n)};
        const int64_t sum = sum_of_products(row, column, s.depth) * (int64_t{1} << x_shift_);
        y[index * s.columns + n] = static_cast<Y>(requantizer_(sum + (bias_.empty() ? 0 : bias_[n]), n));
      }
    });
  }

  const Form form_;
  const int x_shift_;
  DataType a_type_, b_type_;
  int64_t a_zero_point_ = 0;
  std::vector<int32_t> b_zero_points_, bias_;
  Packing a_packing_, b_packing_;
  Requantizer requantizer_;
  bool is_constant_ = false, is_exact_ = false;
  Requantizer::Path path_ = Requantizer::Path::scalar;
  Shape b_shape_;  // of the constant
  std::vector<uint8_t> panels_;
  size_t panels_begin_ = 0;                 // where the memory is aligned
  std::vector<int32_t> offsets_, factors_;  // [matrices, tiles, kTile]; [tiles, kTile], empty where all are 0
  LaneScalings lanes_;                      // empty where one scaling is for all
};

std::unique_ptr<Kernel> make_matmul(const NodeInfo& node) {
  return has_16_bit(node, 2) ? make_wide_matmul(node) : make_kernel<MatMul>(node);
}

}  // namespace

const Operator matmul{"MatMul", {4, 7}, arithmetic({{"a_zero_point", type_int}, {"b_zero_points", type_ints},
                      {"x_shift", type_int}}), shapes::multiplied, make_matmul};

}  // namespace qdqtool
