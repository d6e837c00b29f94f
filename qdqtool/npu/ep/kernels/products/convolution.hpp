// Convolutions as matrix products: weights [M, K] times the pixels of the output [K, P], where K counts the taps of the
// kernel and the channels at each, and column p holds what the taps see from pixel p. The columns of a tile of pixels
// are packed from a copy of the input with its padding; nothing is converted to another layout, and pixels of one
// channel are written one behind another.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/products/gemm.hpp"

namespace qdqtool {

// Sizes or positions along depth, height and width; missing leading axes have size 1.
using Axes = std::array<int64_t, 3>;

inline int64_t count_of(const Axes& axes) { return axes[0] * axes[1] * axes[2]; }

// to[i] = from[i·stride], without a look behind the last of them.
void take_every(const uint8_t* from, int64_t stride, int64_t count, uint8_t* to);

// What a Convolution is made from. Channels of input and output are counted within a group.
struct Convolving {
  Isa isa = Isa::portable;
  DataType x_type = DataType::uint8, w_type = DataType::int8;
  int64_t x_zero_point = 0;
  size_t groups = 1, in_channels = 1, out_channels = 1;
  Axes strides = {1, 1, 1};
  std::vector<Axes> taps;              // output position o sees input position o·stride + tap
  std::vector<uint8_t> weights;        // [groups·out_channels, taps, in_channels]
  std::vector<int16_t> words;          // in their place, packed as wide_gemm.hpp says, of a WideConvolution
  std::vector<int32_t> w_zero_points;  // [1] or [groups·out_channels]
  std::vector<int32_t> bias;           // [groups·out_channels]
  int x_shift = 0;
};

// A prepared convolution of one image after another.
class PreparedConvolution {
 public:
  virtual ~PreparedConvolution() = default;
  // Bytes that run() needs for one image of these sizes.
  virtual size_t scratch(const Axes& input, const Axes& output) const = 0;
  // One image x [groups·in_channels, input] → y [groups·out_channels, output], integers of the types it was made for.
  virtual void run(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
                   const ParallelFor& parallel) const = 0;
};

class Convolution : public PreparedConvolution {
 public:
  // Packs the weights. `requantizer` must outlive this object, with one channel or as many as there are output
  // channels.
  Convolution(Convolving from, const Requantizer& requantizer);

  size_t scratch(const Axes& input, const Axes& output) const override;
  void run(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
           const ParallelFor& parallel) const override;

 private:
  struct Image;
  struct Plan;
  struct Sweep;
  void choose_bytes(size_t rows);  // on AVX2, where the weights allow it
  Image image_of(const Axes& input, const Axes& output) const;
  Plan plan_of(const Axes& input, const Axes& output) const;
  void copy(const uint8_t* x, const Image& image, uint8_t* to, const ParallelFor& parallel) const;
  Sweep sweep_of(const Axes& output) const;
  size_t sweep_bytes(const Sweep& planes) const;
  size_t depthwise_scratch(const Axes& output) const;
  void copy_planes(const uint8_t* x, const Axes& input, const Sweep& planes, uint8_t* to) const;
  void run_depthwise(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
                     const ParallelFor& parallel) const;
  template <class X, class W, class Y>
  void run_exact(const X* x, const W* w, const Axes& input, const Axes& output, Y* y,
                 const ParallelFor& parallel) const;
  double operations_of(size_t pixels) const {
    return static_cast<double>(pixels * depth()) * static_cast<double>(from_.groups * from_.out_channels);
  }
  size_t depth() const { return from_.taps.size() * from_.in_channels; }
  int32_t w_zero_point(size_t channel) const {
    return from_.w_zero_points[from_.w_zero_points.size() == 1 ? 0 : channel];
  }

  Convolving from_;
  const Requantizer& requantizer_;
  Form form_ = Form::words;
  Packing x_packing_;
  Requantizer::Path path_ = Requantizer::Path::scalar;
  bool is_exact_ = false;        // sums of 64 bits, one by one
  bool is_depthwise_ = false;    // one input channel to a group
  std::vector<uint8_t> packed_;  // of each group, or of each output channel where is_depthwise_
  Residues residues_;
  size_t packed_bytes_ = 0;  // of one of these
  std::vector<int32_t> row_offsets_, row_factors_;
};

}  // namespace qdqtool
