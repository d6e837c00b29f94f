// ai.qdqtool::AveragePool: per row of the output the sums over the window's rows, then along the row; each sum is an index into a
// table of its number of elements where windows are small, and divided where they are not.
#include <cstring>

#include "elements.hpp"
#include "mean.hpp"
#include "wide.hpp"
#include "windows.hpp"

namespace qdqtool {

void register_maxpool(KernelTable& table);
void register_reduce_mean(KernelTable& table);

namespace {

constexpr int kChunk = 16;
// Elements of a window: the tables of n of them, for all that may be n, have 135 thousand entries in all at most.
constexpr int64_t kMostInTable = 32;

int64_t in_chunks(int64_t count) { return (count + kChunk - 1) / kChunk * kChunk; }

// Sums over rows: all that windows reach, in whole chunks.
int64_t column_size(const Windows& w) {
  const int64_t reached = in_chunks((w[2].out - 1) * w[2].stride + 1) + (w[2].kernel - 1) * w[2].dilation;
  return in_chunks(std::max(reached, w[2].before + w[2].in)) + kChunk;
}

int64_t line_size(const Windows& w) { return in_chunks(w[2].out); }

struct SumRow {
  static QDQTOOL_INLINE void merge(const uint8_t* __restrict x, int32_t* __restrict column, int64_t count,
                                   uint8_t flip) {
    int64_t i = 0;
    for (; i + kChunk <= count; i += kChunk) {
      for (int j = 0; j < kChunk; ++j) column[i + j] += static_cast<uint8_t>(x[i + j] ^ flip);
    }
    for (; i < count; ++i) column[i] += static_cast<uint8_t>(x[i] ^ flip);
  }

  // line[i] = Σ column[i·stride + k·dilation]
  template <int stride>
  static QDQTOOL_INLINE void add_taps(const int32_t* __restrict column, int32_t* __restrict line,
                                      const WindowAxis& width) {
    int64_t i = 0;
    for (; i + kChunk <= width.out; i += kChunk) {
      int32_t sums[kChunk] = {};
      for (int64_t k = 0; k < width.kernel; ++k) {
        const int32_t* from = column + i * stride + k * width.dilation;
        for (int j = 0; j < kChunk; ++j) sums[j] += from[j * stride];
      }
      for (int j = 0; j < kChunk; ++j) line[i + j] = sums[j];
    }
    add_taps_singly(column, line, width, i);
  }

  static QDQTOOL_INLINE void add_taps_singly(const int32_t* column, int32_t* line, const WindowAxis& width,
                                             int64_t first) {
    for (int64_t i = first; i < width.out; ++i) {
      int32_t sum = 0;
      for (int64_t k = 0; k < width.kernel; ++k) sum += column[i * width.stride + k * width.dilation];
      line[i] = sum;
    }
  }

  static QDQTOOL_INLINE void run(const InputRows* rows_at, const Windows* windows, uint8_t flip, int32_t* column,
                                 int32_t* line) {
    const InputRows rows = *rows_at;
    const WindowAxis width = (*windows)[2];
    std::memset(column, 0, static_cast<size_t>(column_size(*windows)) * sizeof(int32_t));
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
    if (attributes_.taps() > kMostInTable) return;
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
        multiply_sizes(add_sizes(column_size(windows), line_size(windows)), parts(inputs[0].shape, windows));
    return static_cast<size_t>(multiply_sizes(add_sizes(rows, 2 * windows[2].out), sizeof(int32_t)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const Windows windows = attributes_.windows(inputs[0].shape);
    const WindowAxis &depth = windows[0], &height = windows[1], &width = windows[2];
    auto* const counts = static_cast<int32_t*>(scratch);
    for (int64_t i = 0; i < width.out; ++i) {
      counts[2 * i] = static_cast<int32_t>(width.inside(i).count());
      counts[2 * i + 1] = static_cast<int32_t>(counts_padding_ ? width.padded(i).count() : counts[2 * i]);
    }
    const int64_t rows = outputs[0].count() / width.out, count = parts(inputs[0].shape, windows);
    const int64_t columns = column_size(windows), lines = line_size(windows);
    const uint8_t flip = flip_of(mean_.input());
    const auto part = [&](int64_t index) {
      int32_t* const column = counts + 2 * width.out + index * (columns + lines);
      OutputRow at(windows, rows * index / count);
      for (int64_t row = rows * index / count; row < rows * (index + 1) / count; ++row, at.next(windows)) {
        const InputRows taken(inputs[0].as<uint8_t>(), windows, at);
        run_loop<SumRow>(mean_.isa(), &taken, &windows, flip, column, column + columns);
        const int64_t inside = taken.depth_count * taken.height_count;
        const int64_t counted =
            counts_padding_ ? depth.padded(at.depth).count() * height.padded(at.height).count() : inside;
        divide(column + columns, counts, inside, counted, width.out, outputs[0].as<uint8_t>() + row * width.out);
      }
    };
    if (count == 1) return part(0);
    parallel(static_cast<size_t>(count), [&](size_t index) { part(static_cast<int64_t>(index)); });
  }

 private:
  // The means of `count` elements, by their sum as flipped bytes.
  void add_table(int64_t count) {
    std::vector<uint8_t>& table = tables_[static_cast<size_t>(count)];
    for (int64_t sum = static_cast<int64_t>(table.size()); sum <= 255 * count; ++sum) {
      table.push_back(static_cast<uint8_t>(mean_(sum - count * mean_.zero_above_least(), count)));
    }
  }

  // Sums of a row to means. Along the row, counts has (elements in the input, elements that count) of each window.
  void divide(const int32_t* sums, const int32_t* counts, int64_t inside, int64_t counted, int64_t length,
              uint8_t* y) const {
    const int32_t zero = mean_.zero_above_least();
    for (int64_t i = 0; i < length;) {
      const int64_t in = inside * counts[2 * i], all = counted * counts[2 * i + 1];
      int64_t end = i + 1;  // windows side by side are mostly alike
      while (end < length && counts[2 * end] == counts[2 * i] && counts[2 * end + 1] == counts[2 * i + 1]) ++end;
      if (tables_.empty()) {
        for (; i < end; ++i) y[i] = static_cast<uint8_t>(mean_(sums[i] - in * zero, all));
      } else {  // padding is as many zero points
        const uint8_t* const table = tables_[static_cast<size_t>(all)].data() + (all - in) * zero;
        for (; i < end; ++i) y[i] = table[sums[i]];
      }
    }
  }

  // How many parts compute rows at the same time.
  static int64_t parts(const Shape& input, const Windows& windows) {
    const int64_t rows = input[0] * input[1] * windows[0].out * windows[1].out;
    const int64_t kept = column_size(windows) + line_size(windows);
    return std::clamp<int64_t>(std::min(rows * windows[2].in / kElementsPerPart, (int64_t{1} << 22) / kept), 1, 64);
  }

  const WindowAttributes attributes_;
  const Mean mean_;
  const bool counts_padding_;
  std::vector<std::vector<uint8_t>> tables_;  // by the number of elements; none where windows are large
};

}  // namespace

void register_pools(KernelTable& table) {
  table["ai.qdqtool::AveragePool"] = [](const NodeInfo& node) {
    return has_16_bit(node, 1) ? make_wide_average_pool(node) : make_kernel<AveragePool>(node);
  };
  register_maxpool(table);
  register_reduce_mean(table);
}

}  // namespace qdqtool
