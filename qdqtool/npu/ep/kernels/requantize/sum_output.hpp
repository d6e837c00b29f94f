// From sums of 64 bits to elements of 8 or 16: the arithmetic of requantize.hpp, many at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/requantize/requantize.hpp"

namespace qdqtool {

// The shape of `sums · multiplier / 2^shift` in 64 bits.
//   plain   the product fits
//   real    the mode float
//   split   sum = high·2^16 + low, and shift > 16: (sum·m + 2^16·a + c) >> k = (high·m + a + ((low·m + c) >> 16)) >> (k − 16)
//   exact   128 bits, one by one
enum class SumPath : uint8_t { exact, plain, split, real };

// Scalings as the lanes of vectors need them: one, or one per channel and behind the last enough for a register.
struct SumScalings {
  std::vector<int64_t> multiplier, shift, negative_multiplier, negative_shift;
  std::vector<float> scale, negative_slope;
  std::vector<int32_t> bias;  // of sums of 32 bits; empty where there is none
};

class SumOutput {
 public:
  SumOutput() = default;
  // most: of |sum|, before x_shift and bias. bias: one per channel, or empty. The requantizer must outlive this.
  SumOutput(const Requantizer& requantizer, Int128 most, int x_shift, const std::vector<int32_t>& bias);

  // y[i] for (sums[i] << x_shift) + bias of channel + i·step; step is 0 or 1. At most kAtOnce sums, and memory behind them
  // for as many.
  static constexpr size_t kAtOnce = 16;
  void row(const int64_t* sums, size_t count, size_t channel, size_t step, void* y) const;

 private:
  void take_channels(bool is_split);

  const Requantizer* requantizer_ = nullptr;
  SumScalings scalings_;
  int x_shift_ = 0;
  SumPath path_ = SumPath::exact;
};

// Sums and how they are scaled: see SumOutput::row.
struct RowOfSums {
  const Requantizer& requantizer;
  const SumScalings& scalings;
  SumPath path;
  int x_shift;
  const int64_t* sums;
  size_t count, channel, step;
};

#if QDQTOOL_X86
namespace avx512 {
void store_row(const RowOfSums& row, void* y);  // eight at a time
}
#endif

}  // namespace qdqtool
