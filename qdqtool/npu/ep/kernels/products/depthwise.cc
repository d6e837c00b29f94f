#include "kernels/products/depthwise.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/products/convolution.hpp"
#include "kernels/products/gemm_isa.hpp"
#include "kernels/products/tiles.hpp"

namespace qdqtool {

namespace {

constexpr double kCost = 8;  // of a multiplication here, against one in a matrix product

}  // namespace

namespace portable {

void depthwise(const DepthwiseTask& t) {
  const int32_t flip = t.how.is_signed ? 0x80 : 0;
  for (size_t i = 0; i < t.size; ++i) t.values[i] = static_cast<int16_t>((t.bytes[i] ^ flip) - flip - t.how.subtract);
  for (size_t channel = 0; channel < t.channels; ++channel) {
    const auto* weights = reinterpret_cast<const int16_t*>(t.packed + channel * t.packed_bytes);
    for (size_t at = 0; at < t.positions; at += kTile) {
      int32_t sums[kTile] = {};
      for (size_t tap = 0; tap < t.groups * kGroup; ++tap) {
        const int16_t* from = t.values + at + t.offsets[tap];
        const int16_t weight = weights[tap];
        for (size_t lane = 0; lane < kTile; ++lane) sums[lane] += from[lane] * weight;  // 256 taps: below 2^25
      }
      finish_row(Form::words, t.epilogue, channel, kTile, sums, t.y + channel * t.y_stride + at);
    }
  }
}

}  // namespace portable

struct Convolution::Sweep {
  Axes low = {0, 0, 0}, size = {1, 1, 1};  // position of the input's first element; of one plane
  std::vector<Axes> phases;
  std::vector<int64_t> offsets;
  size_t elements = 0, positions = 0,
         width = 0;  // of all planes, with a tile behind them; of the sweep; of y, whole tiles
  size_t parts = 1;  // of the work
};

Convolution::Sweep Convolution::sweep_of(const Axes& output) const {
  Sweep planes;
  Axes least = from_.taps[0], reach = {0, 0, 0};
  for (const Axes& tap : from_.taps) {
    for (size_t d = 0; d < 3; ++d) least[d] = std::min(least[d], tap[d]);
  }
  for (size_t d = 0; d < 3; ++d) planes.low[d] = std::max<int64_t>(0, -least[d]);
  std::vector<std::pair<size_t, Axes>> seen;  // phase and index of each tap
  for (const Axes& tap : from_.taps) {
    Axes phase, index;
    for (size_t d = 0; d < 3; ++d) {
      phase[d] = (tap[d] + planes.low[d]) % from_.strides[d], index[d] = (tap[d] + planes.low[d]) / from_.strides[d];
      reach[d] = std::max(reach[d], index[d]);
    }
    const auto at = std::find(planes.phases.begin(), planes.phases.end(), phase);
    seen.emplace_back(at - planes.phases.begin(), index);
    if (at == planes.phases.end()) planes.phases.push_back(phase);
  }
  for (size_t d = 0; d < 3; ++d) planes.size[d] = output[d] + reach[d];
  const Axes& size = planes.size;
  for (const auto& [phase, index] : seen) {
    const int64_t offset =
        static_cast<int64_t>(phase) * count_of(size) + (index[0] * size[1] + index[1]) * size[2] + index[2];
    planes.offsets.push_back(offset);
  }
  planes.offsets.resize(packed_bytes_ / 4 * group_of(form_), 0);
  planes.positions = static_cast<size_t>(((output[0] - 1) * size[1] + output[1] - 1) * size[2] + output[2]);
  planes.width = (planes.positions + kTile - 1) / kTile * kTile;
  planes.elements = aligned(planes.phases.size() * static_cast<size_t>(count_of(size)) + kTile);
  planes.parts = parts_for(from_.groups, kCost * operations_of(planes.positions), kParts);
  return planes;
}

size_t Convolution::sweep_bytes(const Sweep& planes) const {
  return planes.elements * (from_.isa == Isa::avx512 ? 1 : 1 + sizeof(int16_t)) + from_.out_channels * planes.width;
}

size_t Convolution::depthwise_scratch(const Axes& output) const {
  const Sweep planes = sweep_of(output);
  return planes.parts * sweep_bytes(planes);
}

void Convolution::run_depthwise(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
                                const ParallelFor& parallel) const {
  if (count_of(output) == 0) return;
  const Sweep planes = sweep_of(output);
  Pieces pieces(scratch, sweep_bytes(planes));
  const Parts parts{from_.groups, planes.parts};
  parallel(parts.parts, [&](size_t part) {
    const Pieces::Piece piece(pieces);
    DepthwiseTask task;
    task.bytes = static_cast<uint8_t*>(piece.data());
    uint8_t* behind = task.bytes + planes.elements;
    if (from_.isa != Isa::avx512)
      task.values = reinterpret_cast<int16_t*>(behind), behind += planes.elements * sizeof(int16_t);
    task.size = planes.elements;
    task.how = x_packing_;
    task.offsets = planes.offsets.data();
    task.taps = from_.taps.size();
    task.groups = (from_.taps.size() + group_of(form_) - 1) / group_of(form_);
    task.positions = planes.positions;
    task.packed_bytes = packed_bytes_;
    task.channels = from_.out_channels;
    task.y = behind;
    task.y_stride = planes.width;
    task.epilogue.requantizer = &requantizer_;
    task.epilogue.path = path_;
    task.epilogue.x_shift = from_.x_shift;
    for (size_t group = parts.begin(part); group < parts.begin(part + 1); ++group) {
      const size_t m = group * from_.out_channels;
      copy_planes(x + group * static_cast<size_t>(count_of(input)), input, planes, task.bytes);
      task.packed = packed_.data() + m * packed_bytes_;
      task.epilogue.row_offsets = row_offsets_.data() + m;
      task.epilogue.row_factors = row_factors_.empty() ? nullptr : row_factors_.data() + m;
      task.epilogue.first_row = m;
#if QDQTOOL_X86
      if (from_.isa == Isa::avx512) {
        avx512::depthwise(task);
      } else if (from_.isa == Isa::avx2) {
        avx2::depthwise(task);
      } else
#endif
      {
        portable::depthwise(task);
      }
      uint8_t* to = y + m * static_cast<size_t>(count_of(output));
      for (size_t channel = 0; channel < from_.out_channels; ++channel) {
        for (int64_t z = 0; z < output[0]; ++z) {
          const uint8_t* row = task.y + channel * planes.width + z * planes.size[1] * planes.size[2];
          for (int64_t line = 0; line < output[1]; ++line, row += planes.size[2], to += output[2]) {
            std::memcpy(to, row, static_cast<size_t>(output[2]));
          }
        }
      }
    }
  });
}

void Convolution::copy_planes(const uint8_t* x, const Axes& input, const Sweep& planes, uint8_t* to) const {
  std::memset(to, static_cast<uint8_t>(from_.x_zero_point), planes.elements);
  const Axes& strides = from_.strides;
  for (const Axes& phase : planes.phases) {
    // Along each axis, position i of the plane is element i·stride + phase - low of the input; [first, last) lie
    // inside.
    Axes before, first, last;
    for (size_t d = 0; d < 3; ++d) {
      before[d] = planes.low[d] - phase[d];
      first[d] = before[d] > 0 ? (before[d] + strides[d] - 1) / strides[d] : 0;
      last[d] = std::min(planes.size[d], (input[d] + before[d] + strides[d] - 1) / strides[d]);
    }
    for (int64_t z = first[0]; z < last[0]; ++z) {
      for (int64_t y = first[1]; y < last[1]; ++y) {
        if (first[2] >= last[2]) continue;
        const int64_t row = ((z * strides[0] - before[0]) * input[1] + y * strides[1] - before[1]) * input[2];
        take_every(x + row + first[2] * strides[2] - before[2], strides[2], last[2] - first[2],
                   to + (z * planes.size[1] + y) * planes.size[2] + first[2]);
      }
    }
    to += count_of(planes.size);
  }
}

}  // namespace qdqtool
