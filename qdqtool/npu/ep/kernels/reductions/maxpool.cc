// MaxPool of 8 bits, and ai.qdqtool::MaxPool of 8 or 16. Per row of the output: the maximum over the window's rows, then along the row,
// then every stride-th. Elements are compared in the order of unsigned integers (element ^ flip), of which 0 is the least: what is not in
// the input never wins.
#include <cstring>
#include <type_traits>

#include "kernels/shared/integers.hpp"
#include "kernels/shared/lanes.hpp"
#include "kernels/shared/windows.hpp"

namespace qdqtool {

namespace {

// Rows whose maxima over rows are written before any is read again: a load across two fresh stores waits.
constexpr int64_t kBatch = 8;

// Maxima over rows: all that windows reach, in whole chunks.
int64_t max_column_size(const Windows& w) {
  const int64_t reached = in_chunks((w[2].out - 1) * w[2].stride + 1) + (w[2].kernel - 1) * w[2].dilation;
  return in_chunks(std::max(reached, w[2].before + w[2].in));
}

// Maxima of windows at every step, of which every stride-th is taken, and what a chunk of pairs reads behind.
int64_t max_line_size(const Windows& w) { return in_chunks((w[2].out - 1) * w[2].stride + 1) + kChunk; }

// Maxima of one part.
int64_t part_size(const Windows& w) { return kBatch * max_column_size(w) + max_line_size(w); }

// Chunks of a row; the last one ends where the row does and may cover some of the one before, which does no harm. Short rows
// singly.
template <class Chunk, class Single>
QDQTOOL_INLINE void for_chunks(int64_t count, const Chunk& chunk, const Single& single) {
  if (count < kChunk) {
    for (int64_t i = 0; i < count; ++i) single(i);
    return;
  }
  for (int64_t i = 0; i + kChunk < count; i += kChunk) chunk(i);
  chunk(count - kChunk);
}

template <class T>
QDQTOOL_INLINE void merge_chunk(const T* __restrict x, T* __restrict most, T flip) {
  for (int j = 0; j < kChunk; ++j) {
    const auto value = static_cast<T>(x[j] ^ flip);
    most[j] = most[j] > value ? most[j] : value;
  }
}

// column = the maxima over rows, 0 where there is padding.
template <class T>
struct MergeRows {
  static QDQTOOL_INLINE void run(const InputRows<T>* rows_at, const Windows* windows, T flip, T* column) {
    const InputRows<T> rows = *rows_at;
    const WindowAxis width = (*windows)[2];
    std::memset(column, 0, static_cast<size_t>(width.before) * sizeof(T));
    T* const inside = column + width.before;
    std::memset(inside + width.in, 0, static_cast<size_t>(max_column_size(*windows) - width.before - width.in) * sizeof(T));
    for_chunks(
        width.in,
        [&](int64_t i) __attribute__((always_inline)) {
          T most[kChunk] = {};
          for (int64_t d = 0; d < rows.depth_count; ++d) {
            for (int64_t h = 0; h < rows.height_count; ++h) {
              merge_chunk(rows.first + d * rows.depth_step + h * rows.height_step + i, most, flip);
            }
          }
          std::memcpy(inside + i, most, sizeof most);
        },
        [&](int64_t i) __attribute__((always_inline)) {
          T most = 0;
          for (int64_t d = 0; d < rows.depth_count; ++d) {
            for (int64_t h = 0; h < rows.height_count; ++h) {
              const auto value = static_cast<T>(rows.first[d * rows.depth_step + h * rows.height_step + i] ^ flip);
              most = std::max(most, value);
            }
          }
          inside[i] = most;
        });
  }
};

// y = the maxima of windows along a row.
template <class T>
struct MergeTaps {
  template <int stride>
  static QDQTOOL_INLINE void take(const T* __restrict line, T* __restrict y, int64_t count, T flip) {
    for_chunks(
        count,
        [&](int64_t i) __attribute__((always_inline)) {
          using Pair = std::conditional_t<sizeof(T) == 1, uint16_t, uint32_t>;
          using Step = std::conditional_t<stride == 2, Pair, T>;  // every second element is the low one of a pair
          Step steps[kChunk];
          T taken[kChunk];
          std::memcpy(steps, line + i * stride, sizeof steps);
          for (int j = 0; j < kChunk; ++j) taken[j] = static_cast<T>(steps[j] ^ flip);
          std::memcpy(y + i, taken, sizeof taken);
        },
        [&](int64_t i) __attribute__((always_inline)) { y[i] = static_cast<T>(line[i * stride] ^ flip); });
  }

  static QDQTOOL_INLINE void run(const T* column, const Windows* windows, T flip, T* line, T* y) {
    const WindowAxis width = (*windows)[2];
    for (int64_t i = 0; i < (width.out - 1) * width.stride + 1; i += kChunk) {
      T most[kChunk] = {};
      for (int64_t k = 0; k < width.kernel; ++k) merge_chunk(column + i + k * width.dilation, most, T{0});
      std::memcpy(line + i, most, sizeof most);
    }
    if (width.stride == 1) return take<1>(line, y, width.out, flip);
    if (width.stride == 2) return take<2>(line, y, width.out, flip);
    for (int64_t i = 0; i < width.out; ++i) y[i] = static_cast<T>(line[i * width.stride] ^ flip);
  }
};

class MaxPool : public Kernel {
 public:
  explicit MaxPool(const NodeInfo& node) : attributes_(node), isa_(choose_isa(node.isa)) {
    if (node.outputs.size() > 1) throw Error("the indices of the maxima are not computed");
    check_outputs(node, 1);
    output_ = node.outputs[0];
    check_integer(output_, "the output");
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, output_, "input 0");
    return {attributes_.output_shape(inputs[0].shape)};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Windows windows = attributes_.windows(inputs.at(0).shape);
    const int64_t elements = multiply_sizes(part_size(windows), parts(inputs[0].shape, windows));
    return static_cast<size_t>(elements) * size_of(output_);
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    if (is_8_bit(output_)) return run(inputs[0], outputs[0], static_cast<uint8_t*>(scratch), parallel);
    run(inputs[0], outputs[0], static_cast<uint16_t*>(scratch), parallel);
  }

 private:
  template <class T>
  void run(const Tensor& input, Tensor& output, T* scratch, const ParallelFor& parallel) const {
    if (output.count() == 0) return;
    const Windows windows = attributes_.windows(input.shape);
    const int64_t rows = output.count() / windows[2].out, count = parts(input.shape, windows);
    const int64_t columns = max_column_size(windows);
    const T flip = is_signed(output_) ? static_cast<T>(T{1} << (8 * sizeof(T) - 1)) : T{0};
    const auto part = [&](int64_t index) {
      T* const column = scratch + index * part_size(windows);
      const int64_t last = rows * (index + 1) / count;
      OutputRow at(windows, rows * index / count);
      for (int64_t row = rows * index / count; row < last; row += kBatch) {
        const int64_t batch = std::min(kBatch, last - row);
        for (int64_t i = 0; i < batch; ++i, at.next(windows)) {
          const InputRows<T> taken(input.as<T>(), windows, at);
          run_loop<MergeRows<T>>(isa_, &taken, &windows, flip, column + i * columns);
        }
        for (int64_t i = 0; i < batch; ++i) {
          T* const y = output.as<T>() + (row + i) * windows[2].out;
          run_loop<MergeTaps<T>>(isa_, static_cast<const T*>(column + i * columns), &windows, flip, column + kBatch * columns, y);
        }
      }
    };
    if (count == 1) return part(0);
    parallel(static_cast<size_t>(count), [&](size_t index) { part(static_cast<int64_t>(index)); });
  }

  // How many parts compute rows at the same time.
  static int64_t parts(const Shape& input, const Windows& windows) {
    const int64_t rows = input[0] * input[1] * windows[0].out * windows[1].out;
    const int64_t most = std::min(rows * windows[2].in / kElementsPerPart, (int64_t{1} << 24) / part_size(windows));
    return std::clamp<int64_t>(most, 1, 64);
  }

  const WindowAttributes attributes_;
  const Isa isa_;
  DataType output_;
};

}  // namespace

const Operator standard_max_pool{"MaxPool", [](const NodeInfo& node) {
  if (node.outputs.size() == 1) check_8_bit(node.outputs[0], "the output");
  return make_kernel<MaxPool>(node);
}};
const Operator max_pool{"MaxPool", {1, 1}, {{"kernel_shape", type_ints}, {"strides", type_ints}, {"pads", type_ints},
                        {"dilations", type_ints}, {"ceil_mode", type_int}}, shapes::pooled, make_kernel<MaxPool>};

}  // namespace qdqtool
