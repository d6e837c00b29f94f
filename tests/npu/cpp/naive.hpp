// The arithmetic of sums as it is said, for tests: one element at a time, rational numbers as two integers.
#pragma once
#include <cmath>

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

// The choices behind a sum, and their attributes.
struct Tail {
  std::string rounding, overflow;
  bool first = false, clamps = false;
  int64_t zero = 0, low = 0, high = 0;
  DataType type = DataType::uint8;

  int64_t range() const { return type == DataType::int8 || type == DataType::uint8 ? 255 : 65535; }
  int64_t least() const { return type == DataType::int8 || type == DataType::int16 ? -(range() + 1) / 2 : 0; }

  // Outputs have 16 bits only where `is_wide`.
  static Tail random(Random& random, NodeInfo& node, bool is_wide = false) {
    Tail tail;
    tail.rounding = random.one_of<std::string>({"half_up", "half_even", "half_away", "toward_zero"});
    tail.overflow = random.integer(0, 4) == 0 ? "wrap" : "saturate";
    tail.first = random.flag();
    tail.type = random.flag() ? DataType::uint8 : DataType::int8;
    if (is_wide && random.flag()) tail.type = tail.type == DataType::uint8 ? DataType::uint16 : DataType::int16;
    const int64_t least = tail.least(), range = tail.range();
    tail.zero = least + random.integer(0, range);
    tail.clamps = random.integer(0, 2) == 0;
    node.attributes.strings["rounding"] = tail.rounding;
    node.attributes.strings["overflow"] = tail.overflow;
    node.attributes.ints["zero_point_first"] = tail.first;
    node.attributes.ints["y_zero_point"] = tail.zero;
    node.attributes.ints["y_type"] = static_cast<int64_t>(tail.type);
    if (tail.clamps) {
      tail.low = least + random.integer(0, range * 3 / 4), tail.high = random.integer(tail.low, least + range);
      node.attributes.ints["y_low"] = tail.low, node.attributes.ints["y_high"] = tail.high;
    }
    node.outputs = {tail.type};
    return tail;
  }

  int64_t fit(Wide value) const {
    if (clamps) value = value < low ? low : value > high ? high : value;
    const int64_t first_one = least(), last = first_one + range();
    if (overflow == "wrap") return static_cast<int64_t>(value - (range() + 1) * floor_divide(value - first_one, range() + 1));
    return static_cast<int64_t>(value < first_one ? Wide{first_one} : value > last ? Wide{last} : value);
  }
  int64_t ratio(Wide p, Wide q) const {
    return first ? fit(rounded(p + q * zero, q, rounding)) : fit(rounded(p, q, rounding) + zero);
  }
  int64_t real(float value) const {
    double whole = first ? static_cast<double>(value + static_cast<float>(zero)) : static_cast<double>(value);
    if (rounding == "half_up") whole = std::floor(whole + 0.5);
    if (rounding == "half_even") whole = std::rint(whole);
    if (rounding == "half_away") whole = std::round(whole);
    if (rounding == "toward_zero") whole = std::trunc(whole);
    return fit(static_cast<Wide>(static_cast<int64_t>(std::fmin(std::fmax(whole, -4e18), 4e18))) + (first ? 0 : zero));
  }
};

// Index of the element of an operand that element i of the broadcast shape reads.
inline int64_t broadcast_index(const Shape& own, const Shape& whole, int64_t i) {
  int64_t index = 0, step = 1;
  for (size_t k = 0; k < whole.size(); ++k) {
    const int64_t length = whole[whole.size() - 1 - k], at = i % length;
    i /= length;
    if (k >= own.size()) continue;
    const int64_t mine = own[own.size() - 1 - k];
    index += (mine == 1 ? 0 : at) * step;
    step *= mine;
  }
  return index;
}

}  // namespace test
