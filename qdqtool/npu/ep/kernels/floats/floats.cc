// Rounding, reading and writing of floats, in blocks.
#include "kernels/floats/floats.hpp"

namespace qdqtool {

namespace {

template <class T>
struct Widen {
  static QDQTOOL_INLINE void run(const T* __restrict x, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = static_cast<float>(x[i]);
  }
};
struct WidenFloat16 {
  static QDQTOOL_INLINE void run(const uint16_t* __restrict x, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = from_float16(x[i]);
  }
};
struct WidenBfloat16 {
  static QDQTOOL_INLINE void run(const uint16_t* __restrict x, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = from_bfloat16(x[i]);
  }
};
struct NarrowFloat16 {
  static QDQTOOL_INLINE void run(const float* __restrict x, uint16_t* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = float16_bits(x[i]);
  }
};
struct NarrowBfloat16 {
  static QDQTOOL_INLINE void run(const float* __restrict x, uint16_t* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = bfloat16_bits(x[i]);
  }
};
struct RoundFloat16 {
  static QDQTOOL_INLINE void run(const float* __restrict x, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = to_float16(x[i]);
  }
};
struct RoundBfloat16 {
  static QDQTOOL_INLINE void run(const float* __restrict x, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = to_bfloat16(x[i]);
  }
};

// Loop over blocks of `source`, the last one through buffers; `target` may be `source`'s numbers rounded elsewhere.
template <class Loop, class X, class Y>
void convert(Isa isa, const void* source, int64_t count, void* target) {
  const auto* x = static_cast<const X*>(source);
  auto* y = static_cast<Y*>(target);
  X read[kBlock];
  Y written[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t length = std::min<int64_t>(kBlock, count - first);
    const X* const from = whole_block(x + first, length, read);
    if (length == kBlock) {
      run_loop<Loop>(isa, from, y + first);
    } else {
      run_loop<Loop>(isa, from, static_cast<Y*>(written));
      std::memcpy(y + first, written, static_cast<size_t>(length) * sizeof(Y));
    }
  }
}

// The numbers of `source` rounded; `source` may be `target`.
void round_floats(Precision precision, Isa isa, const float* source, int64_t count, float* target) {
  float read[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t length = std::min<int64_t>(kBlock, count - first);
    std::memcpy(read, source + first, static_cast<size_t>(length) * sizeof(float));
    std::memset(read + length, 0, static_cast<size_t>(kBlock - length) * sizeof(float));
    if (precision == Precision::float16) {
      convert<RoundFloat16, float, float>(isa, read, length, target + first);
    } else if (precision == Precision::bfloat16) {
      convert<RoundBfloat16, float, float>(isa, read, length, target + first);
    } else {
      std::memcpy(target + first, read, static_cast<size_t>(length) * sizeof(float));
    }
  }
}

bool holds(Precision precision, DataType type) {  // whether every number of `type` is one of the precision
  if (precision == Precision::float32) return type != DataType::float64;
  return type == (precision == Precision::float16 ? DataType::float16 : DataType::bfloat16);
}

}  // namespace

float exponential(float x) {
  constexpr double coefficients[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                     1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
  double wide = x;
  if (!(wide == wide)) return x;
  wide = wide < -110.0 ? -110.0 : wide > 90.0 ? 90.0 : wide;
  const double steps = std::floor(wide * 1.4426950408889634 + 0.5);
  const double rest = (wide - steps * 0.693147182464599609375) - steps * -1.904654299957768e-09;
  double value = coefficients[0];
  for (int n = 1; n < 13; ++n) value = value * rest + coefficients[n];
  const uint64_t power = static_cast<uint64_t>(static_cast<int64_t>(steps) + 1023) << 52;
  double scale;
  std::memcpy(&scale, &power, sizeof scale);
  return static_cast<float>(value * scale);
}

Precision precision_of(const Attributes& attributes) {
  const std::string word = attributes.text("precision", "float32");
  if (word == "float16") return Precision::float16;
  if (word == "bfloat16") return Precision::bfloat16;
  if (word == "float32") return Precision::float32;
  throw Error("precision is '" + word + "'; one of float16, bfloat16, float32");
}

void read_floats(DataType type, Precision precision, Isa isa, const void* source, int64_t count, float* target) {
  switch (type) {
    case DataType::float32: break;
    case DataType::float16: convert<WidenFloat16, uint16_t, float>(isa, source, count, target); break;
    case DataType::bfloat16: convert<WidenBfloat16, uint16_t, float>(isa, source, count, target); break;
    case DataType::int8: convert<Widen<int8_t>, int8_t, float>(isa, source, count, target); break;
    case DataType::uint8:
    case DataType::boolean: convert<Widen<uint8_t>, uint8_t, float>(isa, source, count, target); break;
    case DataType::int16: convert<Widen<int16_t>, int16_t, float>(isa, source, count, target); break;
    case DataType::uint16: convert<Widen<uint16_t>, uint16_t, float>(isa, source, count, target); break;
    case DataType::int32: convert<Widen<int32_t>, int32_t, float>(isa, source, count, target); break;
    case DataType::uint32: convert<Widen<uint32_t>, uint32_t, float>(isa, source, count, target); break;
    case DataType::int64: convert<Widen<int64_t>, int64_t, float>(isa, source, count, target); break;
    case DataType::uint64: convert<Widen<uint64_t>, uint64_t, float>(isa, source, count, target); break;
    default: throw Error(name_of(type) + " is not read as floats");
  }
  const float* const numbers = type == DataType::float32 ? static_cast<const float*>(source) : target;
  if (type == DataType::float32 || !holds(precision, type)) round_floats(precision, isa, numbers, count, target);
}

void write_floats(DataType type, Precision precision, Isa isa, const float* source, int64_t count, void* target) {
  if (type == DataType::float32) return round_floats(precision, isa, source, count, static_cast<float*>(target));
  float numbers[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t length = std::min<int64_t>(kBlock, count - first);
    round_floats(precision, isa, source + first, length, numbers);
    auto* const y = static_cast<uint16_t*>(target) + first;
    if (type == DataType::float16) {
      if (precision != Precision::float16) round_floats(Precision::float16, isa, numbers, length, numbers);
      convert<NarrowFloat16, float, uint16_t>(isa, numbers, length, y);
    } else {
      if (precision != Precision::bfloat16) round_floats(Precision::bfloat16, isa, numbers, length, numbers);
      convert<NarrowBfloat16, float, uint16_t>(isa, numbers, length, y);
    }
  }
}

void FloatKernel::read(const Tensor& tensor, float* target, const ParallelFor& parallel) const {
  const auto* const bytes = static_cast<const char*>(tensor.data);
  const auto size = static_cast<int64_t>(size_of(tensor.type));
  for_parts(parallel, tensor.count(), 1, [&](int64_t begin, int64_t end) {
    read_floats(tensor.type, precision_, isa_, bytes + begin * size, end - begin, target + begin);
  });
}

void FloatKernel::write(const float* source, Tensor& tensor, const ParallelFor& parallel) const {
  auto* const bytes = static_cast<char*>(tensor.data);
  const auto size = static_cast<int64_t>(size_of(tensor.type));
  for_parts(parallel, tensor.count(), 1, [&](int64_t begin, int64_t end) {
    write_floats(tensor.type, precision_, isa_, source + begin, end - begin, bytes + begin * size);
  });
}

std::vector<float> FloatKernel::constant(const Tensor& tensor) const {
  if (!tensor.data) return {};
  std::vector<float> numbers(static_cast<size_t>(tensor.count()));
  read_floats(tensor.type, precision_, isa_, tensor.data, tensor.count(), numbers.data());
  return numbers;
}

}  // namespace qdqtool
