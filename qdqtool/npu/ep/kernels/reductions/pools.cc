// ai.qdqtool::AveragePool of 8 or 16 bits: per row of the output the sums over the window's rows, then along the row; each sum of bytes is
// an index into a table of its number of elements where windows are small, and divided where they are not.
#include <cstring>
#include <type_traits>

#include "kernels/reductions/mean.hpp"
#include "kernels/shared/elements.hpp"
#include "kernels/shared/windows.hpp"

namespace qdqtool {


namespace {

// Elements of a window: the tables of n of them, for all that may be n, have 135 thousand entries in all at most.
constexpr int64_t kMostInTable = 32;

// Sums over rows: all that windows reach, in whole chunks.
int64_t sum_column_size(const Windows& w) {
  const int64_t reached = in_chunks((w[2].out - 1) * w[2].stride + 1) + (w[2].kernel - 1) * w[2].dilation;
  return in_chunks(std::max(reached, w[2].before + w[2].in)) + kChunk;
}

int64_t sum_line_size(const Windows& w) { return in_chunks(w[2].out); }

// Sums of elements in the order of unsigned integers (element ^ flip).
template <class X>
struct SumRow {
  using Sum = std::conditional_t<sizeof(X) == 1, int32_t, int64_t>;

  static QDQTOOL_INLINE void merge(const X* __restrict x, Sum* __restrict column, int64_t count, X flip) {
    int64_t i = 0;
    for (; i + kChunk <= count; i += kChunk) {
      for (int j = 0; j < kChunk; ++j) column[i + j] += static_cast<X>(x[i + j] ^ flip);
    }
    for (; i < count; ++i) column[i] += static_cast<X>(x[i] ^ flip);
  }

  // line[i] = Σ column[i·stride + k·dilation]
  template <int stride>
  static QDQTOOL_INLINE void add_taps(const Sum* __restrict column, Sum* __restrict line,
                                      const WindowAxis& width) {
    int64_t i = 0;
    for (; i + kChunk <= width.out; i += kChunk) {
      Sum sums[kChunk] = {};
      for (int64_t k = 0; k < width.kernel; ++k) {
        const Sum* from = column + i * stride + k * width.dilation;
        for (int j = 0; j < kChunk; ++j) sums[j] += from[j * stride];
      }
      for (int j = 0; j < kChunk; ++j) line[i + j] = sums[j];
    }
    add_taps_singly(column, line, width, i);
  }

  static QDQTOOL_INLINE void add_taps_singly(const Sum* column, Sum* line, const WindowAxis& width,
                                             int64_t first) {
    for (int64_t i = first; i < width.out; ++i) {
      Sum sum = 0;
      for (int64_t k = 0; k < width.kernel; ++k) sum += column[i * width.stride + k * width.dilation];
      line[i] = sum;
    }
  }

  static QDQTOOL_INLINE void run(const InputRows<X>* rows_at, const Windows* windows, X flip, Sum* column, Sum* line) {
    const InputRows<X> rows = *rows_at;
    const WindowAxis width = (*windows)[2];
    std::memset(column, 0, static_cast<size_t>(sum_column_size(*windows)) * sizeof(Sum));
    for (int64_t d = 0; d < rows.depth_count; ++d) {
      for (int64_t h = 0; h < rows.height_count; ++h) {
        merge(rows.first + d * rows.depth_step + h * rows.height_step, column + width.before, width.in, flip);
      }
    }
    if (width.stride == 1) return add_taps<1>(column, line, width);
    if (width.stride == 2) return add_taps<2>(column, line, width);
    add_taps_singly(column, line, width, 0);
  }
};

class AveragePool : public Kernel {
 public:
  explicit AveragePool(const NodeInfo& node)
      : attributes_(node), mean_(node), counts_padding_(node.attributes.integer("count_include_pad", 0) != 0) {
    const std::vector<int64_t> kernel = node.attributes.integers("kernel_shape", {});
    if (attributes_.taps() > kMostInTable || has_16_bit(node, 1)) return;
    tables_.resize(static_cast<size_t>(attributes_.taps()) + 1);
    for (int64_t d = 0; d <= (kernel.size() > 2 ? kernel[0] : 1); ++d) {
      for (int64_t h = 0; h <= (kernel.size() > 1 ? kernel[kernel.size() - 2] : 1); ++h) {
        for (int64_t w = 0; w <= kernel.back(); ++w) add_table(d * h * w);
      }
    }
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, mean_.input(), "input 0");
    return {attributes_.output_shape(inputs[0].shape)};
  }

  // Two rows for each part; the numbers of elements of windows along each axis, and of those that lie in the input.
  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Windows windows = attributes_.windows(inputs.at(0).shape);
    const int64_t rows =
        multiply_sizes(add_sizes(sum_column_size(windows), sum_line_size(windows)), parts(inputs[0].shape, windows));
    const int64_t bytes = is_8_bit(mean_.input()) ? sizeof(int32_t) : sizeof(int64_t);
    return static_cast<size_t>(add_sizes(multiply_sizes(rows, bytes), 2 * windows[2].out * int64_t{sizeof(int32_t)}));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    if (is_8_bit(mean_.input())) return run<uint8_t>(inputs[0], outputs[0], scratch, parallel);
    run<uint16_t>(inputs[0], outputs[0], scratch, parallel);
  }

 private:
  template <class X>
  void run(const Tensor& input, Tensor& output, void* scratch, const ParallelFor& parallel) const {
    const Windows windows = attributes_.windows(input.shape);
    const WindowAxis &depth = windows[0], &height = windows[1], &width = windows[2];
    auto* const counts = static_cast<int32_t*>(scratch);
    for (int64_t i = 0; i < width.out; ++i) {
      counts[2 * i] = static_cast<int32_t>(width.inside(i).count());
      counts[2 * i + 1] = static_cast<int32_t>(counts_padding_ ? width.padded(i).count() : counts[2 * i]);
    }
    using Sum = typename SumRow<X>::Sum;
    auto* const sums = reinterpret_cast<Sum*>(counts + 2 * width.out);
    const int64_t rows = output.count() / width.out, count = parts(input.shape, windows);
    const int64_t columns = sum_column_size(windows), lines = sum_line_size(windows);
    const X flip = is_signed(mean_.input()) ? static_cast<X>(X{1} << (8 * sizeof(X) - 1)) : X{0};
    const auto part = [&](int64_t index) {
      Sum* const column = sums + index * (columns + lines);
      OutputRow at(windows, rows * index / count);
      for (int64_t row = rows * index / count; row < rows * (index + 1) / count; ++row, at.next(windows)) {
        const InputRows<X> taken(input.as<X>(), windows, at);
        run_loop<SumRow<X>>(mean_.isa(), &taken, &windows, flip, column, column + columns);
        const int64_t inside = taken.depth_count * taken.height_count;
        const int64_t counted =
            counts_padding_ ? depth.padded(at.depth).count() * height.padded(at.height).count() : inside;
        with_integer(output.type, [&](auto element) {
          auto* const y = output.as<decltype(element)>() + row * width.out;
          divide(column + columns, counts, inside, counted, width.out, y);
        });
      }
    };
    if (count == 1) return part(0);
    parallel(static_cast<size_t>(count), [&](size_t index) { part(static_cast<int64_t>(index)); });
  }

  // The means of `count` elements, by their sum as flipped bytes.
  void add_table(int64_t count) {
    std::vector<uint8_t>& table = tables_[static_cast<size_t>(count)];
    for (int64_t sum = static_cast<int64_t>(table.size()); sum <= 255 * count; ++sum) {
      table.push_back(static_cast<uint8_t>(mean_(sum - count * mean_.zero_above_least(), count)));
    }
  }

  // Sums of a row to means. Along the row, counts has (elements in the input, elements that count) of each window.
  template <class Sum, class Y>
  void divide(const Sum* sums, const int32_t* counts, int64_t inside, int64_t counted, int64_t length, Y* y) const {
    const int32_t zero = mean_.zero_above_least();
    for (int64_t i = 0; i < length;) {
      const int64_t in = inside * counts[2 * i], all = counted * counts[2 * i + 1];
      int64_t end = i + 1;  // windows side by side are mostly alike
      while (end < length && counts[2 * end] == counts[2 * i] && counts[2 * end + 1] == counts[2 * i + 1]) ++end;
      if (tables_.empty()) {
        for (; i < end; ++i) y[i] = static_cast<Y>(mean_(sums[i] - in * zero, all));
      } else {  // padding is as many zero points
        const uint8_t* const table = tables_[static_cast<size_t>(all)].data() + (all - in) * zero;
        for (; i < end; ++i) y[i] = static_cast<Y>(table[sums[i]]);
      }
    }
  }

  // How many parts compute rows at the same time.
  static int64_t parts(const Shape& input, const Windows& windows) {
    const int64_t rows = input[0] * input[1] * windows[0].out * windows[1].out;
    const int64_t kept = sum_column_size(windows) + sum_line_size(windows);
    return std::clamp<int64_t>(std::min(rows * windows[2].in / kElementsPerPart, (int64_t{1} << 22) / kept), 1, 64);
  }

  const WindowAttributes attributes_;
  const Mean mean_;
  const bool counts_padding_;
  std::vector<std::vector<uint8_t>> tables_;  // by the number of elements; none where windows are large
};

}  // namespace

const Operator average_pool{"AveragePool", {1, 1}, arithmetic({{"x_zero_point", type_int}, {"kernel_shape", type_ints},
                            {"strides", type_ints}, {"pads", type_ints}, {"dilations", type_ints}, {"ceil_mode", type_int},
                            {"count_include_pad", type_int}, {"multiplier", type_int}, {"shift", type_int}, {"scale", type_float},
                            {"factor", type_float}}), shapes::pooled, make_kernel<AveragePool>};

}  // namespace qdqtool
