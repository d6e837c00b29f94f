// MaxPool on 8-bit integers. Per row of the output: the maximum over the window's rows, then along the row, then every stride-th.
// Bytes are compared in the order of unsigned integers (byte ^ flip), of which 0 is the least: what is not in the input never
// wins.
#include <cstring>
#include <type_traits>

#include "lanes.hpp"
#include "windows.hpp"

namespace qdqtool {

namespace {

constexpr int kChunk = 16;
// Rows whose maxima over rows are written before any is read again: a load across two fresh stores waits.
constexpr int64_t kBatch = 8;

int64_t in_chunks(int64_t count) { return (count + kChunk - 1) / kChunk * kChunk; }

// Bytes of the maxima over rows: all that windows reach, in whole chunks.
int64_t column_size(const Windows& w) {
  const int64_t reached = in_chunks((w[2].out - 1) * w[2].stride + 1) + (w[2].kernel - 1) * w[2].dilation;
  return in_chunks(std::max(reached, w[2].before + w[2].in));
}

// Bytes of the maxima of windows at every step, of which every stride-th is taken, and what a chunk of pairs reads behind.
int64_t line_size(const Windows& w) { return in_chunks((w[2].out - 1) * w[2].stride + 1) + kChunk; }

// Bytes of one part.
int64_t part_size(const Windows& w) { return kBatch * column_size(w) + line_size(w); }

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

QDQTOOL_INLINE void merge_chunk(const uint8_t* __restrict x, uint8_t* __restrict most, uint8_t flip) {
  for (int j = 0; j < kChunk; ++j) {
    const auto value = static_cast<uint8_t>(x[j] ^ flip);
    most[j] = most[j] > value ? most[j] : value;
  }
}

// column = the maxima over rows, 0 where there is padding.
struct MergeRows {
  static QDQTOOL_INLINE void run(const InputRows* rows_at, const Windows* windows, uint8_t flip, uint8_t* column) {
    const InputRows rows = *rows_at;
    const WindowAxis width = (*windows)[2];
    std::memset(column, 0, static_cast<size_t>(width.before));
    uint8_t* const inside = column + width.before;
    std::memset(inside + width.in, 0, static_cast<size_t>(column_size(*windows) - width.before - width.in));
    for_chunks(
        width.in,
        [&](int64_t i) __attribute__((always_inline)) {
          uint8_t most[kChunk] = {};
          for (int64_t d = 0; d < rows.depth_count; ++d) {
            for (int64_t h = 0; h < rows.height_count; ++h) {
              merge_chunk(rows.first + d * rows.depth_step + h * rows.height_step + i, most, flip);
            }
          }
          std::memcpy(inside + i, most, kChunk);
        },
        [&](int64_t i) __attribute__((always_inline)) {
          uint8_t most = 0;
          for (int64_t d = 0; d < rows.depth_count; ++d) {
            for (int64_t h = 0; h < rows.height_count; ++h) {
              most = std::max(most,
                              static_cast<uint8_t>(rows.first[d * rows.depth_step + h * rows.height_step + i] ^ flip));
            }
          }
          inside[i] = most;
        });
  }
};

// y = the maxima of windows along a row.
struct MergeTaps {
  template <int stride>
  static QDQTOOL_INLINE void take(const uint8_t* __restrict line, uint8_t* __restrict y, int64_t count, uint8_t flip) {
    for_chunks(
        count,
        [&](int64_t i) __attribute__((always_inline)) {
          using Step =
              std::conditional_t<stride == 2, uint16_t, uint8_t>;  // every second byte is the low one of a pair
          Step steps[kChunk];
          uint8_t taken[kChunk];
          std::memcpy(steps, line + i * stride, sizeof steps);
          for (int j = 0; j < kChunk; ++j) taken[j] = static_cast<uint8_t>(steps[j] ^ flip);
          std::memcpy(y + i, taken, kChunk);
        },
        [&](int64_t i) __attribute__((always_inline)) { y[i] = static_cast<uint8_t>(line[i * stride] ^ flip); });
  }

  static QDQTOOL_INLINE void run(const uint8_t* column, const Windows* windows, uint8_t flip, uint8_t* line,
                                 uint8_t* y) {
    const WindowAxis width = (*windows)[2];
    for (int64_t i = 0; i < (width.out - 1) * width.stride + 1; i += kChunk) {
      uint8_t most[kChunk] = {};
      for (int64_t k = 0; k < width.kernel; ++k) merge_chunk(column + i + k * width.dilation, most, 0);
      std::memcpy(line + i, most, kChunk);
    }
    if (width.stride == 1) return take<1>(line, y, width.out, flip);
    if (width.stride == 2) return take<2>(line, y, width.out, flip);
    for (int64_t i = 0; i < width.out; ++i) y[i] = static_cast<uint8_t>(line[i * width.stride] ^ flip);
  }
};

class MaxPool : public Kernel {
 public:
  explicit MaxPool(const NodeInfo& node) : attributes_(node), isa_(choose_isa(node.isa)) {
    if (node.outputs.size() > 1) throw Error("the indices of the maxima are not computed");
    check_outputs(node, 1);
    output_ = node.outputs[0];
    check_8_bit(output_, "the output");
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    check_type(inputs[0].type, output_, "input 0");
    return {attributes_.output_shape(inputs[0].shape)};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Windows windows = attributes_.windows(inputs.at(0).shape);
    return static_cast<size_t>(multiply_sizes(part_size(windows), parts(inputs[0].shape, windows)));
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch,
           const ParallelFor& parallel) const override {
    if (outputs[0].count() == 0) return;
    const Windows windows = attributes_.windows(inputs[0].shape);
    const int64_t rows = outputs[0].count() / windows[2].out, count = parts(inputs[0].shape, windows);
    const int64_t columns = column_size(windows);
    const uint8_t flip = flip_of(output_);
    const auto part = [&](int64_t index) {
      uint8_t* const column = static_cast<uint8_t*>(scratch) + index * part_size(windows);
      const int64_t last = rows * (index + 1) / count;
      OutputRow at(windows, rows * index / count);
      for (int64_t row = rows * index / count; row < last; row += kBatch) {
        const int64_t batch = std::min(kBatch, last - row);
        for (int64_t i = 0; i < batch; ++i, at.next(windows)) {
          const InputRows taken(inputs[0].as<uint8_t>(), windows, at);
          run_loop<MergeRows>(isa_, &taken, &windows, flip, column + i * columns);
        }
        for (int64_t i = 0; i < batch; ++i) {
          uint8_t* const y = outputs[0].as<uint8_t>() + (row + i) * windows[2].out;
          run_loop<MergeTaps>(isa_, static_cast<const uint8_t*>(column + i * columns), &windows, flip,
                              column + kBatch * columns, y);
        }
      }
    };
    if (count == 1) return part(0);
    parallel(static_cast<size_t>(count), [&](size_t index) { part(static_cast<int64_t>(index)); });
  }

 private:
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

void register_maxpool(KernelTable& table) { table["::MaxPool"] = make_kernel<MaxPool>; }

}  // namespace qdqtool
