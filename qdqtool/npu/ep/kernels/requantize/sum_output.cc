#include "kernels/requantize/sum_output.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/wide_products/wide_gemm.hpp"

namespace qdqtool {

namespace {

constexpr int kLowBits = 16, kLeastSplit = kLowBits + 1;

Int128 magnitude(int64_t value) { return value < 0 ? -Int128{value} : Int128{value}; }

// The same product with a shift of at least kLeastSplit.
void widen(int64_t& multiplier, int64_t& shift) {
  if (shift < 1) return;
  for (; shift < kLeastSplit; ++shift) multiplier *= 2;
}

}  // namespace

SumOutput::SumOutput(const Requantizer& requantizer, Int128 most, int x_shift, const std::vector<int32_t>& bias)
    : requantizer_(&requantizer), x_shift_(x_shift) {
  constexpr Int128 limit = Int128{1} << 62;
  scalings_.bias = bias;
  if (!bias.empty()) scalings_.bias.resize(bias.size() + kAtOnce);
  const Int128 bound = (most << x_shift) + (Int128{1} << 31);
  const bool is_small = bound < limit;
  bool is_plain = is_small, is_split = is_small;
  for (const Scaling& s : requantizer.channels) {
    for (auto [multiplier, shift] : {std::pair<int64_t, int64_t>{s.multiplier, s.shift},
                                     std::pair<int64_t, int64_t>{s.negative_multiplier, s.negative_shift}}) {
      is_plain = is_plain && shift >= 1 &&
                 bound * magnitude(multiplier) + (Int128{1} << std::max<int64_t>(shift, 0)) < limit;
      widen(multiplier, shift);
      is_split = is_split && shift >= 1 && magnitude(multiplier) < (Int128{1} << 44) &&
                 (bound >> kLowBits) * magnitude(multiplier) + (Int128{1} << 61) < limit;
    }
  }
  path_ = requantizer.real && is_small ? SumPath::real : is_plain ? SumPath::plain : is_split ? SumPath::split : SumPath::exact;
  take_channels(path_ == SumPath::split);
}

void SumOutput::take_channels(bool is_split) {
  for (const Scaling& s : requantizer_->channels) {
    int64_t multiplier = s.multiplier, shift = s.shift, below = s.negative_multiplier, below_shift = s.negative_shift;
    if (is_split) widen(multiplier, shift), widen(below, below_shift);
    scalings_.multiplier.push_back(multiplier), scalings_.shift.push_back(shift);
    scalings_.negative_multiplier.push_back(below), scalings_.negative_shift.push_back(below_shift);
    scalings_.scale.push_back(s.scale), scalings_.negative_slope.push_back(s.negative_slope);
  }
  const size_t count = scalings_.shift.size() == 1 ? 1 : scalings_.shift.size() + kAtOnce;
  for (auto* entries :
       {&scalings_.multiplier, &scalings_.shift, &scalings_.negative_multiplier, &scalings_.negative_shift})
    entries->resize(count);
  scalings_.scale.resize(count), scalings_.negative_slope.resize(count);
}

namespace {

// round(sum·m / 2^k) with what the comment of SumPath says; `first` as of round_shifted().
template <Rounding rounding>
int64_t round_split(int64_t sum, int64_t m, int64_t k, int64_t first) {
  const int64_t high = (sum >> kLowBits) * m, low = (sum & ((1 << kLowBits) - 1)) * m, rest = k - kLowBits;
  const int64_t q = ((high + (low >> kLowBits)) >> rest) + first;
  const scalar::Added<int64_t> added(rounding, scalar::half_of(rest), q);
  return (high + added.whole + ((low + added.less) >> kLowBits)) >> rest;
}

template <Rounding rounding, bool is_split, class T>
void store(const RowOfSums& row, T* y) {
  const Requantizer& r = row.requantizer;
  const SumScalings& s = row.scalings;
  const int64_t first = r.output.zero_point_first ? r.output.zero_point : 0;
  size_t channel = row.channel, entry = s.shift.size() == 1 ? 0 : channel;
  const size_t step = s.shift.size() == 1 ? 0 : row.step;
  for (size_t i = 0; i < row.count; ++i, channel += row.step, entry += step) {
    const int64_t bias = s.bias.empty() ? 0 : s.bias[channel];
    const int64_t sum = r.accumulator.hold(row.sums[i] * (int64_t{1} << row.x_shift) + bias);
    const int64_t m = sum < 0 ? s.negative_multiplier[entry] : s.multiplier[entry];
    const int64_t k = sum < 0 ? s.negative_shift[entry] : s.shift[entry];
    const int64_t rounded = is_split ? round_split<rounding>(sum, m, k, first)
                                     : scalar::round_shifted(rounding, sum * m, k, first);
    y[i] = static_cast<T>(r.output.fit(rounded + r.output.zero_point));
  }
}

template <class T>
void store_exactly(const RowOfSums& row, T* y) {
  const Requantizer& r = row.requantizer;
  for (size_t i = 0; i < row.count; ++i) {
    const size_t channel = row.channel + i * row.step;
    const Int128 bias = row.scalings.bias.empty() ? 0 : row.scalings.bias[channel];
    const Int128 sum = Int128{row.sums[i]} * (int64_t{1} << row.x_shift) + bias;
    y[i] = static_cast<T>(r.of_held(r.accumulator.hold_exact(sum), channel));
  }
}

template <class T>
void store_plainly(const RowOfSums& row, T* y) {
  const bool is_split = row.path == SumPath::split;
  const auto with = [&](auto rounding) {
    constexpr Rounding chosen = decltype(rounding)::value;
    is_split ? store<chosen, true>(row, y) : store<chosen, false>(row, y);
  };
  switch (row.requantizer.output.rounding) {
    case Rounding::half_up: return with(std::integral_constant<Rounding, Rounding::half_up>{});
    case Rounding::half_even: return with(std::integral_constant<Rounding, Rounding::half_even>{});
    case Rounding::half_away: return with(std::integral_constant<Rounding, Rounding::half_away>{});
    case Rounding::toward_zero: return with(std::integral_constant<Rounding, Rounding::toward_zero>{});
  }
}

}  // namespace

void SumOutput::row(const int64_t* sums, size_t count, size_t channel, size_t step, void* y) const {
  const Requantizer& r = *requantizer_;
  const RowOfSums row = {r, scalings_, path_, x_shift_, sums, count, channel, step};
#if QDQTOOL_X86
  if (path_ != SumPath::exact && r.isa == Isa::avx512) {
    return avx512::store_row(row, y);
  }
#endif
  with_integer(r.output.type, [&](auto element) {
    auto* to = static_cast<decltype(element)*>(y);
    if (path_ == SumPath::plain || path_ == SumPath::split) return store_plainly(row, to);
    store_exactly(row, to);
  });
}

}  // namespace qdqtool
