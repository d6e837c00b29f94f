#include "kernels/wide_products/wide_convolution.hpp"

#include <cstring>

#include "kernels/products/tiles.hpp"

namespace qdqtool {

// How the pixels of an output are cut: into tiles of kWideLanes, and those of all groups into parts, each with a panel.
struct WideConvolution::Sizes {
  size_t pixels = 0, tiles = 0, parts = 1, panel = 0;  // bytes of a panel
};

WideConvolution::WideConvolution(Convolving from, const Requantizer& requantizer)
    : from_(std::move(from)), requantizer_(requantizer), form_(word_form(from_.w_type, from_.x_type)) {
  const size_t channels = from_.groups * from_.out_channels, pitch = 2 * pairs_of(depth());
  x_zero_point_ = word_zero_point(from_.x_type, from_.x_zero_point);
  high_.resize(channels * pitch);
  if (form_.is_split) low_.resize(channels * pitch);
  std::vector<int64_t> sums(channels);
  pack_words(from_.words.data(), channels, depth(), high_.data(), form_.is_split ? low_.data() : nullptr, sums.data());
  int64_t most = 0;
  for (size_t m = 0; m < channels; ++m) {
    const int32_t zero_point = from_.w_zero_points[from_.w_zero_points.size() == 1 ? 0 : m];
    zero_points_.push_back(word_zero_point(from_.w_type, zero_point));
    has_column_sums_ = has_column_sums_ || zero_points_.back() != 0;
    offsets_.push_back(x_zero_point_ * (static_cast<int64_t>(depth()) * zero_points_.back() - sums[m]));
    most = std::max(most, most_of(from_.w_type, zero_point));
  }
  const Int128 bound =
      Int128{most * most_of(from_.x_type, from_.x_zero_point)} * static_cast<int64_t>(std::max<size_t>(1, depth()));
  output_ = SumOutput(requantizer_, bound, from_.x_shift, from_.bias);
  from_.words.clear(), from_.words.shrink_to_fit();
}

WideConvolution::Sizes WideConvolution::sizes_of(const Axes& output) const {
  Sizes sizes;
  sizes.pixels = static_cast<size_t>(count_of(output));
  sizes.tiles = (sizes.pixels + kWideLanes - 1) / kWideLanes;
  const double operations =
      static_cast<double>(sizes.pixels * depth()) * static_cast<double>(from_.groups * (from_.out_channels + kWideRows));
  sizes.parts = parts_for(from_.groups * sizes.tiles, operations, kParts);
  sizes.panel = aligned(pairs_of(depth()) * kWideLanes * 2 * sizeof(int16_t));
  return sizes;
}

size_t WideConvolution::scratch(const Axes&, const Axes& output) const {
  const Sizes sizes = sizes_of(output);
  return sizes.parts * sizes.panel;
}

void WideConvolution::run(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
                          const ParallelFor& parallel) const {
  const Sizes sizes = sizes_of(output);
  const Parts parts{from_.groups * sizes.tiles, sizes.parts};
  const size_t group_size = from_.in_channels * static_cast<size_t>(count_of(input));
  parallel(sizes.parts, [&](size_t part) {
    auto* panel = reinterpret_cast<int16_t*>(static_cast<uint8_t*>(scratch) + part * sizes.panel);
    for (size_t item = parts.begin(part); item < parts.begin(part + 1); ++item) {
      const size_t group = item / sizes.tiles, first = item % sizes.tiles * kWideLanes;
      const size_t width = std::min(kWideLanes, sizes.pixels - first);
      with_integer(from_.x_type, [&](auto element) {
        const auto* image = reinterpret_cast<const decltype(element)*>(x) + group * group_size;
        gather(image, input, output, first, width, panel);
      });
      multiply(group, panel, first, width, sizes, y);
    }
  });
}

// What the taps see from pixels [first, first + width) of the output: the zero point in the padding.
template <class X>
void WideConvolution::gather(const X* x, const Axes& input, const Axes& output, size_t first, size_t width,
                             int16_t* panel) const {
  const auto padding = static_cast<int16_t>(x_zero_point_);
  const int64_t plane = count_of(input);
  if (width < kWideLanes || depth() % 2)
    std::fill(panel, panel + pairs_of(depth()) * kWideLanes * 2, int16_t{0});
  Axes at[kWideLanes];
  for (size_t lane = 0; lane < width; ++lane) {
    const auto pixel = static_cast<int64_t>(first + lane);
    at[lane] = {pixel / (output[1] * output[2]), pixel / output[2] % output[1], pixel % output[2]};
    for (size_t d = 0; d < 3; ++d) at[lane][d] *= from_.strides[d];
  }
  size_t k = 0;
  for (const Axes& tap : from_.taps) {
    int64_t offsets[kWideLanes];  // below 0 in the padding
    for (size_t lane = 0; lane < width; ++lane) {
      offsets[lane] = 0;
      for (size_t d = 0; d < 3; ++d) {
        const int64_t position = at[lane][d] + tap[d];
        const bool is_inside = offsets[lane] >= 0 && position >= 0 && position < input[d];
        offsets[lane] = is_inside ? offsets[lane] * input[d] + position : -1;
      }
    }
    const X* channel = x;
    for (size_t c = 0; c < from_.in_channels; ++c, ++k, channel += plane) {
      int16_t* to = panel + k / 2 * kWideLanes * 2 + k % 2;
      for (size_t lane = 0; lane < width; ++lane)
        to[lane * 2] = offsets[lane] < 0 ? padding : word_of(channel[offsets[lane]]);
    }
  }
}

void WideConvolution::multiply(size_t group, const int16_t* panel, size_t first, size_t width, const Sizes& sizes,
                               uint8_t* y) const {
  const size_t pairs = pairs_of(depth()), begin = group * from_.out_channels, end = begin + from_.out_channels;
  const WordRows rows = {high_.data(), form_.is_split ? low_.data() : nullptr, 2 * pairs};
  alignas(kAlignment) int64_t sums[kWideRows * kWideLanes], columns[kWideLanes] = {};
  if (has_column_sums_) sum_panel(panel, pairs, columns);
  for (size_t channel = begin; channel < end; channel += kWideRows) {
    const size_t height = std::min(kWideRows, end - channel);
    multiply_words(from_.isa, form_, rows, channel, height, panel, pairs, sums);
    for (size_t r = 0; r < height; ++r) {
      int64_t* row = sums + r * kWideLanes;
      const int64_t zero_point = zero_points_[channel + r], offset = offsets_[channel + r];
      for (size_t lane = 0; lane < width; ++lane) row[lane] += offset - zero_point * columns[lane];
      output_.row(row, width, channel + r, 0,
                  y + ((channel + r) * sizes.pixels + first) * size_of(requantizer_.output.type));
    }
  }
}

}  // namespace qdqtool
