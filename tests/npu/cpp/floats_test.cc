// The operators in floating point on random cases at every precision, against sums and functions one element at a time; numbers are
// rounded here by what float16 and bfloat16 mean, not by their bits.
#include <cmath>

#include "kernels/floats/floats.hpp"
#include "naive.hpp"

namespace test {
namespace {

// The nearest number with `digits` binary digits that is a multiple of `least`, ties to even; infinity beyond `most`.
float nearest(float x, int digits, double least, double most) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double step = std::max(std::ldexp(1.0, std::ilogb(x) + 1 - digits), least);
  const double found = std::nearbyint(static_cast<double>(x) / step) * step;
  return std::fabs(found) > most ? std::copysign(INFINITY, x) : static_cast<float>(std::copysign(found, static_cast<double>(x)));
}

float to_precision(const std::string& precision, float x) {
  if (precision == "float16") return nearest(x, 11, std::ldexp(1.0, -24), 65504.0);
  if (precision == "bfloat16") return nearest(x, 8, std::ldexp(1.0, -133), std::ldexp(255.0, 120));
  return x;
}

std::string random_precision(Random& random) { return random.one_of<std::string>({"float16", "bfloat16", "float32"}); }

// Small, large and special numbers.
float random_number(Random& random) {
  const int64_t kind = random.integer(0, 19);
  if (kind == 0) return random.one_of<float>({0.0f, -0.0f, 1.0f, 65519.0f, 65520.0f, -65536.0f, 3.4e38f, 1e-7f, -3e-8f, 1e-40f});
  if (kind == 1) return static_cast<float>(random.integer(-4096, 4096)) * 0.5f;
  return random.real(-4.0f, 4.0f);
}

Data numbers(Random& random, Shape shape, bool is_tame = false) {
  Data made(DataType::float32, std::move(shape));
  for (int64_t i = 0; i < made.tensor.count(); ++i) {
    made.tensor.as<float>()[i] = is_tame ? random.real(-2.0f, 2.0f) : random_number(random);
  }
  return made;
}

// The elements as a kernel reads them.
std::vector<float> read(const Data& data, const std::string& precision) {
  std::vector<float> found;
  for (int64_t i = 0; i < data.tensor.count(); ++i) found.push_back(to_precision(precision, data.tensor.as<float>()[i]));
  return found;
}

// Compares the bits of numbers; all that are none are alike.
void check_floats_on_all(Case& test, const Shape& shape, const std::vector<float>& wanted, const std::string& precision) {
  test.node.attributes.strings["precision"] = precision;
  test.node.outputs = {DataType::float32};
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    const std::string text = test.key + " " + test.node.attributes.text("function", "") + " " + precision + " isa " +
                             std::to_string(static_cast<int>(isa));
    try {
      const Data found = outputs_of(test).at(0);
      if (found.tensor.shape != shape) {
        fail(text + ": shape " + text_of(found.tensor.shape) + ", not " + text_of(shape));
        continue;
      }
      for (size_t i = 0; i < wanted.size(); ++i) {
        const float y = found.tensor.as<float>()[i], meant = to_precision(precision, wanted[i]);
        if (std::isnan(y) ? std::isnan(meant) : std::memcmp(&y, &meant, sizeof y) == 0) continue;
        fail(text + ": element " + std::to_string(i) + " of " + text_of(shape) + " is " + std::to_string(y) + ", not " +
             std::to_string(meant));
        break;
      }
    } catch (const Error& error) {
      fail(text + ": " + error.what());
    }
  }
}

void two_operands(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatElementwise";
  const std::string precision = random_precision(random);
  const std::string function = random.one_of<std::string>({"Add", "Sub", "Mul", "Div", "DivOrZero", "Min", "Max", "PRelu"});
  const Shape shape{random.integer(1, 4), random.one_of<int64_t>({1, 30, 700})}, own{random.flag() ? shape[1] : 1};
  test.inputs = {numbers(random, shape), numbers(random, own)};
  test.constants = 2;
  test.node.attributes.strings["function"] = function;
  const std::vector<float> left = read(test.inputs[0], precision), right = read(test.inputs[1], precision);
  std::vector<float> wanted;
  for (size_t i = 0; i < left.size(); ++i) {
    const float a = left[i], b = right[i % right.size()];
    float y = a + b;
    if (function == "Sub") y = a - b;
    if (function == "Mul") y = a * b;
    if (function == "Div" || function == "DivOrZero") y = a / b;
    if (function == "DivOrZero" && b == 0) y = 0;
    if (function == "Min" || function == "Max") y = ((a < b) == (function == "Min") ? a : b) + 0.0f;
    if (function == "PRelu") y = a < 0 ? a * b : a;
    wanted.push_back(y);
  }
  check_floats_on_all(test, shape, wanted, precision);
}

void one_operand(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatFunction";
  const std::string precision = random_precision(random);
  const std::string function = random.one_of<std::string>(
      {"Clip", "Neg", "Abs", "Sqrt", "Reciprocal", "LeakyRelu", "HardSigmoid", "HardSwish", "Exp"});
  const Shape shape{random.integer(1, 900)};
  test.inputs = {numbers(random, shape)};
  test.constants = 1;
  test.node.attributes.strings["function"] = function;
  const float alpha = function == "Clip" ? -0.75f : 0.25f, beta = function == "Clip" ? 1.5f : 0.5f;
  test.node.attributes.floats = {{"alpha", alpha}, {"beta", beta}};
  std::vector<float> wanted;
  for (const float x : read(test.inputs[0], precision)) {
    const float gate = std::fmax(0.0f, std::fmin(1.0f, x * alpha + beta));
    float y = std::fmin(std::fmax(x, alpha), beta) + 0.0f;
    if (function == "Neg") y = -x;
    if (function == "Abs") y = std::fabs(x);
    if (function == "Sqrt") y = std::sqrt(x);
    if (function == "Reciprocal") y = 1.0f / x;
    if (function == "LeakyRelu") y = x < 0 ? x * alpha : x;
    if (function == "HardSigmoid") y = gate;
    if (function == "HardSwish") y = x * gate;
    if (function == "Exp") y = qdqtool::exponential(x);
    wanted.push_back(y);
  }
  check_floats_on_all(test, shape, wanted, precision);
}

// e^x is the number next to what the C library says, in float64, or that number.
void exponentials(Random& random) {
  for (int i = 0; i < 2000; ++i) {
    const float x = random.real(-100.0f, 88.0f), found = qdqtool::exponential(x);
    const auto near = static_cast<float>(std::exp(static_cast<double>(x)));
    if (found != near && found != std::nextafter(near, 0.0f) && found != std::nextafter(near, INFINITY)) {
      fail("exponential of " + std::to_string(x) + " is " + std::to_string(found) + ", not " + std::to_string(near));
    }
  }
}

void lookup(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatLookup";
  const bool is_half = random.flag();
  const std::string precision = is_half ? "float16" : "bfloat16";
  // Entry i is the number whose bits are i with the other sign.
  Data table(is_half ? DataType::float16 : DataType::bfloat16, {1 << 16});
  for (int i = 0; i < 1 << 16; ++i) table.tensor.as<uint16_t>()[i] = static_cast<uint16_t>(i ^ 0x8000);
  test.inputs = {numbers(random, {random.integer(1, 900)}), table};
  test.constants = 1;
  std::vector<float> wanted;
  for (const float x : read(test.inputs[0], precision)) wanted.push_back(-x);
  check_floats_on_all(test, test.inputs[0].tensor.shape, wanted, precision);
}

void matmul(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatMatMul";
  const std::string precision = random_precision(random);
  const int64_t batches = random.integer(1, 3), rows = random.integer(1, 9), depth = random.integer(1, 40);
  const int64_t columns = random.one_of<int64_t>({1, 7, 16, 35});
  const bool has_bias = batches == 1 && random.flag(), is_shared = random.flag();
  const Shape a = has_bias ? Shape{rows, depth} : Shape{batches, rows, depth};
  const Shape b = is_shared || has_bias ? Shape{depth, columns} : Shape{batches, depth, columns};
  const Shape shape = has_bias ? Shape{rows, columns} : Shape{batches, rows, columns};
  test.inputs = {numbers(random, a, true), numbers(random, b, true)};
  if (has_bias) test.inputs.push_back(numbers(random, {columns}, true));
  test.constants = random.integer(1, 2);
  const float alpha = has_bias ? 0.7f : 1.0f, beta = has_bias ? 1.3f : 1.0f;
  test.node.attributes.floats = {{"alpha", alpha}, {"beta", beta}};
  const std::vector<float> left = read(test.inputs[0], precision), right = read(test.inputs[1], precision);
  const std::vector<float> bias = has_bias ? read(test.inputs[2], precision) : std::vector<float>{};
  std::vector<float> wanted;
  for (int64_t i = 0; i < batches * rows * columns; ++i) {
    const int64_t row = i / columns, column = i % columns, matrix = b.size() == 3 ? row / rows : 0;
    float total = 0;
    for (int64_t k = 0; k < depth; ++k) {
      const float product = left[static_cast<size_t>(row * depth + k)] *
                            right[static_cast<size_t>((matrix * depth + k) * columns + column)];
      total = total + product;
    }
    if (has_bias) {
      const float scaled = total * alpha, added = bias[static_cast<size_t>(column)] * beta;
      total = scaled + added;
    }
    wanted.push_back(total);
  }
  check_floats_on_all(test, shape, wanted, precision);
}

void softmax(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatSoftmax";
  const std::string precision = random_precision(random);
  const Shape shape{random.integer(1, 3), random.integer(1, 40), random.integer(1, 4)};
  const int64_t axis = random.integer(-3, 2), length = shape[static_cast<size_t>(axis < 0 ? axis + 3 : axis)];
  test.inputs = {numbers(random, shape, true)};
  test.constants = 1;
  test.node.attributes.ints["axis"] = axis;
  std::vector<float> wanted = read(test.inputs[0], precision);
  const int64_t inner = (axis + 3) % 3 == 2 ? 1 : (axis + 3) % 3 == 1 ? shape[2] : shape[1] * shape[2];
  for (int64_t row = 0; row < qdqtool::count_of(shape) / length; ++row) {
    const int64_t first = row / inner * length * inner + row % inner;
    const auto at = [&](int64_t i) -> float& { return wanted[static_cast<size_t>(first + i * inner)]; };
    float most = at(0), total = 0;
    for (int64_t i = 1; i < length; ++i) most = std::fmax(most, at(i));
    for (int64_t i = 0; i < length; ++i) {
      at(i) = to_precision(precision, qdqtool::exponential(to_precision(precision, at(i) - most)));
      total = total + at(i);
    }
    for (int64_t i = 0; i < length; ++i) at(i) = at(i) / total;
  }
  check_floats_on_all(test, shape, wanted, precision);
}

void norm(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatNorm";
  const std::string precision = random_precision(random);
  const Shape shape{random.integer(1, 5), random.integer(1, 50)};
  const bool is_centered = random.flag(), has_shift = random.flag();
  test.inputs = {numbers(random, shape, true), numbers(random, {shape[1]}, true)};
  if (has_shift) test.inputs.push_back(numbers(random, {shape[1]}, true));
  test.constants = 1;
  test.node.attributes.ints["center"] = is_centered;
  test.node.attributes.floats["epsilon"] = 1e-3f;
  std::vector<float> wanted = read(test.inputs[0], precision);
  const std::vector<float> gain = read(test.inputs[1], precision);
  const std::vector<float> shift = has_shift ? read(test.inputs[2], precision) : std::vector<float>{};
  const auto length = static_cast<size_t>(shape[1]);
  const auto n = static_cast<float>(shape[1]);
  for (size_t first = 0; first < wanted.size(); first += length) {
    float sum = 0, squares = 0;
    for (size_t i = 0; i < length; ++i) sum = sum + wanted[first + i];
    const float mean = sum / n;
    for (size_t i = 0; i < length; ++i) {
      if (is_centered) wanted[first + i] = wanted[first + i] - mean;
      const float square = wanted[first + i] * wanted[first + i];
      squares = squares + square;
    }
    const float variance = squares / n + 1e-3f, factor = 1.0f / std::sqrt(variance);
    for (size_t i = 0; i < length; ++i) {
      const float even = wanted[first + i] * factor, scaled = even * gain[i];
      wanted[first + i] = has_shift ? scaled + shift[i] : scaled;
    }
  }
  check_floats_on_all(test, shape, wanted, precision);
}

void reduction(Random& random) {
  Case test;
  test.key = "ai.qdqtool::FloatReduce";
  const std::string precision = random_precision(random);
  const std::string function = random.one_of<std::string>({"Sum", "Mean", "Max", "Min", "SumSquare", "L1", "L2"});
  const Shape shape{random.integer(1, 4), random.integer(1, 30), random.integer(1, 5)};
  test.inputs = {numbers(random, shape, true)};
  test.constants = 1;
  test.node.attributes.strings["function"] = function;
  test.node.attributes.int_lists["axes"] = {-2};
  test.node.attributes.ints["keepdims"] = 0;
  const std::vector<float> x = read(test.inputs[0], precision);
  std::vector<float> wanted;
  for (int64_t i = 0; i < shape[0] * shape[2]; ++i) {
    const int64_t first = i / shape[2] * shape[1] * shape[2] + i % shape[2];
    float total = function == "Max" ? -INFINITY : function == "Min" ? INFINITY : 0.0f;
    for (int64_t k = 0; k < shape[1]; ++k) {
      const float v = x[static_cast<size_t>(first + k * shape[2])], square = v * v;
      if (function == "Max") total = std::fmax(total, v);
      else if (function == "Min") total = std::fmin(total, v);
      else total = total + (function == "SumSquare" || function == "L2" ? square : function == "L1" ? std::fabs(v) : v);
    }
    if (function == "Mean") total = total / static_cast<float>(shape[1]);
    wanted.push_back(function == "L2" ? std::sqrt(total) : total);
  }
  check_floats_on_all(test, {shape[0], shape[2]}, wanted, precision);
}

void quantize(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Quantize";
  const std::string precision = random_precision(random);
  Tail tail = Tail::random(random, test.node, true);
  tail.clamps = false;
  test.node.attributes.ints.erase("y_low"), test.node.attributes.ints.erase("y_high");
  const float scale = random.one_of<float>({0.5f, 1.0f, random.real(0.001f, 1.0f)});
  test.inputs = {numbers(random, {random.integer(1, 900)}, true)};
  test.constants = 1;
  test.node.attributes.strings["precision"] = precision;
  test.node.attributes.floats["y_scale"] = scale;
  std::vector<int64_t> wanted;
  for (const float x : read(test.inputs[0], precision)) wanted.push_back(tail.real(x / scale));
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    check_equal(outputs_of(test).at(0), test.inputs[0].tensor.shape, wanted, test.key + " " + precision);
  }
}

}  // namespace
}  // namespace test

int main(int count, char** arguments) {
  using namespace test;
  Random random(21);
  exponentials(random);
  for (int i = 0, end = rounds(120, count, arguments); i < end; ++i) {
    two_operands(random);
    one_operand(random);
    matmul(random);
    softmax(random);
    norm(random);
    reduction(random);
    quantize(random);
    if (i % 10 == 0) lookup(random);
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
