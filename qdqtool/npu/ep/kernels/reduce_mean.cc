// ai.qdqtool::ReduceMean over any axes. Axes that are kept, and axes that are not, are merged where they lie side by side; then
// either rows of the input are added up, or rows are added to rows.
#include "elements.hpp"
#include "mean.hpp"
#include "reduced_axes.hpp"
#include "wide.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kColumns = 256;                   // sums that rows are added to at a time
constexpr int64_t kRowsInInt32 = int64_t{1} << 22;  // rows of bytes whose sums 32 bits hold

struct SumLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict x, int64_t count, uint8_t flip, int64_t* __restrict sum) {
    int64_t total = 0, i = 0;
    for (; i + kColumns <= count; i += kColumns) {
      int32_t part = 0;
      for (int j = 0; j < kColumns; ++j) part += static_cast<uint8_t>(x[i + j] ^ flip);
      total += part;
    }
    for (; i < count; ++i) total += static_cast<uint8_t>(x[i] ^ flip);
    *sum = total;
  }
};

struct AddLoop {
  static QDQTOOL_INLINE void run(const uint8_t* __restrict x, int64_t count, uint8_t flip, int32_t* __restrict sums) {
    if (count == kColumns) {
      for (int j = 0; j < kColumns; ++j) sums[j] += static_cast<uint8_t>(x[j] ^ flip);
    } else {
      for (int64_t j = 0; j < count; ++j) sums[j] += static_cast<uint8_t>(x[j] ^ flip);
    }
  }
};

class ReduceMean : public Kernel {
 public:
  explicit ReduceMean(const NodeInfo& node) : mean_(node), reduced_(node) {}

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, mean_.input(), "input 0");
    const Shape& from = inputs[0].shape;
    int64_t count = 1;
    const Shape to = reduced_.shape(from, count);
    if (count == 0 && qdqtool::count_of(to) > 0) {
      throw Error("the mean of no elements of " + name_of(from) + " is not defined");
    }
    return {to};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const MergedAxes axes(inputs[0].shape, reduced_.of(inputs[0].shape.size()));
    const auto* x = inputs[0].as<uint8_t>();
    auto* y = outputs[0].as<uint8_t>();
    if (axes.last_goes) {
      add_up(x, y, axes.kept, axes.gone, axes.length, parallel);
    } else {
      add_rows(x, y, axes.kept, axes.gone, axes.length, parallel);
    }
  }

 private:
  // Each output is the mean of rows of `length` elements.
  void add_up(const uint8_t* x, uint8_t* y, const std::vector<SteppedAxis>& kept, const std::vector<SteppedAxis>& gone,
              int64_t length, const ParallelFor& parallel) const {
    const int64_t rows = count_of(gone);
    for_parts(parallel, count_of(kept), rows * length, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint8_t* from = x + offset_of(kept, i);
        int64_t sum = 0;
        for (int64_t row = 0; row < rows; ++row) {
          int64_t part = 0;
          run_loop<SumLoop>(mean_.isa(), from + offset_of(gone, row), length, flip_of(mean_.input()), &part);
          sum += part;
        }
        y[i] = static_cast<uint8_t>(mean_(sum - rows * length * mean_.zero_above_least(), rows * length));
      }
    });
  }

  // Rows of `length` outputs, each the mean of rows of the input.
  void add_rows(const uint8_t* x, uint8_t* y, const std::vector<SteppedAxis>& kept, const std::vector<SteppedAxis>& gone,
                int64_t length, const ParallelFor& parallel) const {
    const int64_t rows = count_of(gone), strips = (length + kColumns - 1) / kColumns;
    for_parts(parallel, count_of(kept) * strips, rows * kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % strips * kColumns, width = std::min(kColumns, length - first);
        const uint8_t* from = x + offset_of(kept, i / strips) + first;
        int64_t sums[kColumns] = {};
        for (int64_t row = 0; row < rows;) {
          int32_t part[kColumns] = {};
          for (const int64_t last = std::min(rows, row + kRowsInInt32); row < last; ++row) {
            run_loop<AddLoop>(mean_.isa(), from + offset_of(gone, row), width, flip_of(mean_.input()),
                              static_cast<int32_t*>(part));
          }
          for (int64_t j = 0; j < width; ++j) sums[j] += part[j];
        }
        uint8_t* to = y + i / strips * length + first;
        for (int64_t j = 0; j < width; ++j) to[j] = static_cast<uint8_t>(mean_(sums[j] - rows * mean_.zero_above_least(), rows));
      }
    });
  }

  const Mean mean_;
  const Reduced reduced_;
};

}  // namespace

void register_reduce_mean(KernelTable& table) {
  table["ai.qdqtool::ReduceMean"] = [](const NodeInfo& node) {
    return has_16_bit(node, 1) ? make_wide_reduce_mean(node) : make_kernel<ReduceMean>(node);
  };
}

}  // namespace qdqtool
