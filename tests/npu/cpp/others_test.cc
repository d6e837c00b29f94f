// Add, Mul, Lookup, AveragePool, MaxPool, ReduceMean, Softmax, QuantizeLinear and DequantizeLinear on random cases, against the
// arithmetic of naive.hpp. `others_test bench [PART OF A NAME]` tells times.
#include <array>
#include <cmath>

#include "naive.hpp"

namespace test {
namespace {

DataType random_type(Random& random) { return random.flag() ? DataType::uint8 : DataType::int8; }
int64_t random_zero(Random& random, DataType type) {
  return random.one_of<int64_t>({0, random.integer(0, 255), 128, 255}) - (type == DataType::int8 ? 128 : 0);
}

std::string described(const Case& test) {
  std::string text = test.key + " isa " + std::to_string(static_cast<int>(test.node.isa));
  for (const auto& [name, value] : test.node.attributes.strings) text += " " + name + "=" + value;
  for (const auto& [name, value] : test.node.attributes.ints) text += " " + name + "=" + std::to_string(value);
  for (const auto& [name, value] : test.node.attributes.int_lists) text += " " + name + "=" + text_of(value);
  for (const auto& [name, value] : test.node.attributes.floats) text += " " + name + "=" + std::to_string(value);
  for (const Data& input : test.inputs) text += " " + text_of(input.tensor.shape);
  return text;
}

void check_on_all(Case& test, const Shape& shape, const std::vector<int64_t>& wanted) {
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    try {
      check_equal(outputs_of(test).at(0), shape, wanted, described(test));
    } catch (const Error& error) {
      fail(described(test) + ": " + error.what());
    }
  }
}

void two_operands(Random& random) {
  Case test;
  const bool adds = random.flag(), real = random.integer(0, 3) == 0;
  test.key = adds ? "ai.qdqtool::Add" : "ai.qdqtool::Mul";
  const Tail tail = Tail::random(random, test.node);
  Shape whole, a, b;
  for (int64_t rank = random.integer(0, 4); rank > 0; --rank) {
    whole.push_back(random.one_of<int64_t>({1, 2, 3, 5, 11, 40}));
  }
  for (const int64_t length : whole) {
    const int64_t kind = random.integer(0, 5);
    a.push_back(kind == 0 ? 1 : length), b.push_back(kind == 1 ? 1 : length);
  }
  if (random.flag()) b.erase(b.begin(), b.begin() + random.integer(0, static_cast<int64_t>(b.size())));
  for (size_t i = 0; i < whole.size(); ++i) {
    const size_t skipped = whole.size() - b.size();
    if (a[i] == 1 && (i < skipped || b[i - skipped] == 1)) whole[i] = 1;
  }
  const DataType type_a = random_type(random), type_b = random_type(random);
  test.inputs = {Data::random(random, type_a, a), Data::random(random, type_b, b)};
  test.constants = 2;
  const int64_t za = random_zero(random, type_a), zb = random_zero(random, type_b);
  auto& ints = test.node.attributes.ints;
  auto& floats = test.node.attributes.floats;
  ints["a_zero_point"] = za, ints["b_zero_point"] = zb;
  test.node.attributes.strings["mode"] = real ? "float" : "integer";
  // Small numbers; such that products are around 2^31; the greatest there are, some of which lead to ties.
  const int64_t bits_of_shift = random.one_of<int64_t>({6, 20, 31}),
                shift = random.integer(bits_of_shift - 3, bits_of_shift + 5);
  const auto multiplier = [&, ties = random.flag()] {
    const int64_t most = int64_t{1} << (bits_of_shift - 1);
    return ties ? random.one_of<int64_t>({most, -most, most / 2, -most / 4}) : random.integer(-most, most);
  };
  const int64_t ma = multiplier(), mb = multiplier(), m = std::max<int64_t>(1, std::abs(multiplier()));
  const float step = random.one_of<float>({0.5f, 0.25f, random.real(0.001f, 2.0f)});
  const float sa = random.real(0.001f, 1.0f), sb = random.one_of<float>({sa, 0.5f, random.real(-1.0f, -0.01f)});
  const int64_t bits = random.one_of<int64_t>({32, 32, 12, 64});
  if (adds && real) floats["a_scale"] = sa, floats["b_scale"] = sb, floats["y_scale"] = step;
  if (adds && !real) ints["a_multiplier"] = ma, ints["b_multiplier"] = mb, ints["shift"] = shift;
  if (!adds && real) floats["scale"] = sa, floats["y_scale"] = step;
  if (!adds && !real) ints["multiplier"] = m, ints["shift"] = shift;
  if (!adds) ints["accumulator_bits"] = bits;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < qdqtool::count_of(whole); ++i) {
    const int64_t da = test.inputs[0].at(broadcast_index(a, whole, i)) - za,
                  db = test.inputs[1].at(broadcast_index(b, whole, i)) - zb;
    if (adds && real) {
      const float from_a = static_cast<float>(da) * sa, from_b = static_cast<float>(db) * sb, sum = from_a + from_b;
      wanted.push_back(tail.real(sum / step));
    } else if (adds) {
      wanted.push_back(tail.ratio(Wide{da} * ma + Wide{db} * mb, Wide{1} << shift));
    } else {
      int64_t sum = da * db;
      if (bits == 12) sum -= 4096 * static_cast<int64_t>(floor_divide(sum + 2048, 4096));
      const float scaled = static_cast<float>(sum) * sa;
      wanted.push_back(real ? tail.real(scaled / step) : tail.ratio(Wide{sum} * m, Wide{1} << shift));
    }
  }
  check_on_all(test, whole, wanted);
}

void lookup(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Lookup";
  const DataType from = random_type(random), to = random_type(random);
  const Shape shape{random.integer(1, 3), random.integer(1, 4), random.integer(1, 90)};
  const int64_t axis = random.integer(-4, 2);  // -4: one table
  const int64_t channels = axis == -4 ? 1 : shape[static_cast<size_t>(axis < 0 ? axis + 3 : axis)];
  test.inputs = {Data::random(random, from, shape),
                 Data::random(random, to, axis == -4 ? Shape{256} : Shape{channels, 256})};
  test.constants = 1;
  test.node.outputs = {to};
  if (axis != -4) test.node.attributes.ints["axis"] = axis;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < test.inputs[0].tensor.count(); ++i) {
    const std::array<int64_t, 3> at{i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]};
    const int64_t channel = axis == -4 ? 0 : at[static_cast<size_t>(axis < 0 ? axis + 3 : axis)];
    wanted.push_back(test.inputs[1].at(channel * 256 + test.inputs[0].at(i) - (from == DataType::int8 ? -128 : 0)));
  }
  check_on_all(test, shape, wanted);
}

// A pool's geometry over one to three axes, and what its windows read.
struct Pool {
  size_t rank = 1;
  Shape input, output;
  std::vector<int64_t> kernel, strides, dilations, pads;
  bool ceil = false;

  static Pool random(Random& random) {
    for (;;) {
      Pool pool;
      pool.rank = static_cast<size_t>(random.integer(1, 3));
      pool.ceil = random.flag();
      pool.input = pool.output = {random.integer(1, 2), random.integer(1, 3)};
      pool.pads.resize(2 * pool.rank);
      bool fits = true;
      for (size_t i = 0; i < pool.rank; ++i) {
        const int64_t length = random.integer(1, i + 1 == pool.rank ? 45 : 9),
                      kernel = random.integer(1, random.integer(0, 5) ? 4 : 7);
        const int64_t stride = random.integer(1, 4), dilation = random.integer(1, 2);
        const int64_t before = random.integer(0, kernel - 1), after = random.integer(0, kernel - 1),
                      reach = (kernel - 1) * dilation + 1;
        const int64_t room = length + before + after - reach;
        int64_t windows = 0;
        while (windows * stride <= room) ++windows;
        if (pool.ceil && windows * stride < room + stride) {
          if (windows == 0 || (windows - 1) * stride != room) ++windows;  // the one that reaches beyond the end
        }
        if (pool.ceil && windows > 0 && (windows - 1) * stride >= length + before) --windows;
        fits = fits && windows > 0 && (room >= 0 || pool.ceil);
        pool.input.push_back(length), pool.output.push_back(windows);
        pool.kernel.push_back(kernel), pool.strides.push_back(stride), pool.dilations.push_back(dilation);
        pool.pads[i] = before, pool.pads[i + pool.rank] = after;
      }
      if (fits) return pool;
    }
  }

  void write(NodeInfo& node) const {
    auto& lists = node.attributes.int_lists;
    lists["kernel_shape"] = kernel, lists["strides"] = strides, lists["dilations"] = dilations, lists["pads"] = pads;
    node.attributes.ints["ceil_mode"] = ceil;
  }

  // Calls visit(offset in the plane, or -1 in the padding) for each element of window `index` of a plane that lies in input and
  // padding.
  template <class Visit>
  void window(int64_t index, const Visit& visit) const {
    std::vector<int64_t> at(rank), tap(rank, 0);
    for (size_t i = rank; i-- > 0; index /= output[i + 2]) at[i] = index % output[i + 2];
    for (;;) {
      int64_t offset = 0;
      bool inside = true, counted = true;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t x = at[i] * strides[i] - pads[i] + tap[i] * dilations[i], length = input[i + 2];
        inside = inside && x >= 0 && x < length;
        counted = counted && x < length + pads[i + rank];
        offset = offset * length + x;
      }
      if (counted) visit(inside ? offset : -1);
      size_t i = rank;
      while (i > 0 && ++tap[i - 1] == kernel[i - 1]) tap[--i] = 0;
      if (i == 0) return;
    }
  }
};

int64_t planes(const Shape& shape) { return shape[0] * shape[1]; }

void max_pool(Random& random) {
  Case test;
  test.key = "::MaxPool";
  const Pool pool = Pool::random(random);
  pool.write(test.node);
  const DataType type = random_type(random);
  test.inputs = {Data::random(random, type, pool.input)};
  test.constants = 1;
  test.node.outputs = {type};
  std::vector<int64_t> wanted;
  const int64_t windows = qdqtool::count_of(pool.output) / planes(pool.output),
                plane = qdqtool::count_of(pool.input) / planes(pool.input);
  for (int64_t i = 0; i < windows * planes(pool.input); ++i) {
    int64_t most = type == DataType::int8 ? -128 : 0;
    pool.window(i % windows, [&](int64_t offset) {
      if (offset >= 0) most = std::max(most, test.inputs[0].at(i / windows * plane + offset));
    });
    wanted.push_back(most);
  }
  check_on_all(test, pool.output, wanted);
}

// The arithmetic of means: attributes, and the mean of a sum.
struct Means {
  Tail tail;
  bool real = false;
  int64_t zero = 0, multiplier = 0, shift = 0;
  float scale = 0, factor = 1, y_scale = 1;

  Means(Random& random, NodeInfo& node, DataType type) : tail(Tail::random(random, node)) {
    real = random.integer(0, 3) == 0;
    zero = random_zero(random, type);
    multiplier = random.flag() ? int64_t{1} << 30 : random.integer(1, (int64_t{1} << 31) - 1),
    shift = random.integer(27, 33);
    if (random.integer(0, 9) == 0) multiplier = random.integer(1, 4), shift = random.integer(-3, 0);
    scale = random.real(0.01f, 1.0f), factor = random.one_of<float>({1.0f, 1.25f}), y_scale = random.real(0.05f, 1.0f);
    auto& attributes = node.attributes;
    attributes.strings["mode"] = real ? "float" : "integer";
    attributes.ints["x_zero_point"] = zero;
    if (real) {
      attributes.floats["scale"] = scale, attributes.floats["factor"] = factor, attributes.floats["y_scale"] = y_scale;
    } else {
      attributes.ints["multiplier"] = multiplier, attributes.ints["shift"] = shift;
    }
  }

  int64_t operator()(int64_t sum, int64_t count) const {
    count = std::max<int64_t>(count, 1);
    if (real) {
      const float scaled = static_cast<float>(sum) * scale, mean = scaled / static_cast<float>(count),
                  times = mean * factor;
      return tail.real(times / y_scale);
    }
    const Wide up = shift < 0 ? Wide{1} << -shift : 1, down = shift > 0 ? Wide{1} << shift : 1;
    return tail.ratio(sum * multiplier * up, count * down);
  }
};

void average_pool(Random& random) {
  Case test;
  test.key = "ai.qdqtool::AveragePool";
  const Pool pool = Pool::random(random);
  pool.write(test.node);
  const DataType type = random_type(random);
  const Means mean(random, test.node, type);
  const bool counts_padding = random.flag();
  test.node.attributes.ints["count_include_pad"] = counts_padding;
  test.inputs = {Data::random(random, type, pool.input)};
  test.constants = 1;
  std::vector<int64_t> wanted;
  const int64_t windows = qdqtool::count_of(pool.output) / planes(pool.output),
                plane = qdqtool::count_of(pool.input) / planes(pool.input);
  for (int64_t i = 0; i < windows * planes(pool.input); ++i) {
    int64_t sum = 0, count = 0;
    pool.window(i % windows, [&](int64_t offset) {
      if (offset >= 0) sum += test.inputs[0].at(i / windows * plane + offset) - mean.zero;
      count += offset >= 0 || counts_padding;
    });
    wanted.push_back(mean(sum, count));
  }
  check_on_all(test, pool.output, wanted);
}

void reduce_mean(Random& random) {
  Case test;
  test.key = "ai.qdqtool::ReduceMean";
  const DataType type = random_type(random);
  const Means mean(random, test.node, type);
  Shape shape, kept, output;
  std::vector<int64_t> axes;
  const bool keeps = random.flag();
  for (int64_t rank = random.integer(1, 4); rank > 0; --rank) {
    shape.push_back(random.one_of<int64_t>({1, 2, 3, 7, 30, 300}));
  }
  while (qdqtool::count_of(shape) > 200000) shape.pop_back();
  const auto rank = static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < rank; ++i) {
    const bool goes = random.flag();
    if (goes) axes.push_back(random.flag() ? i : i - rank);
    kept.push_back(goes ? 1 : shape[static_cast<size_t>(i)]);
  }
  if (axes.empty()) kept.assign(shape.size(), 1);
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool goes = axes.empty() || std::count(axes.begin(), axes.end(), static_cast<int64_t>(i)) ||
                      std::count(axes.begin(), axes.end(), static_cast<int64_t>(i) - rank);
    if (!goes || keeps) output.push_back(kept[i]);
  }
  if (!axes.empty() || random.flag()) test.node.attributes.int_lists["axes"] = axes;
  test.node.attributes.ints["keepdims"] = keeps;
  test.inputs = {Data::random(random, type, shape)};
  test.constants = 1;
  std::vector<int64_t> sums(static_cast<size_t>(qdqtool::count_of(kept)), 0), wanted;
  const int64_t count = qdqtool::count_of(shape) / qdqtool::count_of(kept);
  for (int64_t i = 0; i < qdqtool::count_of(shape); ++i) {
    sums[static_cast<size_t>(broadcast_index(kept, shape, i))] += test.inputs[0].at(i) - mean.zero;
  }
  for (const int64_t sum : sums) wanted.push_back(mean(sum, count));
  check_on_all(test, output, wanted);
}

void softmax(Random& random) {
  Case test;
  test.key = "ai.qdqtool::Softmax";
  const Tail tail = Tail::random(random, test.node);
  const DataType type = random_type(random);
  const Shape shape{random.integer(1, 3), random.integer(1, 20), random.one_of<int64_t>({1, 3, 300, 1100})};
  const int64_t axis = random.integer(-3, 2);
  const double step = random.one_of<double>({0.25, 0.05, 0.8});
  std::vector<int64_t> entries;
  for (int d = 0; d < 256; ++d) entries.push_back(std::llrint(std::exp(-d * step) * (1 << 30)));
  const bool pow2 = random.flag();
  const int64_t multiplier = pow2 ? 1 : random.integer(int64_t{1} << 30, (int64_t{1} << 31) - 1),
                shift = pow2 ? -random.integer(0, 8) : random.integer(20, 30);
  test.node.attributes.ints["axis"] = axis;
  test.node.attributes.ints["multiplier"] = multiplier, test.node.attributes.ints["shift"] = shift;
  test.inputs = {Data::random(random, type, shape), Data::of(DataType::int64, {256}, entries)};
  test.constants = 1;
  Shape kept = shape;
  kept[static_cast<size_t>(axis < 0 ? axis + 3 : axis)] = 1;
  const auto groups = static_cast<size_t>(qdqtool::count_of(kept));
  std::vector<int64_t> most(groups, -1000), sums(groups, 0), wanted;
  const Data& x = test.inputs[0];
  const auto group = [&](int64_t i) { return static_cast<size_t>(broadcast_index(kept, shape, i)); };
  const auto exponential = [&](int64_t i) { return entries[static_cast<size_t>(most[group(i)] - x.at(i))]; };
  for (int64_t i = 0; i < x.tensor.count(); ++i) most[group(i)] = std::max(most[group(i)], x.at(i));
  for (int64_t i = 0; i < x.tensor.count(); ++i) sums[group(i)] += exponential(i);
  for (int64_t i = 0; i < x.tensor.count(); ++i) {
    const Wide up = shift < 0 ? Wide{1} << -shift : 1, down = shift > 0 ? Wide{1} << shift : 1;
    wanted.push_back(tail.ratio(Wide{exponential(i)} * multiplier * up, sums[group(i)] * down));
  }
  check_on_all(test, shape, wanted);
}

// Numbers that lie on ties, beyond the integers, or anywhere.
float random_number(Random& random, float scale) {
  const int64_t kind = random.integer(0, 9);
  if (kind == 0) return random.one_of<float>({1e30f, -1e30f, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f});
  if (kind < 4) return (static_cast<float>(random.integer(-400, 400)) + 0.5f) * scale;
  return random.real(-300.0f, 300.0f) * scale * (kind == 9 ? 300.0f : 1.0f);
}

void quantize(Random& random) {
  Case test;
  const bool back = random.flag(), has_zero = random.flag(), single = random.flag();
  test.key = back ? "::DequantizeLinear" : "::QuantizeLinear";
  const DataType type = has_zero || back
                            ? random.one_of({DataType::uint8, DataType::int8, DataType::uint16, DataType::int16})
                            : DataType::uint8;
  const Shape shape{random.integer(1, 3), random.integer(1, 9), random.one_of<int64_t>({1, 7, 513})};
  const int64_t axis = random.integer(-3, 2),
                channels = single ? 1 : shape[static_cast<size_t>(axis < 0 ? axis + 3 : axis)];
  Shape own{1, 1, 1};
  if (!single) own[static_cast<size_t>(axis < 0 ? axis + 3 : axis)] = channels;
  test.node.attributes.ints["axis"] = axis;
  Data scale(DataType::float32, single && random.flag() ? Shape{} : Shape{channels});
  for (int64_t i = 0; i < channels; ++i) {
    scale.tensor.as<float>()[i] = random.one_of<float>({0.5f, random.real(0.001f, 3.0f)});
  }
  const Data zero = Data::random(random, type, scale.tensor.shape);
  const auto channel = [&](int64_t i) { return broadcast_index(own, shape, i); };
  const auto zero_at = [&](int64_t i) { return has_zero ? zero.at(channel(i)) : 0; };
  const auto scale_at = [&](int64_t i) { return scale.tensor.as<float>()[channel(i)]; };
  Data x = back ? Data::random(random, type, shape) : Data(DataType::float32, shape);
  if (!back) {
    for (int64_t i = 0; i < x.tensor.count(); ++i) x.tensor.as<float>()[i] = random_number(random, scale_at(i));
  }
  test.inputs = {x, scale};
  if (has_zero) test.inputs.push_back(zero);
  test.constants = 1;
  test.node.outputs = {back ? DataType::float32 : type};
  if (!back) {
    std::vector<int64_t> wanted;
    const bool is_signed = type == DataType::int8 || type == DataType::int16;
    const int64_t width = type == DataType::int8 || type == DataType::uint8 ? 256 : 65536,
                  least = is_signed ? -width / 2 : 0;
    for (int64_t i = 0; i < x.tensor.count(); ++i) {
      const double value =
          std::rint(static_cast<double>(x.tensor.as<float>()[i] / scale_at(i))) + static_cast<double>(zero_at(i));
      wanted.push_back(static_cast<int64_t>(
          std::fmin(std::fmax(value, static_cast<double>(least)), static_cast<double>(least + width - 1))));
    }
    return check_on_all(test, shape, wanted);
  }
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    const Data y = outputs_of(test).at(0);
    for (int64_t i = 0; i < x.tensor.count(); ++i) {
      const float wanted = static_cast<float>(x.at(i) - zero_at(i)) * scale_at(i);
      if (y.tensor.shape != shape || y.tensor.as<float>()[i] != wanted) {
        return fail(described(test) + ": element " + std::to_string(i));
      }
    }
  }
}

// More elements than one part computes: the parts must fit together.
void large(Random& random) {
  Case sum;
  sum.key = "ai.qdqtool::Add";
  sum.node.attributes.ints = {{"a_multiplier", 1}, {"b_multiplier", 3}, {"shift", 2}};
  sum.node.outputs = {DataType::uint8};
  const Shape shape{3, 7, 91, 97};
  sum.inputs = {Data::random(random, DataType::uint8, shape), Data::random(random, DataType::uint8, {7, 1, 1})};
  sum.constants = 2;
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < qdqtool::count_of(shape); ++i) {
    wanted.push_back((sum.inputs[0].at(i) + 3 * sum.inputs[1].at(i / 91 / 97 % 7) + 2) >> 2);
  }
  for (int64_t& value : wanted) value = std::min<int64_t>(value, 255);
  check_on_all(sum, shape, wanted);

  Case pool;
  pool.key = "::MaxPool";
  pool.node.attributes.int_lists = {{"kernel_shape", {1, 2}}, {"strides", {1, 2}}};
  pool.node.outputs = {DataType::uint8};
  pool.inputs = {Data::random(random, DataType::uint8, {3, 7, 91, 98})};
  pool.constants = 1;
  wanted.clear();
  for (int64_t i = 0; i < 3 * 7 * 91 * 49; ++i) {
    wanted.push_back(std::max(pool.inputs[0].at(2 * i), pool.inputs[0].at(2 * i + 1)));
  }
  check_on_all(pool, {3, 7, 91, 49}, wanted);
  pool.node.attributes.strings["auto_pad"] = "SAME_LOWER";  // an even axis needs no padding
  check_on_all(pool, {3, 7, 91, 49}, wanted);
}

// What is wrong with a node is said, not computed.
void refusals() {
  const auto check = [](const char* name, Case test, const std::string& part) {
    const std::string message = error_of(test);
    if (message.find(part) == std::string::npos) {
      fail(std::string(name) + ": '" + message + "' does not say '" + part + "'");
    }
  };
  const Shape image{1, 2, 8, 8};
  const auto one = [](const std::string& key, DataType type, Shape shape) {
    Case test;
    test.key = key;
    test.node.outputs = {type};
    test.inputs = {Data(type, std::move(shape))};
    test.constants = 1;
    return test;
  };
  Case pool = one("::MaxPool", DataType::int8, image);
  check("no kernel_shape", pool, "kernel_shape has 0 axes");
  pool.node.attributes.int_lists["kernel_shape"] = {9, 1};
  check("window too large", pool, "a window of 9 does not fit an axis of 8");
  pool.node.attributes.int_lists["kernel_shape"] = {int64_t{1} << 40, 1};
  check("endless window", pool, "kernel_shape has 1099511627776");
  pool.node.attributes.int_lists["kernel_shape"] = {1 << 20, 1 << 20};
  check("too many elements", pool, "a window has 1099511627776 elements");
  pool.node.attributes.int_lists["kernel_shape"] = {2, 2};
  pool.node.attributes.int_lists["strides"] = {0, 1};
  check("stride 0", pool, "strides has 0");
  pool.node.attributes.int_lists["strides"] = {1, 1};
  pool.node.attributes.strings["auto_pad"] = "SAME";
  check("auto_pad", pool, "auto_pad is 'SAME'");
  pool.node.attributes.strings.clear();
  pool.node.outputs = {DataType::int8, DataType::int64};
  check("indices", pool, "the indices of the maxima are not computed");
  pool.node.outputs = {DataType::int16};
  pool.inputs = {Data(DataType::int16, image)};
  check("16 bits", pool, "the output is int16; int8 and uint8 are computed");

  Case sum = one("ai.qdqtool::Add", DataType::int8, image);
  check("one input", sum, "input 1 is missing");
  sum.inputs.push_back(Data(DataType::int8, {3, 8}));
  sum.constants = 2;
  check("no multiplier", sum, "'a_multiplier' is missing");
  sum.node.attributes.ints = {{"a_multiplier", 1}, {"b_multiplier", 1}, {"shift", 0}};
  check("shapes", sum, "[1, 2, 8, 8] and [3, 8] cannot be broadcast");
  sum.node.attributes.ints["shift"] = 63;
  check("shift", sum, "shift is 63");
  sum.node.attributes.ints["a_zero_point"] = 200;
  check("zero point", sum, "a_zero_point is outside int8");
  sum.node.attributes.ints["b_multiplier"] = int64_t{1} << 31;
  sum.node.attributes.ints["a_zero_point"] = 0;
  check("multiplier", sum, "b_multiplier is outside int32");
  sum.inputs[1] = Data(DataType::int32, image);
  check("type", sum, "input 1 is int32; int8 and uint8 are computed");
  sum.inputs[0] = Data(DataType::int16, image);
  check("type beside 16 bits", sum, "input 1 is int32; integers of 8 and 16 bits are computed");
  sum.inputs[1] = Data(DataType::int16, image);
  check("multiplier of 16 bits", sum, "b_multiplier is outside int32");

  Case look = one("ai.qdqtool::Lookup", DataType::int8, image);
  look.inputs.push_back(Data(DataType::int8, {255}));
  check("short table", look, "the table has the shape [255]");
  look.inputs[1] = Data(DataType::int8, {3, 256});
  look.node.attributes.ints["axis"] = 1;
  check("tables", look, "3 tables do not fit axis 1 of [1, 2, 8, 8]");
  look.node.attributes.ints["axis"] = 4;
  check("axis", look, "axis 4 is outside a tensor of rank 4");
  look.constants = 2;
  check("variable table", look, "the table must be a constant");

  Case mean = one("ai.qdqtool::ReduceMean", DataType::int8, {2, 0});
  mean.node.attributes.ints = {{"multiplier", 1}, {"shift", 0}};
  check("mean of nothing", mean, "the mean of no elements of [2, 0] is not defined");
  mean.node.attributes.int_lists["axes"] = {1, -1};
  check("axis twice", mean, "axis -1 is named twice");

  Case shares = one("ai.qdqtool::Softmax", DataType::int8, image);
  shares.node.attributes.ints = {{"multiplier", 1}, {"shift", 0}};
  shares.inputs.push_back(Data::of(DataType::int64, {256}, std::vector<int64_t>(256, -1)));
  check("negative exponential", shares, "the table has the entry -1");
  shares.inputs[1] = Data::of(DataType::int64, {256}, std::vector<int64_t>(256, 0));
  check("no exponential", shares, "the table begins with 0");

  Case numbers = one("::QuantizeLinear", DataType::float32, image);
  numbers.node.outputs = {DataType::int8};
  numbers.inputs.push_back(Data(DataType::float32, {3}));
  check("scales", numbers, "scale [3] does not fit axis 1 of [1, 2, 8, 8]");
  numbers.node.outputs = {DataType::int32};
  check("int32", numbers, "int32 is not computed; integers of 8 and 16 bits are");
  numbers.node.attributes.ints["block_size"] = 16;
  check("blocks", numbers, "block_size is 16");
}

// Milliseconds on one thread, of what has `part` in its name.
void bench(const std::string& part) {
  Random random(1);
  const auto show = [&part](const std::string& name, Case test) {
    if (name.find(part) == std::string::npos) return;
    for (const Isa isa : all_isas()) {
      test.node.isa = isa;
      std::printf("%-44s isa %d  %.4f ms\n", name.c_str(), static_cast<int>(isa), milliseconds(test));
    }
  };
  const Shape shape{1, 64, 56, 56};
  for (const std::string rounding : {"half_up", "half_even"}) {
    Case add;
    add.key = "ai.qdqtool::Add";
    add.node.outputs = {DataType::int8};
    add.inputs = {Data::random(random, DataType::int8, shape), Data::random(random, DataType::int8, shape)};
    add.constants = 2;
    add.node.attributes.strings["rounding"] = rounding;
    add.node.attributes.ints = {{"a_multiplier", 2}, {"b_multiplier", 1}, {"shift", 1}};
    show("Add 64x56x56 shift " + rounding, add);
    add.node.attributes.ints = {{"a_multiplier", 1073741824}, {"b_multiplier", 923741824}, {"shift", 30}};
    show("Add 64x56x56 fixed_point " + rounding, add);
    add.inputs[1] = Data::random(random, DataType::int8, {64, 1, 1});
    show("Add 64x56x56 + 64x1x1 " + rounding, add);
    add.node.attributes.strings["mode"] = "float";
    add.node.attributes.floats = {{"a_scale", 0.013f}, {"b_scale", 0.02f}, {"y_scale", 0.03f}};
    show("Add 64x56x56 float " + rounding, add);
    add.key = "ai.qdqtool::Mul";
    add.node.attributes.strings["mode"] = "integer";
    add.node.attributes.ints = {{"multiplier", 1073741824}, {"shift", 36}};
    show("Mul 64x56x56 fixed_point " + rounding, add);
  }
  Case pool;
  pool.key = "::MaxPool";
  pool.node.outputs = {DataType::int8};
  pool.inputs = {Data::random(random, DataType::int8, {1, 64, 112, 112})};
  pool.constants = 1;
  pool.node.attributes.int_lists = {{"kernel_shape", {3, 3}}, {"strides", {2, 2}}, {"pads", {1, 1, 1, 1}}};
  show("MaxPool 3x3/2 64x112x112", pool);
  pool.key = "ai.qdqtool::AveragePool";
  pool.node.attributes.ints = {{"multiplier", 1073741824}, {"shift", 30}};
  show("AveragePool 3x3/2 64x112x112", pool);
  pool.node.attributes.int_lists["strides"] = {1, 1};
  show("AveragePool 3x3/1 64x112x112", pool);
  pool.key = "ai.qdqtool::ReduceMean";
  pool.node.attributes.int_lists = {{"axes", {2, 3}}};
  show("ReduceMean HW 64x112x112", pool);
  pool.node.attributes.int_lists = {{"axes", {1}}};
  show("ReduceMean C 64x112x112", pool);
  pool.key = "ai.qdqtool::Lookup";
  pool.inputs.push_back(Data::random(random, DataType::int8, {256}));
  show("Lookup 64x112x112", pool);
  Case shares;
  shares.key = "ai.qdqtool::Softmax";
  shares.node.outputs = {DataType::uint8};
  std::vector<int64_t> entries;
  for (int d = 0; d < 256; ++d) entries.push_back(std::llrint(std::exp(-d * 0.1) * (1 << 30)));
  shares.inputs = {Data::random(random, DataType::int8, {8, 197, 197}), Data::of(DataType::int64, {256}, entries)};
  shares.constants = 1;
  shares.node.attributes.ints = {{"multiplier", 1}, {"shift", -8}};
  show("Softmax 8x197x197", shares);
  Case numbers;
  numbers.key = "::QuantizeLinear";
  numbers.node.outputs = {DataType::int8};
  numbers.inputs = {Data(DataType::float32, {1, 64, 56, 56}), Data::of(DataType::float32, {}, std::vector<float>{0.1f}),
                    Data(DataType::int8, {})};
  for (int64_t i = 0; i < numbers.inputs[0].tensor.count(); ++i) {
    numbers.inputs[0].tensor.as<float>()[i] = random.real(-10, 10);
  }
  numbers.constants = 1;
  show("QuantizeLinear 64x56x56", numbers);
  numbers.key = "::DequantizeLinear";
  numbers.node.outputs = {DataType::float32};
  numbers.inputs[0] = Data::random(random, DataType::int8, shape);
  show("DequantizeLinear 64x56x56", numbers);
}

}  // namespace
}  // namespace test

int main(int count, char** arguments) {
  using namespace test;
  if (count > 1 && std::string(arguments[1]) == "bench") {
    bench(count > 2 ? arguments[2] : "");
    return 0;
  }
  Random random(20);
  for (int i = 0, end = rounds(600, count, arguments); i < end; ++i) {
    two_operands(random);
    max_pool(random);
    average_pool(random);
    quantize(random);
    if (i % 3 == 0) lookup(random), reduce_mean(random), softmax(random);
  }
  large(random);
  refusals();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
