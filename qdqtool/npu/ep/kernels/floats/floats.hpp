// Floating point of the NPU (docs/adr/0021): float32, 16-bit and bfloat16 tensors, whose numbers are rounded to a precision when they
// are read and when they are written. Between the two all is float32.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels/shared/arguments.hpp"
#include "kernels/shared/lanes.hpp"

namespace qdqtool {

enum class Precision { float16, bfloat16, float32 };

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The nearest number of float16, halves to even; from 65520 on infinity.
QDQTOOL_INLINE float to_float16(float x) {
  const uint32_t u = bits_of(x), sign = u & 0x80000000u, a = u ^ sign;
  const uint32_t even = (a + 0xfffu + ((a >> 13) & 1u)) & ~0x1fffu;
  const uint32_t large = even >= 0x47800000u ? 0x7f800000u : even;
  const float small = (float_of(a) + 0.5f) - 0.5f;  // below 2^-14: a multiple of 2^-24
  const uint32_t finite = a < 0x38800000u ? bits_of(small) : large;
  return float_of((a >= 0x7f800000u ? a : finite) | sign);
}

// The nearest number of bfloat16, halves to even.
QDQTOOL_INLINE float to_bfloat16(float x) {
  const uint32_t u = bits_of(x), sign = u & 0x80000000u, a = u ^ sign;
  const uint32_t even = (a + 0x7fffu + ((a >> 16) & 1u)) & ~0xffffu;
  return float_of((a > 0x7f800000u ? 0x7fc00000u : even) | sign);
}

// The bits of a number of float16, and back.
QDQTOOL_INLINE uint16_t float16_bits(float x) {
  const uint32_t u = bits_of(x), a = u & 0x7fffffffu;
  const float bounded = a < 0x38800000u ? float_of(a) : 0.0f;
  const auto small = static_cast<uint32_t>(static_cast<int32_t>(bounded * 16777216.0f));
  const uint32_t normal = a == 0x7f800000u ? 0x7c00u : a > 0x7f800000u ? 0x7e00u : (a - 0x38000000u) >> 13;
  return static_cast<uint16_t>((u >> 16 & 0x8000u) | (a < 0x38800000u ? small : normal));
}
QDQTOOL_INLINE float from_float16(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, m = h & 0x7fffu;
  const float small = static_cast<float>(static_cast<int32_t>(m)) * (1.0f / 16777216.0f);
  const uint32_t normal = (m << 13) + (m >= 0x7c00u ? 0x70000000u : 0x38000000u);
  return float_of((m < 0x400u ? bits_of(small) : normal) | sign);
}
QDQTOOL_INLINE uint16_t bfloat16_bits(float x) { return static_cast<uint16_t>(bits_of(x) >> 16); }
QDQTOOL_INLINE float from_bfloat16(uint16_t b) { return float_of(uint32_t{b} << 16); }

// e^x in float64 without a library: k = floor(x·log2 e + 1/2), r = x - k·ln 2, (Σ r^n/n!)·2^k, rounded to float32 once.
float exponential(float x);

inline bool is_float(DataType type) {
  return type == DataType::float32 || type == DataType::float16 || type == DataType::bfloat16;
}
Precision precision_of(const Attributes& attributes);  // `precision`; Error where it is none of the three

// `count` elements at `source` as float32, rounded. Any type of numbers.
void read_floats(DataType type, Precision precision, Isa isa, const void* source, int64_t count, float* target);
// `count` numbers, rounded to the precision, then to the type.
void write_floats(DataType type, Precision precision, Isa isa, const float* source, int64_t count, void* target);

inline int64_t blocks_of(int64_t count) { return (count + kBlock - 1) / kBlock; }

// What every operator in floating point has: a precision, and one output whose type is y_type.
class FloatKernel : public Kernel {
 public:
  explicit FloatKernel(const NodeInfo& node)
      : precision_(precision_of(node.attributes)), isa_(choose_isa(node.isa)), output_(node.outputs.at(0)) {
    check_outputs(node, 1);
    if (!is_float(output_)) throw Error("the output is " + name_of(output_) + ", no float");
  }

 protected:
  // Throws Error unless inputs [0, count) are floats where they are there.
  static void check_floats(const std::vector<Tensor>& inputs, size_t count) {
    for (size_t i = 0; i < count && i < inputs.size(); ++i) {
      if (has_input(inputs, i) && !is_float(inputs[i].type)) {
        throw Error("input " + std::to_string(i) + " is " + name_of(inputs[i].type) + ", no float");
      }
      if (has_input(inputs, i)) count_of(inputs[i].shape);
    }
  }
  // All of a tensor into `target`, in parts.
  void read(const Tensor& tensor, float* target, const ParallelFor& parallel) const;
  // All of the output from `source`, in parts.
  void write(const float* source, Tensor& tensor, const ParallelFor& parallel) const;
  // A constant, read once; empty for what is computed.
  std::vector<float> constant(const Tensor& tensor) const;

  static size_t floats(int64_t count) { return static_cast<size_t>(multiply_sizes(add_sizes(count, 16), sizeof(float))); }

  const Precision precision_;
  const Isa isa_;
  const DataType output_;
};

// Memory for floats, handed out piece by piece as FloatKernel::floats() counted them.
class FloatMemory {
 public:
  explicit FloatMemory(void* memory) : at_(static_cast<float*>(memory)) {}
  float* take(int64_t count) {
    float* const piece = at_;
    at_ += count + 16;
    return piece;
  }

 private:
  float* at_;
};

}  // namespace qdqtool
