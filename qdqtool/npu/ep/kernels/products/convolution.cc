#include "kernels/products/convolution.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/products/depthwise.hpp"
#include "kernels/products/exact.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/shared/arguments.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace qdqtool {

namespace {

constexpr size_t kFewItems = 8;        // below that, tiles are shared out by rows too
constexpr size_t kResidueCost = 6;     // of one group of residues, against what bytes gain over words in a group
constexpr size_t kGroupsPerPart = 64;  // of the depth, where packing is shared out

int32_t plus(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }

}  // namespace

void take_every(const uint8_t* from, int64_t stride, int64_t count, uint8_t* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  int64_t i = 0;
#if defined(__SSE2__)
  if (stride == 2 && count > 8) {
    const __m128i low = _mm_set1_epi16(255);
    const auto eight = [&](int64_t at) {
      return _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * at)), low);
    };
    for (; i + 16 < count; i += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_packus_epi16(eight(i), eight(i + 8)));
    for (; i + 1 < count; i += 8) {
      i = std::min(i, count - 9);  // once more what is there already, rather than one by one
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), _mm_packus_epi16(eight(i), low));
    }
  }
#endif
  for (; i < count; ++i) to[i] = from[i * stride];
}

// The input as the tiles read it: [channels, phases, depth, height, width], phases the remainders of x by the stride
// that taps see.
struct Convolution::Image {
  bool is_input = false;  // the input itself: no padding, no stride along x
  Axes low = {0, 0, 0};   // position of the input's first element
  Axes input = {1, 1, 1};
  Axes size = {1, 1, 1};         // of a phase
  std::vector<int64_t> phases;   // first position along x of each
  std::vector<int64_t> offsets;  // [depth]: of the rows of columns

  int64_t plane() const { return static_cast<int64_t>(phases.size()) * count_of(size); }
};

struct Convolution::Plan {
  Image image;
  Tiles tiles;
  size_t panel = 0;        // bytes
  size_t parts = 1;        // of the work, where tiles are not shared
  bool is_shared = false;  // all tiles are packed before any is multiplied
  size_t image_bytes = 0, panels_bytes = 0;
};

Convolution::Convolution(Convolving from, const Requantizer& requantizer)
    : from_(std::move(from)), requantizer_(requantizer) {
  const size_t rows = from_.groups * from_.out_channels, depth = this->depth();
  const Limits x_limits = limits_of(from_.x_type);
  const int64_t most = std::max(from_.x_zero_point - x_limits.low, x_limits.high - from_.x_zero_point);
  const bool is_signed = from_.w_type == DataType::int8;

  std::vector<int64_t> bounds(rows);
  bool fits = true;
  for (size_t m = 0; m < rows; ++m) {
    const uint8_t* weights = from_.weights.data() + m * depth;
    int64_t sum = 0;
    for (size_t k = 0; k < depth; ++k) {
      sum += std::abs((is_signed ? static_cast<int8_t>(weights[k]) : weights[k]) - w_zero_point(m));
    }
    const Int128 bound = (Int128{sum} * most << from_.x_shift) + std::abs(int64_t{from_.bias[m]});
    bounds[m] = static_cast<int64_t>(std::min<Int128>(bound, std::numeric_limits<int64_t>::max()));
    fits = fits && bound < Int128{1} << 31;
  }
  path_ = requantizer.plan(bounds);
  is_exact_ = !fits && !(requantizer.accumulator.wraps && requantizer.accumulator.bits <= 32);
  if (is_exact_) return;

  is_depthwise_ = from_.groups > 1 && from_.in_channels == 1 && depth > 0 && depth <= kMostTaps;
  const size_t step = is_depthwise_ ? 1 : from_.out_channels;  // rows packed together
  form_ = form_of(from_.isa);
  if (form_ == Form::words_avx2 && !is_depthwise_) choose_bytes(rows);
  x_packing_ = packing(form_, from_.x_type, from_.x_zero_point, true);
  packed_bytes_ = rows_bytes(form_, step, depth);
  packed_.resize(rows / step * packed_bytes_);
  row_offsets_.resize(rows), row_factors_.resize(rows);
  std::vector<int32_t> zero_points(rows), sums(rows);
  for (size_t m = 0; m < rows; ++m) zero_points[m] = w_zero_point(m);
  const Packing how = packing(form_, from_.w_type, 0, false);
  for (size_t m = 0; m < rows; m += step) {
    pack_rows(form_, how, from_.weights.data() + m * depth, depth, step, depth, zero_points.data() + m,
              packed_.data() + m / step * packed_bytes_, sums.data() + m);
  }
  for (size_t m = 0; m + 1 < residues_.begins.size(); ++m) {
    for (size_t i = residues_.begins[m]; i < residues_.begins[m + 1]; ++i) {
      for (int byte = 0; byte < 4; ++byte) sums[m] += static_cast<int8_t>(residues_.weights[i] >> 8 * byte);
    }
  }
  // Σ(x − zx)(w − zw) = Σx·w − zw·Σx − zx·Σw + K·zx·zw, in packed values and their zero points.
  bool has_factors = false;
  for (size_t m = 0; m < rows; ++m) {
    const int64_t zero_point = has_bytes(form_) ? zero_points[m] + how.zero_point : 0;
    const int64_t offset = x_packing_.zero_point * (static_cast<int64_t>(depth) * zero_point - sums[m]);
    row_offsets_[m] = plus(static_cast<int32_t>(static_cast<uint32_t>(offset) << from_.x_shift), from_.bias[m]);
    row_factors_[m] = static_cast<int32_t>(static_cast<uint32_t>(-zero_point) << from_.x_shift);
    has_factors = has_factors || zero_point != 0;
  }
  if (!has_factors) row_factors_.clear();
  std::vector<uint8_t>().swap(from_.weights);
}

void Convolution::choose_bytes(size_t rows) {
  const size_t depth = this->depth();
  const uint8_t flip = from_.w_type == DataType::int8 ? 0 : 0x80;
  std::vector<int8_t> weights(from_.weights.size());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<int8_t>(from_.weights[i] ^ flip);
  Residues residues = take_residues(weights.data(), rows, depth);
  if (residues.groups.size() * kResidueCost > rows * ((depth + 3) / 4)) return;
  form_ = Form::bytes_avx2;
  residues_ = std::move(residues);
  for (size_t i = 0; i < weights.size(); ++i) from_.weights[i] = static_cast<uint8_t>(weights[i]) ^ flip;
}

Convolution::Image Convolution::image_of(const Axes& input, const Axes& output) const {
  Image image;
  image.input = input;
  Axes least = {0, 0, 0}, most = {0, 0, 0};
  for (size_t t = 0; t < from_.taps.size(); ++t) {
    for (size_t d = 0; d < 3; ++d) {
      least[d] = t ? std::min(least[d], from_.taps[t][d]) : from_.taps[t][d];
      most[d] = t ? std::max(most[d], from_.taps[t][d]) : from_.taps[t][d];
    }
  }
  image.is_input = from_.strides[2] == 1;
  for (size_t d = 0; d < 3; ++d) {
    image.low[d] = std::max<int64_t>(0, -least[d]);
    image.size[d] = (output[d] - 1) * from_.strides[d] + most[d] + image.low[d] + 1;
    image.is_input = image.is_input && image.low[d] == 0 && image.size[d] <= input[d];
  }
  const int64_t stride = from_.strides[2];
  for (const Axes& tap : from_.taps) {
    const int64_t phase = (tap[2] + image.low[2]) % stride;
    if (std::find(image.phases.begin(), image.phases.end(), phase) == image.phases.end()) image.phases.push_back(phase);
  }
  image.size[2] = (image.size[2] + stride - 1) / stride;
  if (image.is_input) image.size = input;
  image.offsets.reserve(depth());
  for (const Axes& tap : from_.taps) {
    const int64_t x = tap[2] + image.low[2];
    const auto phase = std::find(image.phases.begin(), image.phases.end(), x % stride) - image.phases.begin();
    const int64_t z = phase * image.size[0] + tap[0] + image.low[0];
    const int64_t offset = (z * image.size[1] + tap[1] + image.low[1]) * image.size[2] + x / stride;
    for (size_t c = 0; c < from_.in_channels; ++c)
      image.offsets.push_back(static_cast<int64_t>(c) * image.plane() + offset);
  }
  return image;
}

Convolution::Plan Convolution::plan_of(const Axes& input, const Axes& output) const {
  Plan plan;
  plan.image = image_of(input, output);
  plan.tiles.columns = static_cast<size_t>(count_of(output));
  plan.panel = aligned(panel_bytes(form_, depth()));
  const size_t items = plan.tiles.count() * from_.groups;
  plan.is_shared = items < kFewItems;
  const size_t channels = from_.groups * from_.in_channels;
  plan.image_bytes = plan.image.is_input ? 0 : aligned(channels * static_cast<size_t>(plan.image.plane()) + kTile);
  plan.parts = parts_for(items, operations_of(plan.tiles.columns), kParts);
  plan.panels_bytes = plan.panel * (plan.is_shared ? items : plan.parts);
  return plan;
}

size_t Convolution::scratch(const Axes& input, const Axes& output) const {
  if (is_exact_) return 0;
  if (is_depthwise_) return depthwise_scratch(output);
  const Plan plan = plan_of(input, output);
  return plan.image_bytes + plan.panels_bytes;
}

void Convolution::copy(const uint8_t* x, const Image& image, uint8_t* to, const ParallelFor& parallel) const {
  const auto plane = static_cast<size_t>(image.plane());
  const int64_t stride = from_.strides[2], width = image.input[2];
  const auto fill = static_cast<uint8_t>(from_.x_zero_point);
  for_parts(
      parallel, static_cast<int64_t>(from_.groups * from_.in_channels), static_cast<int64_t>(plane),
      [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          const uint8_t* source = x + c * count_of(image.input);
          uint8_t* target = to + static_cast<size_t>(c) * plane;
          std::memset(target, fill, plane);
          for (const int64_t phase : image.phases) {
            // Positions i of the phase that lie inside: 0 <= i·stride + phase - low < width.
            const int64_t before = image.low[2] - phase;
            const int64_t first = before > 0 ? (before + stride - 1) / stride : 0;
            const int64_t last = std::min(image.size[2], (width + before + stride - 1) / stride);
            for (int64_t z = 0; z < image.size[0]; ++z) {
              for (int64_t y = 0; y < image.size[1]; ++y, target += image.size[2]) {
                const int64_t from_z = z - image.low[0], from_y = y - image.low[1];
                if (from_z < 0 || from_z >= image.input[0] || from_y < 0 || from_y >= image.input[1] || first >= last)
                  continue;
                const uint8_t* row = source + (from_z * image.input[1] + from_y) * width + (first * stride - before);
                take_every(row, stride, last - first, target + first);
              }
            }
          }
        }
      });
}

void Convolution::run(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
                      const ParallelFor& parallel) const {
  if (is_exact_) {
    return with_type(from_.x_type, [&](auto x_element) {
      with_type(from_.w_type, [&](auto w_element) {
        const auto* values = reinterpret_cast<const decltype(x_element)*>(x);
        const auto* weights = reinterpret_cast<const decltype(w_element)*>(from_.weights.data());
        run_exact(values, weights, input, output, y, parallel);
      });
    });
  }
  if (is_depthwise_) return run_depthwise(x, input, output, y, scratch, parallel);
  const Plan plan = plan_of(input, output);
  const Image& image = plan.image;
  const Tiles& tiles = plan.tiles;
  if (tiles.count() == 0) return;
  auto* copied = static_cast<uint8_t*>(scratch);
  uint8_t* panels = copied + plan.image_bytes;
  if (!image.is_input) copy(x, image, copied, parallel);
  const uint8_t* data = image.is_input ? x : copied;
  const size_t depth = this->depth(), groups = (depth + group_of(form_) - 1) / group_of(form_);
  const size_t items = tiles.count() * from_.groups, rows = from_.out_channels;

  const auto pack = [&](size_t item, size_t first, size_t last, uint8_t* panel) {
    const size_t group = item / tiles.count(), tile = item % tiles.count();
    Columns columns;
    columns.data = data + static_cast<int64_t>(group * from_.in_channels) * image.plane();
    columns.offsets = image.offsets.data();
    columns.depth = depth;
    columns.how = x_packing_;
    // The pixels of a row of the output lie one behind another; so may whole rows.
    Run runs[kTile];
    size_t count = 0;
    const auto width = static_cast<int64_t>(tiles.width(tile));
    for (int64_t at = 0, pixel = static_cast<int64_t>(tiles.begin(tile)); at < width;) {
      const int64_t px = pixel % output[2], py = pixel / output[2] % output[1], pz = pixel / output[2] / output[1];
      const int64_t length = std::min(width - at, output[2] - px);
      const int64_t offset = (pz * from_.strides[0] * image.size[1] + py * from_.strides[1]) * image.size[2] + px - at;
      if (count && runs[count - 1].offset == offset) {
        runs[count - 1].end += length;
      } else {
        runs[count++] = {at, at + length, offset};
      }
      at += length, pixel += length;
    }
    pack_columns(form_, columns, runs, count, static_cast<size_t>(width), first, last, panel);
  };

  const auto product = [&](size_t item, size_t row, size_t row_end, const uint8_t* panel) {
    const size_t group = item / tiles.count(), tile = item % tiles.count(), width = tiles.width(tile),
                 m = group * rows + row;
    alignas(kAlignment) int32_t sums[kTile];
    Epilogue epilogue;
    epilogue.requantizer = &requantizer_;
    epilogue.path = path_;
    epilogue.x_shift = from_.x_shift;
    epilogue.row_offsets = row_offsets_.data() + m;
    epilogue.first_row = m;
    if (!residues_.groups.empty()) epilogue.residues = &residues_;
    if (!row_factors_.empty()) {
      sum_columns(form_, false, panel, width, depth, sums);
      epilogue.row_factors = row_factors_.data() + m;
      epilogue.column_factors = sums;
    }
    const uint8_t* packed = packed_.data() + group * packed_bytes_ + row * groups * 4;
    multiply(form_, false, packed, row_end - row, panel, width, depth, epilogue,
             y + m * tiles.columns + tiles.begin(tile), tiles.columns);
  };

  if (!plan.is_shared) {
    Pieces pieces(panels, plan.panel);
    const Parts parts{items, plan.parts};
    parallel(parts.parts, [&](size_t part) {
      const Pieces::Piece piece(pieces);
      auto* panel = static_cast<uint8_t*>(piece.data());
      for (size_t item = parts.begin(part); item < parts.begin(part + 1); ++item) {
        pack(item, 0, groups, panel);
        product(item, 0, rows, panel);
      }
    });
    return;
  }
  const size_t cuts = std::max<size_t>(1, groups / kGroupsPerPart);
  parallel(items * cuts, [&](size_t index) {
    const size_t item = index / cuts;
    const Parts parts{groups, cuts};
    pack(item, parts.begin(index % cuts), parts.begin(index % cuts + 1), panels + item * plan.panel);
  });
  const size_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const Parts parts{blocks, parts_for(blocks, operations_of(tiles.columns) / static_cast<double>(items),
                                      std::max<size_t>(1, kParts / items))};
  parallel(items * parts.parts, [&](size_t index) {
    const size_t item = index / parts.parts, part = index % parts.parts;
    product(item, parts.begin(part) * kRowBlock, std::min(rows, parts.begin(part + 1) * kRowBlock),
            panels + item * plan.panel);
  });
}

template <class X, class W, class Y>
void Convolution::run_exact(const X* x, const W* w, const Axes& input, const Axes& output, Y* y,
                            const ParallelFor& parallel) const {
  const size_t pixels = static_cast<size_t>(count_of(output));
  parallel(from_.groups * from_.out_channels, [&](size_t m) {
    const X* channels = x + static_cast<int64_t>(m / from_.out_channels * from_.in_channels) * count_of(input);
    for (size_t p = 0; p < pixels; ++p) {
      const auto pixel = static_cast<int64_t>(p);
      const Axes at = {pixel / output[2] / output[1], pixel / output[2] % output[1], pixel % output[2]};
      int64_t sum = 0;
      for (size_t t = 0; t < from_.taps.size(); ++t) {
        Axes seen;
        bool inside = true;
        for (size_t d = 0; d < 3; ++d) {
          seen[d] = at[d] * from_.strides[d] + from_.taps[t][d];
          inside = inside && seen[d] >= 0 && seen[d] < input[d];
        }
        if (!inside) continue;
        const Factor<X> values = {channels + (seen[0] * input[1] + seen[1]) * input[2] + seen[2], count_of(input),
                                  from_.x_zero_point};
        const Factor<W> weights = {w + m * depth() + t * from_.in_channels, 1, w_zero_point(m)};
        sum += sum_of_products(values, weights, from_.in_channels);
      }
      y[m * pixels + p] = static_cast<Y>(requantizer_(sum * (int64_t{1} << from_.x_shift) + from_.bias[m], m));
    }
  });
}

}  // namespace qdqtool
