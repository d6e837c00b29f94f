// The arithmetic behind a sum of products as ADR 14 says it: whole numbers of 128 bits, rational ones as two of them;
// and random choices of it.
#pragma once
#include <cmath>
#include <limits>

#include "harness.hpp"

namespace test {

__extension__ typedef __int128 Wide;

inline Wide floor_divide(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

inline Wide rounded(Wide p, Wide q, const std::string& rounding) {
  const Wide up = floor_divide(2 * p + q, 2 * q);
  if (rounding == "half_up") return up;
  if (rounding == "toward_zero") return p / q;
  const bool tie = (2 * p + q) % (2 * q) == 0;
  if (rounding == "half_even") return tie && up % 2 != 0 ? up - 1 : up;
  return tie && p < 0 ? up - 1 : up;  // half_away
}

// The attributes and inputs of the arithmetic, and what they mean.
struct Arithmetic {
  bool is_real = false, first = false, has_low = false, has_high = false;
  std::string rounding, overflow, accumulator_overflow;
  int64_t bits = 32, zero = 0, low = 0, high = 0;
  DataType type = DataType::uint8;
  float y_scale = 1;
  std::vector<int32_t> multiplier, shift, negative_multiplier,
      negative_shift;  // [1] or [C]; the negative ones empty where there are none
  std::vector<float> scale, slope;

  int64_t range() const { return type == DataType::int8 || type == DataType::uint8 ? 255 : 65535; }
  int64_t least() const { return type == DataType::int8 || type == DataType::int16 ? -(range() + 1) / 2 : 0; }

  template <class T>
  static T entry(const std::vector<T>& values, size_t channel) {
    return values[values.size() == 1 ? 0 : channel];
  }

  Wide hold(Wide sum) const {
    const Wide half = Wide{1} << (bits - 1);
    if (accumulator_overflow == "saturate") return std::min(std::max(sum, -half), half - 1);
    return sum - floor_divide(sum + half, 2 * half) * 2 * half;
  }

  int64_t fit(Wide value) const {
    if (has_low) value = std::max<Wide>(value, low);
    if (has_high) value = std::min<Wide>(value, high);
    if (overflow == "saturate")
      return static_cast<int64_t>(std::min<Wide>(std::max<Wide>(value, least()), least() + range()));
    return static_cast<int64_t>(value - floor_divide(value - least(), range() + 1) * (range() + 1));
  }

  int64_t operator()(Wide sum, size_t channel) const {
    const Wide held = hold(sum);
    if (is_real) {
      volatile float value = static_cast<float>(static_cast<int64_t>(held));
      value = value * entry(scale, channel);
      if (!slope.empty() && value < 0) value = value * entry(slope, channel);
      value = value / y_scale;
      if (first) value = value + static_cast<float>(zero);
      const double limit = std::ldexp(1.0, 62), real = std::min(std::max(static_cast<double>(value), -limit), limit);
      // Units of 2^-60 hold every float32 of at most 2^20 that is not as good as 0.
      const Wide whole = std::fabs(real) < std::ldexp(1.0, 20)
                             ? rounded(static_cast<Wide>(std::ldexp(real, 60)), Wide{1} << 60, rounding)
                             : static_cast<Wide>(std::fabs(real) < std::ldexp(1.0, 24) ? std::floor(real) : real);
      return fit(whole + (first ? 0 : zero));
    }
    const bool below = held < 0 && !negative_multiplier.empty();
    const Wide m = entry(below ? negative_multiplier : multiplier, channel);
    const int k = entry(below ? negative_shift : shift, channel);
    if (k >= 0) {
      const Wide q = Wide{1} << k;
      return fit(first ? rounded(held * m + zero * q, q, rounding) : rounded(held * m, q, rounding) + zero);
    }
    const Wide limit = Wide{1} << 63;
    Wide product = held * m;
    for (int i = 0; i < -k && product > -limit && product < limit; ++i) product *= 2;
    return fit(std::min(std::max(product, -limit), limit - 1) + zero);
  }

  void scale_channel(Random& random, double typical, int kind, bool is_negative) {
    const double real = (is_negative && random.flag() ? -1 : 1) * random.real(20.0f, 400.0f) / typical;
    int exponent = 0;
    const double fraction = std::frexp(real, &exponent);
    if (is_real) {
      if (is_negative) return slope.push_back(random.real(-0.5f, 1.5f));
      return scale.push_back(static_cast<float>(kind == 1 ? std::ldexp(0.5, exponent) : real * y_scale));
    }
    int32_t m = 0;
    int k = 0;
    if (kind == 0) {  // fixed_point
      m = static_cast<int32_t>(std::lround(std::ldexp(fraction, 30)) * 2 - (fraction > 0)), k = 31 - exponent;
    } else if (kind == 1) {  // dyadic
      m = fraction > 0 ? 1 : -1, k = 1 - exponent;
    } else if (kind == 2) {
      m = static_cast<int32_t>(random.integer(-65535, 65535)), k = static_cast<int>(random.integer(12, 24));
    } else {  // anything
      m = random.one_of<int32_t>(
          {0, 1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min() + 1, 1 << 30});
      k = random.one_of<int>({-70, -40, -3, 0, 1, 20, 31, 32, 45, 61, 62});
    }
    (is_negative ? negative_multiplier : multiplier).push_back(m);
    (is_negative ? negative_shift : shift).push_back(std::min(k, 62));
  }

  // typical: of the sums. The constants go to `inputs` from `at` on. Outputs have 16 bits only where `is_wide`.
  static Arithmetic random(Random& random, NodeInfo& node, std::vector<Data>& inputs, size_t at, size_t channels,
                           double typical, bool is_wide = false) {
    Arithmetic a;
    a.is_real = random.integer(0, 3) == 0;
    a.rounding = random.one_of<std::string>({"half_up", "half_up", "half_even", "half_away", "toward_zero"});
    a.first = random.integer(0, 2) == 0;
    a.overflow = random.integer(0, 5) == 0 ? "wrap" : "saturate";
    a.accumulator_overflow = random.flag() ? "wrap" : "saturate";
    a.bits = random.integer(0, 3) ? 32 : random.one_of<int64_t>({8, 12, 16, 20, 24, 31, 33, 40, 48, 64});
    a.type = random.flag() ? DataType::uint8 : DataType::int8;
    if (is_wide && random.flag()) a.type = a.type == DataType::uint8 ? DataType::uint16 : DataType::int16;
    a.zero = random.flag() ? a.least() + random.integer(0, a.range()) : 0;
    a.has_low = random.integer(0, 2) == 0, a.has_high = random.integer(0, 3) == 0;
    a.low = a.least() + random.integer(0, a.range()), a.high = a.least() + random.integer(0, a.range());
    if (a.low > a.high) std::swap(a.low, a.high);
    node.attributes.strings = {{"mode", a.is_real ? "float" : "integer"},
                               {"rounding", a.rounding},
                               {"overflow", a.overflow},
                               {"accumulator_overflow", a.accumulator_overflow}};
    node.attributes.ints["accumulator_bits"] = a.bits, node.attributes.ints["zero_point_first"] = a.first;
    node.attributes.ints["y_zero_point"] = a.zero, node.attributes.ints["y_type"] = static_cast<int64_t>(a.type);
    if (a.has_low) node.attributes.ints["y_low"] = a.low;
    if (a.has_high) node.attributes.ints["y_high"] = a.high;
    node.outputs = {a.type};
    a.y_scale = random.flag() ? 0.5f : random.real(0.01f, 2.0f);
    if (a.is_real) node.attributes.floats["y_scale"] = a.y_scale;
    const size_t entries = random.flag() ? channels : 1;
    const bool has_negative = random.integer(0, 3) == 0;
    const int kind = static_cast<int>(random.integer(0, 9));
    for (size_t c = 0; c < entries; ++c) {
      a.scale_channel(random, typical, kind < 5 ? 0 : kind < 7 ? 1 : kind < 9 ? 2 : 3, false);
      if (has_negative) a.scale_channel(random, typical, kind < 7 ? 0 : 3, true);
    }
    const Shape shape = {static_cast<int64_t>(entries)};
    inputs.resize(at + 4);
    if (a.is_real) {
      inputs[at] = Data::of(DataType::float32, shape, a.scale);
      if (has_negative) inputs[at + 2] = Data::of(DataType::float32, shape, a.slope);
    } else {
      inputs[at] = Data::of(DataType::int32, shape, a.multiplier),
      inputs[at + 1] = Data::of(DataType::int32, shape, a.shift);
      if (has_negative) {
        inputs[at + 2] = Data::of(DataType::int32, shape, a.negative_multiplier);
        inputs[at + 3] = Data::of(DataType::int32, shape, a.negative_shift);
      }
    }
    return a;
  }
};

}  // namespace test
