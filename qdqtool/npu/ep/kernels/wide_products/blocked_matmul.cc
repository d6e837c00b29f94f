// ai.qdqtool::BlockedMatMul: a product with a constant matrix that has a scale and a zero point per block of its depth.
//
//   t = 0; for each block g:  t = t + float(Σ_{k in g}(a − za)(b − zb[g, n]))·scale[g, n]
//   y = fit(round((t + bias[n]) / y_scale) + y_zero_point)                       each operation rounded to float32
//
// B is packed less its zero points, block by block, as wide_gemm.hpp packs columns; a block of odd size has a 0 behind it.
#include <cstring>

#include "kernels/products/matrix_shapes.hpp"
#include "kernels/products/product.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/wide_products/wide_gemm.hpp"

namespace qdqtool {

namespace {

// The constant [rows, columns] of `type` at `index`.
const Tensor& matrix_at(const NodeInfo& node, size_t index, DataType type, size_t rows, size_t columns,
                        const char* what) {
  const Tensor& found = node.inputs[index];
  check_type(found.type, type, what);
  if (!found.data) throw Error(std::string(what) + " must be a constant");
  const Shape meant = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
  if (found.shape != meant)
    throw Error(std::string(what) + " has the shape " + name_of(found.shape) + "; " + name_of(meant) + " is meant");
  return found;
}

class BlockedMatMul : public Kernel {
 public:
  explicit BlockedMatMul(const NodeInfo& node) : isa_(choose_isa(node.isa)), output_(Output::of(node, integer_types())) {
    check_inputs(node.inputs, 4, 5);
    check_integer(node.inputs[0].type, "A");
    const Tensor& b = node.inputs[1];
    check_8_bit(b.type, "B");
    if (!b.data || b.shape.size() != 2 || b.count() == 0)
      throw Error("B has the shape " + name_of(b.shape) + "; a constant matrix with elements is meant");
    depth_ = static_cast<size_t>(b.shape[0]), columns_ = static_cast<size_t>(b.shape[1]);
    const int64_t size = node.attributes.integer("block_size");
    if (size < 1) throw Error("block_size is " + std::to_string(size));
    size_ = std::min(static_cast<size_t>(size), depth_);
    blocks_ = (depth_ + size_ - 1) / size_;
    a_type_ = node.inputs[0].type;
    const int64_t zero_point = zero_point_of(node, "a_zero_point", a_type_);
    a_zero_point_ = word_zero_point(a_type_, zero_point);
    y_scale_ = scale_of(node, "y_scale");
    const Tensor& zero_points = matrix_at(node, 3, b.type, blocks_, columns_, "zero_points");
    const Tensor& scale = matrix_at(node, 2, DataType::float32, blocks_, columns_, "scale");
    const auto* bias = has_input(node.inputs, 4) ? matrix_row(node.inputs[4]) : nullptr;
    constexpr int64_t most_of_b = 255;
    limit_ = static_cast<size_t>(((int64_t{1} << 31) - 1) / (2 * word_most(a_type_) * most_of_b));
    is_narrow_ = Int128{most_of(a_type_, zero_point)} * most_of_b * static_cast<int64_t>(size_) < (int64_t{1} << 31) &&
                 pairs_of(size_) <= limit_;
    panels_.resize(tiles() * pairs() * kWideLanes * 2), offsets_.resize(tiles() * blocks_ * kWideLanes);
    narrow_offsets_.resize(offsets_.size()), scales_.resize(offsets_.size()), bias_.resize(tiles() * kWideLanes);
    for (size_t tile = 0; tile < tiles(); ++tile) {
      for (size_t lane = 0; lane < width_of(tile); ++lane) {
        if (bias) bias_[tile * kWideLanes + lane] = bias[tile * kWideLanes + lane];
        for (size_t g = 0; g < blocks_; ++g) {
          const size_t from = g * columns_ + tile * kWideLanes + lane;
          scales_[(tile * blocks_ + g) * kWideLanes + lane] = scale.as<float>()[from];
        }
      }
      with_integer(b.type, [&](auto element) {
        using B = decltype(element);
        pack(b.as<B>(), zero_points.as<B>(), tile);
      });
    }
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override { return {shapes(inputs).output}; }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    return shapes(inputs).rows * pairs() * 2 * sizeof(int16_t);
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    const size_t rows = shapes(inputs).rows;
    if (outputs[0].count() == 0) return;
    auto* words = static_cast<int16_t*>(scratch);
    with_integer(a_type_, [&](auto element) {
      const auto* a = inputs[0].as<decltype(element)>();
      for_parts(parallel, static_cast<int64_t>(rows), static_cast<int64_t>(depth_), [&](int64_t begin, int64_t end) {
        for (auto m = static_cast<size_t>(begin); m < static_cast<size_t>(end); ++m)
          pack_row(a + m * depth_, words + m * pairs() * 2);
      });
    });
    const size_t row_blocks = (rows + kWideRows - 1) / kWideRows;
    const double operations = static_cast<double>(rows * depth_) * static_cast<double>(columns_);
    const size_t cuts = tiles() >= kParts
                            ? 1
                            : parts_for(row_blocks, operations / static_cast<double>(tiles()), kParts / tiles());
    const Parts parts{tiles() * cuts, parts_for(tiles() * cuts, operations, 2 * kParts)};
    parallel(parts.parts, [&](size_t part) {
      for (size_t index = parts.begin(part); index < parts.begin(part + 1); ++index) {
        const Parts cut{row_blocks, cuts};
        const size_t end = std::min(rows, cut.begin(index % cuts + 1) * kWideRows);
        for (size_t first = cut.begin(index % cuts) * kWideRows; first < end; first += kWideRows) {
          multiply(words, index / cuts, first, std::min(kWideRows, end - first), outputs[0].as<uint8_t>());
        }
      }
    });
  }

 private:
  size_t tiles() const { return (columns_ + kWideLanes - 1) / kWideLanes; }
  size_t width_of(size_t tile) const { return std::min(kWideLanes, columns_ - tile * kWideLanes); }
  size_t size_of_block(size_t g) const { return std::min(size_, depth_ - g * size_); }
  size_t pairs() const { return (blocks_ - 1) * pairs_of(size_) + pairs_of(size_of_block(blocks_ - 1)); }

  MatrixShapes shapes(const std::vector<Tensor>& inputs) const {
    check_type(inputs[0].type, a_type_, "A");
    return matrix_shapes(inputs[0].shape, {static_cast<int64_t>(depth_), static_cast<int64_t>(columns_)});
  }

  const float* matrix_row(const Tensor& bias) const {
    check_type(bias.type, DataType::float32, "the bias");
    if (!bias.data || bias.shape != Shape{static_cast<int64_t>(columns_)})
      throw Error("the bias has the shape " + name_of(bias.shape) + "; a constant of " + std::to_string(columns_) +
                  " columns is meant");
    return bias.as<float>();
  }

  // The panels of a tile, and −za·Σ(b − zb) of its blocks: Σ(a − za)(b − zb) = Σa·(b − zb) − za·Σ(b − zb).
  template <class B>
  void pack(const B* b, const B* zero_points, size_t tile) {
    int16_t* panel = panels_.data() + tile * pairs() * kWideLanes * 2;
    for (size_t g = 0; g < blocks_; ++g, panel += pairs_of(size_) * kWideLanes * 2) {
      for (size_t lane = 0; lane < width_of(tile); ++lane) {
        const size_t column = tile * kWideLanes + lane;
        const int32_t zero_point = zero_points[g * columns_ + column];
        int64_t sum = 0;
        for (size_t k = 0; k < size_of_block(g); ++k) {
          const int32_t value = b[(g * size_ + k) * columns_ + column] - zero_point;
          panel[k / 2 * kWideLanes * 2 + lane * 2 + k % 2] = static_cast<int16_t>(value), sum += value;
        }
        const size_t at = (tile * blocks_ + g) * kWideLanes + lane;
        offsets_[at] = -a_zero_point_ * sum;
        narrow_offsets_[at] = static_cast<int32_t>(static_cast<uint32_t>(offsets_[at]));
      }
    }
  }

  template <class A>
  void pack_row(const A* a, int16_t* words) const {
    for (size_t g = 0; g < blocks_; ++g) {
      const size_t count = size_of_block(g);
      for (size_t k = 0; k < count; ++k) words[k] = word_of(a[k]);
      if (count % 2) words[count] = 0;
      a += count, words += 2 * pairs_of(count);
    }
  }

  void multiply(const int16_t* words, size_t tile, size_t first, size_t height, uint8_t* y) const {
    const SumWords sum_words = sum_words_of(isa_);
    const AddBlock add_block = add_block_of(isa_);
    const size_t pitch = 2 * pairs();
    const int16_t* row = words + first * pitch;
    const int16_t* panel = panels_.data() + tile * pairs() * kWideLanes * 2;
    const int64_t* offsets = offsets_.data() + tile * blocks_ * kWideLanes;
    const int32_t* narrow = narrow_offsets_.data() + tile * blocks_ * kWideLanes;
    const float* scales = scales_.data() + tile * blocks_ * kWideLanes;
    alignas(kAlignment) float totals[kWideRows * kWideLanes] = {};
    for (size_t g = 0; g < blocks_; ++g, offsets += kWideLanes, narrow += kWideLanes, scales += kWideLanes) {
      const size_t length = pairs_of(size_of_block(g));
      if (is_narrow_) {
        int32_t sums[kWideRows * kWideLanes];
        sum_words(row, pitch, height, panel, length, sums);
        add_block(height, sums, narrow, scales, totals);
      } else {
        int64_t sums[kWideRows * kWideLanes];
        multiply_words(isa_, WordForm{false, limit_}, WordRows{row, nullptr, pitch}, 0, height, panel, length, sums);
        for (size_t i = 0; i < height * kWideLanes; ++i) {
          const auto sum = static_cast<float>(sums[i] + offsets[i % kWideLanes]);
          totals[i] += sum * scales[i % kWideLanes];
        }
      }
      row += 2 * length, panel += length * kWideLanes * 2;
    }
    const float* bias = bias_.data() + tile * kWideLanes;
    with_integer(output_.type, [&](auto element) {
      auto* to = reinterpret_cast<decltype(element)*>(y) + first * columns_ + tile * kWideLanes;
      for (size_t r = 0; r < height; ++r, to += columns_) {
        for (size_t lane = 0; lane < width_of(tile); ++lane) {
          const float total = totals[r * kWideLanes + lane] + bias[lane];
          to[lane] = static_cast<decltype(element)>(output_.real(total / y_scale_));
        }
      }
    });
  }

  const Isa isa_;
  const Output output_;
  DataType a_type_;
  size_t depth_ = 0, columns_ = 0, size_ = 1, blocks_ = 0, limit_ = 1;
  bool is_narrow_ = false;  // sums of a block fit 32 bits
  int64_t a_zero_point_ = 0;  // of packed values
  float y_scale_ = 1;
  std::vector<int16_t> panels_;   // [tiles, pairs, kWideLanes, 2]
  std::vector<int64_t> offsets_;  // [tiles, blocks, kWideLanes]
  std::vector<int32_t> narrow_offsets_;  // their low bits
  std::vector<float> scales_;     // likewise
  std::vector<float> bias_;       // [tiles, kWideLanes]
};

}  // namespace

const Operator blocked_matmul{"BlockedMatMul", {4, 5}, arithmetic({{"a_zero_point", type_int}, {"block_size", type_int}}),
                              shapes::multiplied, make_kernel<BlockedMatMul>};

}  // namespace qdqtool
