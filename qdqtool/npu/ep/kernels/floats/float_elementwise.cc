// Element by element in floating point: FloatElementwise of two tensors, FloatWhere, FloatFunction and FloatLookup of one, FloatCast
// between types.
#include "kernels/floats/floats.hpp"
#include "kernels/shared/broadcast.hpp"

namespace qdqtool {

namespace {

// A zero that a maximum or minimum writes is positive.
QDQTOOL_INLINE float positive_zero(float x) { return x + 0.0f; }

enum class Pair { add, sub, mul, div, div_or_zero, min, max, prelu, equal, greater, greater_or_equal, less, less_or_equal, unordered };

template <Pair pair>
struct PairLoop {
  static QDQTOOL_INLINE float one(float a, float b) {
    if (pair == Pair::add) return a + b;
    if (pair == Pair::sub) return a - b;
    if (pair == Pair::mul) return a * b;
    if (pair == Pair::div) return a / b;
    if (pair == Pair::div_or_zero) return b == 0.0f ? 0.0f : a / b;
    if (pair == Pair::min) return positive_zero(a < b || a != a ? a : b);
    if (pair == Pair::max) return positive_zero(a > b || a != a ? a : b);
    if (pair == Pair::prelu) return a < 0.0f ? a * b : a;
    if (pair == Pair::equal) return a == b ? 1.0f : 0.0f;
    if (pair == Pair::greater) return a > b ? 1.0f : 0.0f;
    if (pair == Pair::greater_or_equal) return a >= b ? 1.0f : 0.0f;
    if (pair == Pair::less) return a < b ? 1.0f : 0.0f;
    if (pair == Pair::unordered) return a != a || b != b ? 1.0f : 0.0f;
    return a <= b ? 1.0f : 0.0f;
  }
  static QDQTOOL_INLINE void run(const float* __restrict a, const float* __restrict b, float* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = one(a[i], b[i]);
  }
};

using PairRun = void (*)(Isa, const float*, const float*, float*);
template <Pair pair>
void run_pair(Isa isa, const float* a, const float* b, float* y) {
  run_loop<PairLoop<pair>>(isa, a, b, y);
}

PairRun pair_named(const std::string& word) {
  static const std::map<std::string, PairRun> known = {
      {"Add", run_pair<Pair::add>},         {"Sub", run_pair<Pair::sub>},
      {"Mul", run_pair<Pair::mul>},         {"Div", run_pair<Pair::div>},
      {"DivOrZero", run_pair<Pair::div_or_zero>},
      {"Min", run_pair<Pair::min>},         {"Max", run_pair<Pair::max>},
      {"PRelu", run_pair<Pair::prelu>},     {"Equal", run_pair<Pair::equal>},
      {"Greater", run_pair<Pair::greater>}, {"GreaterOrEqual", run_pair<Pair::greater_or_equal>},
      {"Less", run_pair<Pair::less>},       {"LessOrEqual", run_pair<Pair::less_or_equal>},
      {"Unordered", run_pair<Pair::unordered>},
  };
  const auto found = known.find(word);
  if (found == known.end()) throw Error("function is '" + word + "', which is none of two numbers");
  return found->second;
}

// A block of a broadcast operand, as rounded floats.
const float* read_block(const Broadcast& broadcast, size_t operand, const Tensor& tensor, Precision precision, Isa isa, int64_t first,
                        int64_t length, float* numbers) {
  if (size_of(tensor.type) == 4) {
    float buffer[kBlock];
    read_floats(tensor.type, precision, isa, broadcast.block(operand, tensor.as<float>(), first, length, buffer), kBlock, numbers);
  } else {
    uint16_t buffer[kBlock];
    read_floats(tensor.type, precision, isa, broadcast.block(operand, tensor.as<uint16_t>(), first, length, buffer), kBlock, numbers);
  }
  return numbers;
}

class Elementwise : public Kernel {
 public:
  explicit Elementwise(const NodeInfo& node)
      : precision_(precision_of(node.attributes)), isa_(choose_isa(node.isa)), run_(pair_named(node.attributes.text("function", ""))),
        output_(node.outputs.at(0)) {
    check_outputs(node, 1);
    if (!is_float(output_) && output_ != DataType::boolean) throw Error("the output is " + name_of(output_));
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    for (const Tensor& input : inputs) {
      if (!is_float(input.type)) throw Error("an input is " + name_of(input.type) + ", no float");
    }
    return {broadcast_shape(inputs[0].shape, inputs[1].shape)};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor& parallel) const override {
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    const Broadcast broadcast(inputs[0].shape, inputs[1].shape);
    auto* const bytes = static_cast<char*>(outputs[0].data);
    const auto size = static_cast<int64_t>(size_of(output_));
    for_parts(parallel, blocks_of(count), kBlock, [&](int64_t begin, int64_t end) {
      float a[kBlock], b[kBlock], y[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, length = std::min<int64_t>(kBlock, count - first);
        read_block(broadcast, 0, inputs[0], precision_, isa_, first, length, a);
        read_block(broadcast, 1, inputs[1], precision_, isa_, first, length, b);
        run_(isa_, a, b, y);
        if (output_ == DataType::boolean) {
          for (int64_t i = 0; i < length; ++i) bytes[first + i] = y[i] != 0.0f;
        } else {
          write_floats(output_, precision_, isa_, y, length, bytes + first * size);
        }
      }
    });
  }

 private:
  const Precision precision_;
  const Isa isa_;
  const PairRun run_;
  const DataType output_;
};

// y = condition ? a : b.
class FloatWhere : public FloatKernel {
 public:
  using FloatKernel::FloatKernel;

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 3, 3);
    check_type(inputs[0].type, DataType::boolean, "the condition");
    if (!is_float(inputs[1].type) || !is_float(inputs[2].type)) throw Error("it chooses between other than floats");
    return {broadcast_shape(inputs[0].shape, broadcast_shape(inputs[1].shape, inputs[2].shape))};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor& parallel) const override {
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    const Shape& shape = outputs[0].shape;
    const Broadcast conditions(inputs[0].shape, shape), first_choice(inputs[1].shape, shape), second_choice(inputs[2].shape, shape);
    auto* const bytes = static_cast<char*>(outputs[0].data);
    const auto size = static_cast<int64_t>(size_of(output_));
    for_parts(parallel, blocks_of(count), kBlock, [&](int64_t begin, int64_t end) {
      float a[kBlock], b[kBlock];
      uint8_t buffer[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, length = std::min<int64_t>(kBlock, count - first);
        const uint8_t* const chosen = conditions.block(0, inputs[0].as<uint8_t>(), first, length, buffer);
        read_block(first_choice, 0, inputs[1], precision_, isa_, first, length, a);
        read_block(second_choice, 0, inputs[2], precision_, isa_, first, length, b);
        for (int64_t i = 0; i < length; ++i) a[i] = chosen[i] ? a[i] : b[i];
        write_floats(output_, precision_, isa_, a, length, bytes + first * size);
      }
    });
  }
};

// Kernels of one tensor, block by block: Derived::compute(float* numbers, int64_t count) in place.
template <class Derived>
class Unary : public FloatKernel {
 public:
  using FloatKernel::FloatKernel;

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 2);
    check_floats(inputs, 1);
    return {inputs[0].shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor& parallel) const override {
    const int64_t count = inputs[0].count();
    const auto *x = static_cast<const char*>(inputs[0].data);
    auto* const y = static_cast<char*>(outputs[0].data);
    const auto from = static_cast<int64_t>(size_of(inputs[0].type)), to = static_cast<int64_t>(size_of(output_));
    for_parts(parallel, blocks_of(count), kBlock, [&](int64_t begin, int64_t end) {
      float numbers[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, length = std::min<int64_t>(kBlock, count - first);
        read_floats(inputs[0].type, precision_, isa_, x + first * from, length, numbers);
        std::fill(numbers + length, numbers + kBlock, 0.0f);
        static_cast<const Derived*>(this)->compute(numbers);
        write_floats(output_, precision_, isa_, numbers, length, y + first * to);
      }
    });
  }
};

enum class One { clip, neg, abs, sqrt, reciprocal, leaky, floor, ceil, round, sign, soft_sign, hard_sigmoid, hard_swish, threshold,
                 exp, cube, inverse_sqrt };

template <One one>
struct OneLoop {
  static QDQTOOL_INLINE float value(float x, float alpha, float beta) {
    if (one == One::clip) {
      const float low = x < alpha ? alpha : x;
      return positive_zero(low > beta ? beta : low);
    }
    if (one == One::neg) return -x;
    if (one == One::abs) return std::fabs(x);
    if (one == One::sqrt) return std::sqrt(x);
    if (one == One::reciprocal) return 1.0f / x;
    if (one == One::leaky) return x < 0.0f ? x * alpha : x;
    if (one == One::floor) return std::floor(x);
    if (one == One::ceil) return std::ceil(x);
    if (one == One::round) return std::nearbyint(x);
    if (one == One::sign) return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : positive_zero(x);
    if (one == One::soft_sign) return x * (1.0f / (1.0f + std::fabs(x)));
    if (one == One::threshold) return x > alpha ? x : 0.0f;
    if (one == One::exp) return exponential(x);
    if (one == One::cube) return x * x * x;
    if (one == One::inverse_sqrt) return 1.0f / std::sqrt(x);
    const float line = x * alpha + beta, below = line > 1.0f ? 1.0f : line, gate = below < 0.0f ? 0.0f : below;
    return one == One::hard_swish ? x * gate : gate;
  }
  static QDQTOOL_INLINE void run(float* __restrict x, float alpha, float beta) {
    for (int i = 0; i < kBlock; ++i) x[i] = value(x[i], alpha, beta);
  }
};

using OneRun = void (*)(Isa, float*, float, float);
template <One one>
void run_one(Isa isa, float* x, float alpha, float beta) {
  run_loop<OneLoop<one>>(isa, x, alpha, beta);
}

OneRun one_named(const std::string& word) {
  static const std::map<std::string, OneRun> known = {
      {"Clip", run_one<One::clip>},
      {"Neg", run_one<One::neg>},
      {"Abs", run_one<One::abs>},
      {"Sqrt", run_one<One::sqrt>},
      {"Reciprocal", run_one<One::reciprocal>},
      {"LeakyRelu", run_one<One::leaky>},
      {"Floor", run_one<One::floor>},
      {"Ceil", run_one<One::ceil>},
      {"Round", run_one<One::round>},
      {"Sign", run_one<One::sign>},
      {"Softsign", run_one<One::soft_sign>},
      {"HardSigmoid", run_one<One::hard_sigmoid>},
      {"HardSwish", run_one<One::hard_swish>},
      {"ThresholdedRelu", run_one<One::threshold>},
      {"Exp", run_one<One::exp>},
      {"Cube", run_one<One::cube>},
      {"InverseSqrt", run_one<One::inverse_sqrt>},
  };
  const auto found = known.find(word);
  if (found == known.end()) throw Error("function is '" + word + "', which is none of one number");
  return found->second;
}

class Function : public Unary<Function> {
 public:
  explicit Function(const NodeInfo& node)
      : Unary(node), run_(one_named(node.attributes.text("function", ""))), alpha_(node.attributes.real("alpha", 0)),
        beta_(node.attributes.real("beta", 0)) {}
  void compute(float* numbers) const { run_(isa_, numbers, alpha_, beta_); }

 private:
  const OneRun run_;
  const float alpha_, beta_;
};

// y = table[the 16 bits of x].
class FloatLookup : public Unary<FloatLookup> {
 public:
  explicit FloatLookup(const NodeInfo& node) : Unary(node) {
    check_inputs(node.inputs, 2, 2);
    const Tensor& table = node.inputs[1];
    check_type(table.type, precision_ == Precision::float16 ? DataType::float16 : DataType::bfloat16, "the table");
    if (precision_ == Precision::float32) throw Error("a table of float32 is not computed");
    if (!table.data) throw Error("the table must be a constant");
    if (table.shape != Shape{1 << 16}) throw Error("the table has the shape " + name_of(table.shape) + "; [65536] is meant");
    table_ = constant(table);
  }
  void compute(float* numbers) const {
    const bool half = precision_ == Precision::float16;
    for (int i = 0; i < kBlock; ++i) numbers[i] = table_[half ? float16_bits(numbers[i]) : bfloat16_bits(numbers[i])];
  }

 private:
  std::vector<float> table_;
};

// Numbers of any type as floats.
class Cast : public FloatKernel {
 public:
  using FloatKernel::FloatKernel;
  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 1, 1);
    if (inputs[0].type == DataType::float64) throw Error("input 0 is float64");
    count_of(inputs[0].shape);
    return {inputs[0].shape};
  }
  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*, const ParallelFor& parallel) const override {
    const auto *x = static_cast<const char*>(inputs[0].data);
    auto* const y = static_cast<char*>(outputs[0].data);
    const auto from = static_cast<int64_t>(size_of(inputs[0].type)), to = static_cast<int64_t>(size_of(output_));
    const int64_t count = inputs[0].count();
    for_parts(parallel, blocks_of(count), kBlock, [&](int64_t begin, int64_t end) {
      float numbers[kBlock];
      for (int64_t first = begin * kBlock; first < std::min(count, end * kBlock); first += kBlock) {
        const int64_t length = std::min<int64_t>(kBlock, count - first);
        read_floats(inputs[0].type, precision_, isa_, x + first * from, length, numbers);
        write_floats(output_, precision_, isa_, numbers, length, y + first * to);
      }
    });
  }
};

}  // namespace

const Operator float_elementwise{"FloatElementwise", {2, 2}, floating({{"function", type_string}}), shapes::broadcast,
                                 make_kernel<Elementwise>};
const Operator float_where{"FloatWhere", {3, 3}, floating({}), shapes::broadcast, make_kernel<FloatWhere>};
const Operator float_function{"FloatFunction", {1, 1}, floating({{"function", type_string}, {"alpha", type_float},
                              {"beta", type_float}}), shapes::as_input, make_kernel<Function>};
const Operator float_lookup{"FloatLookup", {2, 2}, floating({}), shapes::as_input, make_kernel<FloatLookup>};
const Operator float_cast{"FloatCast", {1, 1}, floating({}), shapes::as_input, make_kernel<Cast>};

}  // namespace qdqtool
