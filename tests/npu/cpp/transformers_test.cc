// BlockedMatMul, Norm, RotaryEmbedding, Resize and Div on random cases of 8 and 16 bits, against the arithmetic of naive.hpp.
#include <cmath>

#include "naive.hpp"

namespace test {
namespace {

DataType random_type(Random& random) {
  return random.one_of({DataType::uint8, DataType::int8, DataType::uint16, DataType::int16});
}

int64_t random_zero(Random& random, DataType type) {
  const bool is_byte = type == DataType::uint8 || type == DataType::int8;
  const bool is_signed = type == DataType::int8 || type == DataType::int16;
  const int64_t most = is_byte ? 255 : 65535;
  return random.one_of<int64_t>({0, random.integer(0, most), (most + 1) / 2, most}) - (is_signed ? (most + 1) / 2 : 0);
}

Data random_floats(Random& random, Shape shape, float low, float high) {
  Data made(DataType::float32, std::move(shape));
  for (int64_t i = 0; i < made.tensor.count(); ++i) made.tensor.as<float>()[i] = random.real(low, high);
  return made;
}

void check_on_all(Case& test, const Shape& shape, const std::vector<int64_t>& wanted) {
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    std::string text = test.key + " isa " + std::to_string(static_cast<int>(isa));
    for (const auto& [name, value] : test.node.attributes.strings) text += " " + name + "=" + value;
    for (const auto& [name, value] : test.node.attributes.ints) text += " " + name + "=" + std::to_string(value);
    for (const Data& input : test.inputs) text += " " + text_of(input.tensor.shape);
    try {
      check_equal(outputs_of(test).at(0), shape, wanted, text);
    } catch (const Error& error) {
      fail(text + ": " + error.what());
    }
  }
}

// Sums of blocks in float32, one after the other.
void blocked_matmul(Random& random) {
  Case test;
  test.key = "ai.qdqtool::BlockedMatMul";
  const Tail tail = Tail::random(random, test.node, true);
  const DataType a_type = random_type(random), b_type = random.flag() ? DataType::uint8 : DataType::int8;
  const int64_t rows = random.integer(1, 20), depth = random.integer(1, 90), columns = random.one_of<int64_t>({1, 5, 16, 37});
  const int64_t size = random.one_of<int64_t>({1, 7, 16, 32, depth}), blocks = (depth + size - 1) / size;
  const int64_t zero = random_zero(random, a_type);
  const float y_scale = random.real(0.05f, 2.0f) * static_cast<float>(depth);
  const bool has_bias = random.flag();
  test.inputs = {Data::random(random, a_type, {rows, depth}), Data::random(random, b_type, {depth, columns}),
                 random_floats(random, {blocks, columns}, 1e-5f, 0.01f), Data::random(random, b_type, {blocks, columns})};
  if (has_bias) test.inputs.push_back(random_floats(random, {columns}, -3.0f, 3.0f));
  test.constants = 1;
  test.node.attributes.ints["block_size"] = size, test.node.attributes.ints["a_zero_point"] = zero;
  test.node.attributes.floats["y_scale"] = y_scale;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t row = i / columns, column = i % columns;
    float total = 0;
    for (int64_t g = 0; g < blocks; ++g) {
      int64_t sum = 0;
      for (int64_t k = g * size; k < std::min(depth, (g + 1) * size); ++k) {
        sum += (test.inputs[0].at(row * depth + k) - zero) *
               (test.inputs[1].at(k * columns + column) - test.inputs[3].at(g * columns + column));
      }
      const float scaled = static_cast<float>(sum) * test.inputs[2].tensor.as<float>()[g * columns + column];
      total = total + scaled;
    }
    if (has_bias) total = total + test.inputs[4].tensor.as<float>()[column];
    wanted.push_back(tail.real(total / y_scale));
  }
  check_on_all(test, {rows, columns}, wanted);
}

// Groups of a [N, C, L] tensor: from an axis on, or shares of the channels.
void norm(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Norm";
  const Tail tail = Tail::random(random, test.node, true);
  const DataType type = random_type(random);
  const int64_t groups = random.one_of<int64_t>({0, 0, 1, 2, 3});
  const Shape shape{random.integer(1, 3), random.integer(1, 3) * std::max<int64_t>(groups, 1),
                    random.one_of<int64_t>({1, 9, 70, 700})};
  const int64_t axis = random.integer(1, 2), zero = random_zero(random, type);
  const bool is_centered = random.flag(), has_shift = random.flag();
  const int64_t length = groups ? shape[1] / groups * shape[2] : axis == 1 ? shape[1] * shape[2] : shape[2];
  const int64_t entries = groups ? shape[1] : length;
  const Shape own{random.flag() ? entries : 1};
  const float epsilon = random.one_of<float>({0.0f, 1e-5f, 0.1f}), x_scale = random.real(1e-4f, 0.1f);
  const float y_scale = random.real(0.01f, 0.1f);
  test.inputs = {Data::random(random, type, shape), random_floats(random, own, -2.0f, 2.0f)};
  if (has_shift) test.inputs.push_back(random_floats(random, own, -1.0f, 1.0f));
  test.constants = 1;
  auto& attributes = test.node.attributes;
  attributes.ints["axis"] = axis, attributes.ints["groups"] = groups, attributes.ints["centered"] = is_centered;
  attributes.ints["x_zero_point"] = zero;
  attributes.floats = {{"epsilon", epsilon}, {"x_scale", x_scale}, {"y_scale", y_scale}};
  std::vector<int64_t> wanted;
  const Data& x = test.inputs[0];
  for (int64_t first = 0; first < x.tensor.count(); first += length) {
    int64_t sum = 0, squares = 0;
    for (int64_t i = first; i < first + length; ++i) sum += x.at(i) - zero, squares += (x.at(i) - zero) * (x.at(i) - zero);
    const Wide variance = Wide{length} * squares - (is_centered ? Wide{sum} * sum : 0);
    const double k = static_cast<double>(x_scale) / static_cast<double>(length);
    const double inside = static_cast<double>(variance) * (k * k) + static_cast<double>(epsilon);
    const float factor = variance == 0 ? 0.0f : static_cast<float>(k / std::sqrt(inside));
    for (int64_t i = first; i < first + length; ++i) {
      const int64_t place = own[0] == 1 ? 0 : groups ? i / shape[2] % shape[1] : i - first;
      const auto c = static_cast<float>(length * (x.at(i) - zero) - (is_centered ? sum : 0));
      const float even = c * factor, scaled = even * test.inputs[1].tensor.as<float>()[place];
      const float moved = has_shift ? scaled + test.inputs[2].tensor.as<float>()[place] : scaled;
      wanted.push_back(tail.real(moved / y_scale));
    }
  }
  check_on_all(test, shape, wanted);
}

void rotary(Random& random) {
  Case test;
  test.key = "ai.qdqtool::RotaryEmbedding";
  const Tail tail = Tail::random(random, test.node, true);
  const int64_t head_axis = random.integer(1, 2), batch = random.integer(1, 2), positions = random.integer(1, 5);
  const int64_t heads = random.integer(1, 3), pairs = random.one_of<int64_t>({1, 4, 32, 67, 600});
  const bool is_real = random.integer(0, 2) == 0, is_interleaved = random.flag();
  const Shape shape = head_axis == 1 ? Shape{batch, heads, positions, 2 * pairs} : Shape{batch, positions, heads, 2 * pairs};
  const int64_t rows = random.one_of<int64_t>({0, 1, batch});  // 0: of two axes
  const Shape angles = rows ? Shape{rows, positions, pairs} : Shape{positions, pairs};
  std::vector<int64_t> zeros;
  for (size_t i = 0; i < 3; ++i) {
    const DataType type = random_type(random);
    zeros.push_back(random_zero(random, type));
    test.inputs.push_back(Data::random(random, type, i ? angles : shape));
  }
  test.constants = 3;
  auto& attributes = test.node.attributes;
  attributes.strings["mode"] = is_real ? "float" : "integer";
  attributes.ints["interleaved"] = is_interleaved, attributes.ints["head_axis"] = head_axis;
  attributes.ints["x_zero_point"] = zeros[0], attributes.ints["cos_zero_point"] = zeros[1];
  attributes.ints["sin_zero_point"] = zeros[2];
  // Products that 64 bits hold, and that they do not.
  const int64_t most = random.one_of<int64_t>({1, 1 << 14, (int64_t{1} << 31) - 1});
  const int64_t of_cosine = random.integer(-most, most), of_sine = random.integer(-most, most), shift = random.integer(0, 62);
  const float cosine_scale = random.real(1e-6f, 1e-3f), sine_scale = random.real(1e-6f, 1e-3f), y_scale = random.real(0.1f, 2.0f);
  if (is_real) {
    attributes.floats = {{"cos_scale", cosine_scale}, {"sin_scale", sine_scale}, {"y_scale", y_scale}};
  } else {
    attributes.ints["cos_multiplier"] = of_cosine, attributes.ints["sin_multiplier"] = of_sine, attributes.ints["shift"] = shift;
  }
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < test.inputs[0].tensor.count(); ++i) {
    const int64_t place = i % (2 * pairs), row = i - place, in_batch = i / (heads * positions * 2 * pairs);
    const int64_t position = row / (2 * pairs) / (head_axis == 1 ? 1 : heads) % positions;
    const bool is_second = is_interleaved ? place % 2 != 0 : place >= pairs;
    const int64_t pair = is_interleaved ? place / 2 : place % pairs;
    const int64_t other = row + (is_interleaved ? place ^ 1 : is_second ? place - pairs : place + pairs);
    const int64_t angle = ((rows > 1 ? in_batch * positions : 0) + position) * pairs + pair;
    const int64_t p = (test.inputs[0].at(i) - zeros[0]) * (test.inputs[1].at(angle) - zeros[1]);
    const int64_t q = (test.inputs[0].at(other) - zeros[0]) * (test.inputs[2].at(angle) - zeros[2]);
    if (is_real) {
      const float left = static_cast<float>(p) * cosine_scale, right = static_cast<float>(q) * sine_scale;
      const float sum = is_second ? left + right : left - right;
      wanted.push_back(tail.real(sum / y_scale));
    } else {
      const Wide sum = Wide{p} * of_cosine + (is_second ? Wide{q} : -Wide{q}) * of_sine;
      wanted.push_back(tail.ratio(sum, Wide{1} << shift));
    }
  }
  check_on_all(test, shape, wanted);
}

void resize(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Resize";
  const Tail tail = Tail::random(random, test.node, true);
  const DataType type = random_type(random);
  const bool is_real = random.integer(0, 2) == 0;
  const int64_t zero = random_zero(random, type);
  Shape from, to;
  for (int64_t rank = random.integer(1, 4); rank > 0; --rank) from.push_back(random.integer(1, rank == 1 ? 40 : 6));
  to = from;
  test.inputs = {Data::random(random, type, from)};
  std::vector<int64_t> axes, counts;
  for (size_t axis = 0; axis < from.size() && axes.size() < 3; ++axis) {
    if (random.flag()) continue;
    const int64_t size = random.integer(1, axis + 1 == from.size() ? 600 : 9), taps = random.integer(1, 4);
    Data indices(DataType::int64, {size, taps}), weights(DataType::int32, {size, taps});
    for (int64_t i = 0; i < size * taps; ++i) {
      indices.tensor.as<int64_t>()[i] = random.integer(0, from[axis] - 1);
      weights.tensor.as<int32_t>()[i] = static_cast<int32_t>(random.integer(-2048, 8192));
    }
    test.inputs.push_back(indices), test.inputs.push_back(weights);
    axes.push_back(static_cast<int64_t>(axis)), counts.push_back(taps), to[axis] = size;
  }
  test.constants = 1;
  auto& attributes = test.node.attributes;
  attributes.strings["mode"] = is_real ? "float" : "integer", attributes.int_lists["axes"] = axes;
  attributes.ints["x_zero_point"] = zero;
  const int64_t multiplier = random.one_of<int64_t>({1, 3, random.integer(1 << 28, (int64_t{1} << 31) - 1)});
  const int64_t shift = std::min<int64_t>(62, random.integer(-3, 8) + 11 * static_cast<int64_t>(axes.size()) + (multiplier > 3 ? 30 : 0));
  const float scale = random.real(1e-5f, 1e-2f), y_scale = random.real(0.1f, 2.0f);
  if (is_real) attributes.floats = {{"scale", scale}, {"y_scale", y_scale}};
  if (!is_real) attributes.ints["multiplier"] = multiplier, attributes.ints["shift"] = shift;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < qdqtool::count_of(to); ++i) {
    Shape at(to.size());
    for (size_t k = to.size(), rest = static_cast<size_t>(i); k-- > 0; rest /= static_cast<size_t>(to[k])) {
      at[k] = static_cast<int64_t>(rest % static_cast<size_t>(to[k]));
    }
    const std::function<int64_t(size_t, int64_t)> sum_from = [&](size_t axis, int64_t offset) -> int64_t {
      if (axis == to.size()) return test.inputs[0].at(offset) - zero;
      for (size_t k = 0; k < axes.size(); ++k) {
        if (axes[k] != static_cast<int64_t>(axis)) continue;
        int64_t sum = 0;
        for (int64_t tap = 0; tap < counts[k]; ++tap) {
          const int64_t entry = at[axis] * counts[k] + tap;
          sum += test.inputs[2 + 2 * k].at(entry) * sum_from(axis + 1, offset * from[axis] + test.inputs[1 + 2 * k].at(entry));
        }
        return sum;
      }
      return sum_from(axis + 1, offset * from[axis] + at[axis]);
    };
    const int64_t sum = sum_from(0, 0);
    const float scaled = static_cast<float>(sum) * scale;
    const Wide up = shift < 0 ? Wide{1} << -shift : 1, down = shift > 0 ? Wide{1} << shift : 1;
    wanted.push_back(is_real ? tail.real(scaled / y_scale) : tail.ratio(Wide{sum} * multiplier * up, down));
  }
  check_on_all(test, to, wanted);
}

void division(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Div";
  const Tail tail = Tail::random(random, test.node, true);
  const DataType a_type = random_type(random), b_type = random_type(random);
  const int64_t za = random_zero(random, a_type), zb = random_zero(random, b_type);
  const Shape shape{random.integer(1, 3), random.one_of<int64_t>({1, 20, 700})}, divisor{random.flag() ? shape[1] : 1};
  const bool is_real = random.integer(0, 2) == 0, has_ties = random.flag();
  test.inputs = {Data::random(random, a_type, shape), Data::random(random, b_type, divisor)};
  test.constants = 2;
  auto& attributes = test.node.attributes;
  attributes.strings["mode"] = is_real ? "float" : "integer";
  attributes.ints["a_zero_point"] = za, attributes.ints["b_zero_point"] = zb;
  const int64_t multiplier = has_ties ? 1 << random.integer(0, 8) : random.integer(1, (int64_t{1} << 31) - 1);
  const int64_t shift = has_ties ? random.integer(-4, 2) : random.integer(15, 40);
  const float scale = random.real(0.01f, 1.0f), y_scale = random.real(0.001f, 1.0f);
  if (is_real) attributes.floats = {{"scale", scale}, {"y_scale", y_scale}};
  if (!is_real) attributes.ints["multiplier"] = multiplier, attributes.ints["shift"] = shift;
  const int64_t low = tail.clamps ? tail.low : tail.least(), high = tail.clamps ? tail.high : tail.least() + tail.range();
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < qdqtool::count_of(shape); ++i) {
    int64_t a = test.inputs[0].at(i) - za, b = test.inputs[1].at(i % divisor[0]) - zb;
    if (b == 0 && a != 0) {
      wanted.push_back(a < 0 ? low : high);
      continue;
    }
    if (b == 0) b = 1;
    if (b < 0) a = -a, b = -b;
    const float scaled = static_cast<float>(a) * scale, quotient = scaled / static_cast<float>(b);
    const Wide up = shift < 0 ? Wide{1} << -shift : 1, down = shift > 0 ? Wide{1} << shift : 1;
    wanted.push_back(is_real ? tail.real(quotient / y_scale) : tail.ratio(Wide{a} * multiplier * up, Wide{b} * down));
  }
  check_on_all(test, shape, wanted);
}

}  // namespace
}  // namespace test

int main(int count, char** arguments) {
  using namespace test;
  Random random(8);
  for (int i = 0, end = rounds(150, count, arguments); i < end; ++i) {
    blocked_matmul(random);
    norm(random);
    rotary(random);
    resize(random);
    division(random);
  }
  std::printf("%d failures\n", failures);
  return failures != 0;
}
