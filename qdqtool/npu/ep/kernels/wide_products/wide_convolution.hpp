// Convolutions of which something has 16 bits, as products of the packed weights [M, K] and columns of pixels [K, P], see
// wide_gemm.hpp. K counts taps and the channels at each; the columns of sixteen pixels are gathered at a time.
#pragma once
#include "kernels/products/convolution.hpp"
#include "kernels/wide_products/wide_gemm.hpp"
#include "kernels/requantize/sum_output.hpp"

namespace qdqtool {

class WideConvolution : public PreparedConvolution {
 public:
  // `requantizer` must outlive this object, with one channel or as many as there are output channels.
  WideConvolution(Convolving from, const Requantizer& requantizer);

  size_t scratch(const Axes& input, const Axes& output) const override;
  void run(const uint8_t* x, const Axes& input, const Axes& output, uint8_t* y, void* scratch,
           const ParallelFor& parallel) const override;

 private:
  struct Sizes;
  size_t depth() const { return from_.taps.size() * from_.in_channels; }
  Sizes sizes_of(const Axes& output) const;
  template <class X>
  void gather(const X* x, const Axes& input, const Axes& output, size_t first, size_t width, int16_t* panel) const;
  void multiply(size_t group, const int16_t* panel, size_t first, size_t width, const Sizes& sizes, uint8_t* y) const;

  Convolving from_;
  const Requantizer& requantizer_;
  WordForm form_;
  SumOutput output_;
  int64_t x_zero_point_ = 0;            // of packed values
  std::vector<int16_t> high_, low_;     // [groups·out_channels, 2·pairs]
  std::vector<int64_t> zero_points_;    // [groups·out_channels], of packed values
  std::vector<int64_t> offsets_;        // likewise: −zx·Σw + K·zx·zw
  bool has_column_sums_ = false;
};

}  // namespace qdqtool
