#include "kernels/requantize/requantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/requantize/lanes_avx2.hpp"
#include "kernels/requantize/lanes_avx512.hpp"
#include "kernels/shared/arguments.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

Rounding rounding_named(const std::string& name) {
  if (name == "half_up") return Rounding::half_up;
  if (name == "half_even") return Rounding::half_even;
  if (name == "half_away") return Rounding::half_away;
  if (name == "toward_zero") return Rounding::toward_zero;
  throw Error("rounding is '" + name + "'; one of half_up, half_even, half_away, toward_zero");
}

bool is_wrap(const Attributes& attributes, const std::string& name, const char* fallback) {
  const std::string text = attributes.text(name, fallback);
  if (text != "wrap" && text != "saturate") throw Error(name + " is '" + text + "'; one of wrap, saturate");
  return text == "wrap";
}

int32_t to_int32(int64_t value, const char* what) {
  if (value < -kInt32Max - 1 || value > kInt32Max) throw Error(std::string(what) + " is outside int32");
  return static_cast<int32_t>(value);
}

int32_t checked_shift(int64_t shift) {
  if (shift > 62) throw Error("shift is " + std::to_string(shift) + "; 62 at most");
  return to_int32(std::max<int64_t>(shift, -64), "shift");  // whatever is shifted left by 64 saturates
}

float checked_scale(float scale, const char* what) {
  if (!(scale > 0) || std::isinf(scale)) throw Error(std::string(what) + " must be positive and finite");
  return scale;
}

// A constant of shape [1] or [count], or no elements at all where the input was left out.
const Tensor* constant(const NodeInfo& node, size_t index, DataType type, size_t count, const char* what) {
  if (!has_input(node.inputs, index)) return nullptr;
  const Tensor& tensor = node.inputs[index];
  check_type(tensor.type, type, what);
  if (!tensor.data) throw Error(std::string(what) + " must be a constant");
  const int64_t found = tensor.count();
  if (tensor.shape.size() > 1 || (found != 1 && found != static_cast<int64_t>(count))) {
    throw Error(std::string(what) + " has the shape " + name_of(tensor.shape) + "; [1] or [" + std::to_string(count) +
                "] is meant");
  }
  return &tensor;
}

template <class T>
T element(const Tensor& tensor, size_t channel) {
  return tensor.as<T>()[tensor.count() == 1 ? 0 : channel];
}

// The smallest shift that is at least one, for the same product: m·2 and k + 1 is what m and k are.
void avoid_zero_shift(int32_t& multiplier, int32_t& shift) {
  while (shift < 1 && multiplier >= -(kInt32Max / 2) && multiplier <= kInt32Max / 2) multiplier *= 2, ++shift;
}

}  // namespace

bool is_real(const Attributes& attributes) {
  const std::string mode = attributes.text("mode", "integer");
  if (mode != "integer" && mode != "float") throw Error("mode is '" + mode + "'; one of integer, float");
  return mode == "float";
}

Limits limits_of(DataType type) {
  switch (type) {
    case DataType::uint8: return {0, 255};
    case DataType::int8: return {-128, 127};
    case DataType::uint16: return {0, 65535};
    case DataType::int16: return {-32768, 32767};
    case DataType::int32: return {-kInt32Max - 1, kInt32Max};
    case DataType::uint32: return {0, int64_t{0xFFFFFFFF}};
    default: throw Error(name_of(type) + " has no limits of an integer");
  }
}

Accumulator Accumulator::of(const Attributes& attributes) {
  Accumulator found;
  const int64_t bits = attributes.integer("accumulator_bits", 32);
  if (bits < 8 || bits > 64) throw Error("accumulator_bits is " + std::to_string(bits) + "; 8 to 64");
  found.bits = static_cast<int>(bits);
  found.wraps = is_wrap(attributes, "accumulator_overflow", "wrap");
  return found;
}

int64_t round_float(float value, Rounding rounding) {
  double whole = value;
  switch (rounding) {
    case Rounding::half_up: whole = std::floor(whole + 0.5); break;
    case Rounding::half_even: whole = std::nearbyint(whole); break;
    case Rounding::half_away: whole = std::round(whole); break;
    case Rounding::toward_zero: whole = std::trunc(whole); break;
  }
  constexpr double limit = 4611686018427387904.0;  // 2^62
  return static_cast<int64_t>(std::min(std::max(whole, -limit), limit));
}

Output Output::of(const NodeInfo& node, const std::vector<DataType>& types) {
  Output found;
  const Attributes& attributes = node.attributes;
  check_outputs(node, 1);
  found.type = node.outputs[0];
  if (std::find(types.begin(), types.end(), found.type) == types.end()) {
    throw Error("the output is " + name_of(found.type) + ", which is not computed");
  }
  const int64_t stated = attributes.integer("y_type", static_cast<int64_t>(found.type));
  if (stated != static_cast<int64_t>(found.type))
    throw Error("y_type is " + std::to_string(stated) + ", the output " + name_of(found.type));
  found.rounding = rounding_named(attributes.text("rounding", "half_up"));
  found.wraps = is_wrap(attributes, "overflow", "saturate");
  found.zero_point_first = attributes.integer("zero_point_first", 0) != 0;
  const Limits limits = limits_of(found.type);
  found.type_low = limits.low, found.type_high = limits.high;
  found.zero_point = attributes.integer("y_zero_point", 0);
  found.has_low = attributes.ints.count("y_low") != 0, found.has_high = attributes.ints.count("y_high") != 0;
  found.low = attributes.integer("y_low", limits.low), found.high = attributes.integer("y_high", limits.high);
  for (const int64_t value : {found.zero_point, found.low, found.high}) {
    if (value < limits.low || value > limits.high)
      throw Error("y_zero_point, y_low or y_high is outside " + name_of(found.type));
  }
  if (found.low > found.high) throw Error("y_low is above y_high");
  return found;
}

namespace {

// What inputs and attributes have in common; the channels are still empty.
Requantizer without_channels(const NodeInfo& node, const std::vector<DataType>& types) {
  Requantizer found;
  found.real = is_real(node.attributes);
  found.isa = choose_isa(node.isa);
  found.accumulator = Accumulator::of(node.attributes);
  found.output = Output::of(node, types);
  if (found.real) found.y_scale = checked_scale(node.attributes.real("y_scale", 0), "y_scale");
  return found;
}

void finish(Scaling& scaling, bool has_negative) {
  avoid_zero_shift(scaling.multiplier, scaling.shift);
  if (!has_negative) scaling.negative_multiplier = scaling.multiplier, scaling.negative_shift = scaling.shift;
  avoid_zero_shift(scaling.negative_multiplier, scaling.negative_shift);
}

}  // namespace

Requantizer Requantizer::of_attributes(const NodeInfo& node, const std::vector<DataType>& types) {
  Requantizer found = without_channels(node, types);
  Scaling scaling;
  if (found.real) {
    scaling.scale = checked_scale(node.attributes.real("scale", 0), "scale");
  } else {
    scaling.multiplier = to_int32(node.attributes.integer("multiplier"), "multiplier");
    scaling.shift = checked_shift(node.attributes.integer("shift"));
    finish(scaling, false);
  }
  found.channels.push_back(scaling);
  return found;
}

Requantizer Requantizer::of_inputs(const NodeInfo& node, size_t first, size_t channel_count,
                                   const std::vector<DataType>& types) {
  Requantizer found = without_channels(node, types);
  const DataType type = found.real ? DataType::float32 : DataType::int32;
  const Tensor* multiplier = constant(node, first, type, channel_count, found.real ? "scale" : "multiplier");
  const Tensor* shift = constant(node, first + 1, DataType::int32, channel_count, "shift");
  const Tensor* negative =
      constant(node, first + 2, type, channel_count, found.real ? "negative_slope" : "negative_multiplier");
  const Tensor* negative_shift = constant(node, first + 3, DataType::int32, channel_count, "negative_shift");
  if (!multiplier) throw Error(found.real ? "scale is missing" : "multiplier is missing");
  if (found.real == (shift != nullptr)) throw Error(found.real ? "float mode has no shift" : "shift is missing");
  if ((negative && !found.real) != (negative_shift != nullptr)) {
    throw Error("negative_multiplier and negative_shift belong together, in integer mode");
  }
  found.has_negative = negative != nullptr;
  const auto differs = [](const Tensor* tensor) { return tensor && tensor->count() > 1; };
  const bool is_one = !differs(multiplier) && !differs(shift) && !differs(negative) && !differs(negative_shift);
  found.channels.resize(is_one ? 1 : channel_count);
  for (size_t c = 0; c < found.channels.size(); ++c) {
    Scaling& scaling = found.channels[c];
    if (found.real) {
      scaling.scale = checked_scale(element<float>(*multiplier, c), "scale");
      if (negative) scaling.negative_slope = element<float>(*negative, c);
      if (std::isnan(scaling.negative_slope) || std::isinf(scaling.negative_slope))
        throw Error("negative_slope must be finite");
      continue;
    }
    scaling.multiplier = element<int32_t>(*multiplier, c), scaling.shift = checked_shift(element<int32_t>(*shift, c));
    if (negative) {
      scaling.negative_multiplier = element<int32_t>(*negative, c);
      scaling.negative_shift = checked_shift(element<int32_t>(*negative_shift, c));
    }
    finish(scaling, found.has_negative);
  }
  return found;
}

Requantizer::Path Requantizer::plan(const std::vector<int64_t>& bounds) const {
  constexpr int64_t register_limit = int64_t{1} << 31, result_limit = int64_t{1} << 30;
  bool is_narrow = true, is_high = output.rounding == Rounding::half_up, is_wide = true;
  for (size_t c = 0; c < channels.size(); ++c) {
    // Bounds of the parts of a sum that lie below zero and above are the same: |sum| <= bound.
    int64_t bound = bounds[bounds.size() == 1 ? 0 : c];
    if (channels.size() == 1) bound = *std::max_element(bounds.begin(), bounds.end());
    if (accumulator.bits <= 32 && (accumulator.wraps || bound > register_limit)) {
      bound = std::min(bound, int64_t{1} << (accumulator.bits - 1));
    }
    if (bound > register_limit) return Path::scalar;
    const Scaling& s = channels[c];
    if (real) {
      const double slope = has_negative ? std::max(1.0, std::fabs(static_cast<double>(s.negative_slope))) : 1.0;
      const double most = static_cast<double>(bound) * s.scale * slope / y_scale;
      if (output.wraps && !(most < static_cast<double>(result_limit / 2))) return Path::scalar;
      continue;
    }
    for (const auto& [multiplier, shift] :
         {std::pair{s.multiplier, s.shift}, std::pair{s.negative_multiplier, s.negative_shift}}) {
      if (shift < 1) return Path::scalar;
      const Int128 most = Int128{bound} * std::abs(int64_t{multiplier});
      is_narrow = is_narrow && shift <= 30 && most + (Int128{1} << shift) < kInt32Max;
      is_high = is_high && shift >= 32;
      is_wide = is_wide && (most >> shift) < result_limit;
    }
  }
  if (real) return Path::real;
  return is_narrow ? Path::narrow : is_high ? Path::high : is_wide ? Path::wide : Path::scalar;
}

namespace {

template <class T>
void scalar_row(const Requantizer& r, const int32_t* sums, size_t count, size_t channel, T* y) {
  for (size_t i = 0; i < count; ++i) y[i] = static_cast<T>(r(sums[i], channel));
}

template <Rounding rounding, class T>
void integer_row(const Requantizer& r, const int32_t* sums, size_t count, size_t channel, T* y) {
  const Scaling& s = r.scaling(channel);
  const int64_t first = r.output.zero_point_first ? r.output.zero_point : 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t sum = r.accumulator.hold(sums[i]);
    const int64_t m = sum < 0 ? s.negative_multiplier : s.multiplier;
    const int64_t k = sum < 0 ? s.negative_shift : s.shift;
    y[i] = static_cast<T>(r.output.fit(scalar::round_shifted(rounding, sum * m, k, first) + r.output.zero_point));
  }
}

template <class T>
void portable_row(const Requantizer& r, const int32_t* sums, size_t count, size_t channel, T* y,
                  Requantizer::Path path) {
  if (path == Requantizer::Path::scalar || path == Requantizer::Path::real)
    return scalar_row(r, sums, count, channel, y);
  switch (r.output.rounding) {
    case Rounding::half_up: return integer_row<Rounding::half_up>(r, sums, count, channel, y);
    case Rounding::half_even: return integer_row<Rounding::half_even>(r, sums, count, channel, y);
    case Rounding::half_away: return integer_row<Rounding::half_away>(r, sums, count, channel, y);
    case Rounding::toward_zero: return integer_row<Rounding::toward_zero>(r, sums, count, channel, y);
  }
}

#if QDQTOOL_X86
QDQTOOL_AVX512 void avx512_row(const Requantizer& r, const int32_t* sums, size_t count, size_t channel, uint8_t* y,
                               Requantizer::Path path) {
  avx512::row(r, sums, count, channel, y, path);
}

QDQTOOL_AVX2 void avx2_row(const Requantizer& r, const int32_t* sums, size_t count, size_t channel, uint8_t* y,
                           Requantizer::Path path) {
  avx2::row(r, sums, count, channel, y, path);
}
#endif

}  // namespace

void Requantizer::row(const int32_t* sums, size_t count, size_t channel, void* y, Path path) const {
#if QDQTOOL_X86
  if (path != Path::scalar && isa == Isa::avx512)
    return avx512_row(*this, sums, count, channel, static_cast<uint8_t*>(y), path);
  if (path != Path::scalar && isa == Isa::avx2)
    return avx2_row(*this, sums, count, channel, static_cast<uint8_t*>(y), path);
#endif
  if (output.type == DataType::int8) return portable_row(*this, sums, count, channel, static_cast<int8_t*>(y), path);
  portable_row(*this, sums, count, channel, static_cast<uint8_t*>(y), path);
}

}  // namespace qdqtool
