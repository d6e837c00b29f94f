// Convolutions with one input channel to a group: vectors run along the positions of a channel, and every tap is a load
// at an offset.
//
// A channel is copied with its padding into planes [depth, height, width], one for each remainder of positions by the
// strides. Output position (z, y, x) then has the index (z·height + y)·width + x, and each tap sees that index plus an
// offset: the rows of the output are computed in one sweep with what lies between them, which is left out of the
// result.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/products/gemm.hpp"

namespace qdqtool {

constexpr size_t kMostTaps = 256;

// One channel, and the output channels that come of it.
struct DepthwiseTask {
  uint8_t* bytes = nullptr;   // planes as they were copied; avx512 flips them in place
  int16_t* values = nullptr;  // the same less the zero point, written and read by the others
  size_t size = 0;            // of both, with kTile elements behind the last position
  Packing how;
  const int64_t* offsets =
      nullptr;  // of the taps, as many as there are in whole groups; those behind the last tap are 0
  size_t taps = 0, groups = 0;
  size_t positions = 0;
  const uint8_t* packed = nullptr;  // a block of one row for each output channel
  size_t packed_bytes = 0;          // of one
  size_t channels = 1;
  Epilogue epilogue;     // row_factors meet the sum of the taps, whatever column_factors is
  uint8_t* y = nullptr;  // [channels, y_stride], a whole number of tiles is written
  size_t y_stride = 0;
};

namespace portable {
void depthwise(const DepthwiseTask& task);
}

#if QDQTOOL_X86
namespace avx2 {
void depthwise(const DepthwiseTask& task);
}
namespace avx512 {
void depthwise(const DepthwiseTask& task);
}
#endif

}  // namespace qdqtool
