// ai.qdqtool::MatMul where an operand or the output has 16 bits: see wide_gemm.hpp. B is packed once where it is a constant.
#include "kernels/products/matrix_shapes.hpp"
#include "kernels/products/product.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/wide_products/wide_gemm.hpp"
#include "kernels/requantize/sum_output.hpp"

namespace qdqtool {

namespace {

size_t panels_in(size_t columns) { return (columns + kWideLanes - 1) / kWideLanes; }

class WideMatMul : public Kernel {
 public:
  explicit WideMatMul(const NodeInfo& node) : isa_(choose_isa(node.isa)), x_shift_(x_shift_of(node)) {
    check_inputs(node.inputs, 2, 7);
    for (size_t i = 0; i < 2; ++i) check_integer(node.inputs[i].type, i ? "B" : "A");
    const Tensor& b = node.inputs[1];
    a_type_ = node.inputs[0].type, b_type_ = b.type;
    form_ = word_form(a_type_, b_type_);
    const int64_t zero_point = zero_point_of(node, "a_zero_point", a_type_);
    a_zero_point_ = word_zero_point(a_type_, zero_point), a_most_ = most_of(a_type_, zero_point);
    is_constant_ = b.data != nullptr;
    size_t channels = 1;
    if (is_constant_) {
      b_shape_ = b.shape;
      channels = shapes_of_constant(b).columns;
      if (channels == 0) throw Error("B has no elements");
    }
    for (const int32_t z : zero_points_of(node, "b_zero_points", b_type_, channels)) {
      b_zero_points_.push_back(word_zero_point(b_type_, z)), b_most_ = std::max(b_most_, most_of(b_type_, z));
    }
    if (has_input(node.inputs, 2))
      bias_ = bias_of(node, 2, is_constant_ ? channels : static_cast<size_t>(node.inputs[2].count()));
    requantizer_ = Requantizer::of_inputs(node, 3, channels, integer_types());
    for (const int64_t z : b_zero_points_) has_row_sums_ = has_row_sums_ || z != 0;
    if (!is_constant_) return;
    const MatrixShapes s = shapes_of_constant(b);
    const size_t items = s.b_count * panels_in(s.columns);
    panels_.resize(items * panel_words(s)), offsets_.resize(items * kWideLanes);
    for (size_t item = 0; item < items; ++item) pack(b, s, item, panels_.data(), offsets_.data());
    output_ = SumOutput(requantizer_, most_of_sums(s), x_shift_, bias_);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override { return {shapes(inputs).output}; }

  size_t scratch(const std::vector<Tensor>& inputs) const override { return memory_of(shapes(inputs)).total; }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const MatrixShapes s = shapes(inputs);
    if (outputs[0].count() == 0) return;
    const Memory memory = memory_of(s);
    auto* base = static_cast<uint8_t*>(scratch);
    auto* high = reinterpret_cast<int16_t*>(base);
    auto* low = form_.is_split ? reinterpret_cast<int16_t*>(base + memory.low) : nullptr;
    auto* row_sums = has_row_sums_ ? reinterpret_cast<int64_t*>(base + memory.sums) : nullptr;
    const size_t tiles = panels_in(s.columns), pitch = 2 * pairs_of(s.depth);
    with_integer(a_type_, [&](auto element) {
      const auto* a = inputs[0].as<decltype(element)>();
      for_parts(parallel, static_cast<int64_t>(s.a_count * s.rows), static_cast<int64_t>(s.depth),
                [&](int64_t first, int64_t last) {
                  const auto begin = static_cast<size_t>(first);
                  pack_words(a + begin * s.depth, static_cast<size_t>(last - first), s.depth, high + begin * pitch,
                             low ? low + begin * pitch : nullptr, row_sums ? row_sums + begin : nullptr);
                });
    });
    const int16_t* panels = panels_.data();
    const int64_t* offsets = offsets_.data();
    if (!is_constant_) {
      auto* packed = reinterpret_cast<int16_t*>(base + memory.panels);
      auto* made = reinterpret_cast<int64_t*>(base + memory.offsets);
      const auto items = static_cast<int64_t>(s.b_count * tiles);
      for_parts(parallel, items, static_cast<int64_t>(s.depth * kWideLanes), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) pack(inputs[1], s, static_cast<size_t>(item), packed, made);
      });
      panels = packed, offsets = made;
    }
    const Int128 most = most_of_sums(s);
    SumOutput made;
    if (!is_constant_) made = SumOutput(requantizer_, most, x_shift_, bias_);
    const SumOutput& output = is_constant_ ? output_ : made;
    const size_t blocks = (s.rows + kWideRows - 1) / kWideRows, items = s.a_of.size() * tiles;
    const double operations = static_cast<double>(s.rows * s.depth) * static_cast<double>(s.columns * s.a_of.size());
    const size_t cuts = items >= kParts ? 1 : parts_for(blocks, operations / static_cast<double>(items), kParts / items);
    const Parts parts{items * cuts, parts_for(items * cuts, operations, 2 * kParts)};
    parallel(parts.parts, [&](size_t part) {
      for (size_t index = parts.begin(part); index < parts.begin(part + 1); ++index) {
        const size_t batch = index / cuts / tiles, tile = index / cuts % tiles, item = s.b_of[batch] * tiles + tile;
        const Parts cut{blocks, cuts};
        const size_t first = s.a_of[batch] * s.rows;
        const WordRows rows = {high + first * pitch, low ? low + first * pitch : nullptr, pitch};
        const Piece piece = {rows,
                             row_sums ? row_sums + first : nullptr,
                             panels + item * panel_words(s),
                             offsets + item * kWideLanes,
                             tile * kWideLanes,
                             cut.begin(index % cuts) * kWideRows,
                             std::min(s.rows, cut.begin(index % cuts + 1) * kWideRows)};
        multiply(s, piece, output, outputs[0].as<uint8_t>() + batch * s.rows * s.columns * size_of(outputs[0].type));
      }
    });
  }

 private:
  // Where things lie in the scratch memory.
  struct Memory {
    size_t low = 0, sums = 0, panels = 0, offsets = 0, total = 0;
  };

  // Rows [begin, end) of one product, and a panel of its columns from `column` on.
  struct Piece {
    WordRows rows;
    const int64_t* row_sums;
    const int16_t* panel;
    const int64_t* offsets;
    size_t column, begin, end;
  };

  static MatrixShapes shapes_of_constant(const Tensor& b) {
    return matrix_shapes({1, b.shape.empty() ? 1 : b.shape[b.shape.size() == 1 ? 0 : b.shape.size() - 2]}, b.shape);
  }

  Memory memory_of(const MatrixShapes& s) const {
    const size_t rows = s.a_count * s.rows, words = aligned(rows * 2 * pairs_of(s.depth) * sizeof(int16_t));
    const size_t items = is_constant_ ? 0 : s.b_count * panels_in(s.columns);
    Memory memory;
    memory.low = words;
    memory.sums = memory.low + (form_.is_split ? words : 0);
    memory.panels = memory.sums + (has_row_sums_ ? aligned(rows * sizeof(int64_t)) : 0);
    memory.offsets = memory.panels + aligned(items * panel_words(s) * sizeof(int16_t));
    memory.total = memory.offsets + items * kWideLanes * sizeof(int64_t);
    return memory;
  }

  static size_t panel_words(const MatrixShapes& s) { return pairs_of(s.depth) * kWideLanes * 2; }
  Int128 most_of_sums(const MatrixShapes& s) const {
    return Int128{a_most_ * b_most_} * static_cast<int64_t>(s.depth);
  }
  int64_t b_zero_point(size_t column) const { return b_zero_points_[b_zero_points_.size() == 1 ? 0 : column]; }

  MatrixShapes shapes(const std::vector<Tensor>& inputs) const {
    check_type(inputs[0].type, a_type_, "A");
    check_type(inputs[1].type, b_type_, "B");
    if (is_constant_ && inputs[1].shape != b_shape_)
      throw Error("B has the shape " + name_of(inputs[1].shape) + ", not " + name_of(b_shape_));
    MatrixShapes found = matrix_shapes(inputs[0].shape, inputs[1].shape);
    if (!is_constant_ && !bias_.empty() && bias_.size() != found.columns) {
      throw Error("the bias has " + std::to_string(bias_.size()) + " entries, B " + std::to_string(found.columns) +
                  " columns");
    }
    return found;
  }

  // Panel `item` of B, and what sums along its columns lack: Σ(a − za)(b − zb) = Σab − zb·Σa − za·Σb + K·za·zb.
  void pack(const Tensor& b, const MatrixShapes& s, size_t item, int16_t* panels, int64_t* offsets) const {
    const size_t tiles = panels_in(s.columns), first = item % tiles * kWideLanes;
    const size_t width = std::min(kWideLanes, s.columns - first);
    int16_t* panel = panels + item * panel_words(s);
    with_integer(b_type_, [&](auto element) {
      const auto* from = b.as<decltype(element)>() + item / tiles * s.depth * s.columns + first;
      pack_panel(isa_, from, s.columns, s.depth, width, panel);
    });
    int64_t* to = offsets + item * kWideLanes;
    std::fill(to, to + kWideLanes, int64_t{0});
    if (a_zero_point_ == 0) return;
    sum_panel(panel, pairs_of(s.depth), to);
    for (size_t lane = 0; lane < width; ++lane)
      to[lane] = a_zero_point_ * (static_cast<int64_t>(s.depth) * b_zero_point(first + lane) - to[lane]);
  }

  void multiply(const MatrixShapes& s, const Piece& piece, const SumOutput& output, uint8_t* y) const {
    const size_t width = std::min(kWideLanes, s.columns - piece.column), bytes = size_of(requantizer_.output.type);
    alignas(kAlignment) int64_t sums[kWideRows * kWideLanes], factors[kWideLanes];
    for (size_t lane = 0; lane < width; ++lane) factors[lane] = b_zero_point(piece.column + lane);
    for (size_t first = piece.begin; first < piece.end; first += kWideRows) {
      const size_t height = std::min(kWideRows, piece.end - first);
      multiply_words(isa_, form_, piece.rows, first, height, piece.panel, pairs_of(s.depth), sums);
      for (size_t r = 0; r < height; ++r) {
        int64_t* row = sums + r * kWideLanes;
        const int64_t sum = piece.row_sums ? piece.row_sums[first + r] : 0;
        for (size_t lane = 0; lane < kWideLanes; ++lane) row[lane] += piece.offsets[lane];
        if (sum != 0) {
          for (size_t lane = 0; lane < width; ++lane) row[lane] -= sum * factors[lane];
        }
        output.row(row, width, piece.column, 1,
                   y + ((first + r) * s.columns + piece.column) * bytes);
      }
    }
  }

  const Isa isa_;
  const int x_shift_;
  DataType a_type_, b_type_;
  WordForm form_;
  int64_t a_zero_point_ = 0, a_most_ = 0, b_most_ = 0;  // a_zero_point_ of packed values
  std::vector<int64_t> b_zero_points_;                   // likewise
  std::vector<int32_t> bias_;
  Requantizer requantizer_;
  bool is_constant_ = false, has_row_sums_ = false;
  Shape b_shape_;  // of the constant
  std::vector<int16_t> panels_;
  std::vector<int64_t> offsets_;
  SumOutput output_;  // of the constant: a bound on sums needs a depth
};

}  // namespace

std::unique_ptr<Kernel> make_wide_matmul(const NodeInfo& node) { return std::make_unique<WideMatMul>(node); }

}  // namespace qdqtool
