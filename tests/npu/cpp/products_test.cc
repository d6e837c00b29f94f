// Conv, ConvTranspose and MatMul on random cases, against sums of 64 bits over every pair of elements and rational
// numbers as two integers; and every path of a Requantizer against the same. `products_test CASES` says how many cases
// of each.
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "arithmetic.hpp"
#include "kernels/products/product.hpp"

namespace test {
namespace {

int64_t zero_point(Random& random, DataType type, bool is_simple) {
  const int64_t half = is_16_bit(type) ? 32768 : 128;
  const bool is_signed = type == DataType::int8 || type == DataType::int16;
  if (is_simple) return is_signed ? 0 : half;
  return random.integer(0, 2 * half - 1) - (is_signed ? half : 0);
}

DataType some_type(Random& random, bool is_wide) {
  if (is_wide && random.flag()) return random.flag() ? DataType::uint16 : DataType::int16;
  return random.flag() ? DataType::uint8 : DataType::int8;
}

// How much larger sums are than those of bytes.
double size_of_sums(DataType a, DataType b) { return (is_16_bit(a) ? 256.0 : 1.0) * (is_16_bit(b) ? 256.0 : 1.0); }

// Weights as they are found in networks: most of them small beside the largest, which is one of the type's limits.
void gather_weights(Random& random, Data& weights) {
  auto* bytes = weights.tensor.as<uint8_t>();
  const int64_t spread = random.one_of<int64_t>({10, 25, 42});
  for (size_t i = 0; i < weights.bytes(); ++i) {
    int64_t value = 0;
    for (int part = 0; part < 3; ++part) value += random.integer(-spread, spread);
    if (random.integer(0, 40) == 0) value = random.flag() ? 127 : -128;
    bytes[i] = static_cast<uint8_t>(value + (weights.tensor.type == DataType::int8 ? 0 : 128));
  }
}

// Bodies on three threads.
void threaded(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) body(i);
  };
  std::thread others[] = {std::thread(work), std::thread(work)};
  work();
  for (std::thread& other : others) other.join();
}

void check_all(Case& test, const Shape& shape, const std::vector<int64_t>& wanted, bool is_threaded,
               const std::string& what) {
  for (const Isa isa : all_isas()) {
    test.node.isa = isa;
    const std::string name = what + (isa == Isa::avx512 ? " avx512" : isa == Isa::avx2 ? " avx2" : " portable");
    try {
      check_equal(outputs_of(test, is_threaded ? ParallelFor(threaded) : ParallelFor(backwards))[0], shape,
                  wanted, name);
    } catch (const Error& error) {
      fail(name + ": " + error.what());
    }
  }
}

using Three = std::array<int64_t, 3>;

struct Layer {
  size_t rank = 2;
  int64_t batch = 1, groups = 1, in = 1, out = 1;  // channels of one group
  Three input = {1, 1, 1}, kernel = {1, 1, 1}, strides = {1, 1, 1}, dilations = {1, 1, 1}, begins = {0, 0, 0},
        ends = {0, 0, 0}, padding = {0, 0, 0}, output = {1, 1, 1};

  std::vector<int64_t> list(const Three& three) const {
    return {three.end() - static_cast<std::ptrdiff_t>(rank), three.end()};
  }

  static Layer random(Random& random, bool is_transposed) {
    Layer layer;
    layer.rank = static_cast<size_t>(random.one_of<int64_t>({1, 2, 2, 2, 2, 3}));
    layer.batch = random.integer(1, 2);
    const int64_t kind = random.integer(0, 3);
    if (kind == 0) {  // depthwise
      layer.groups = random.integer(1, 20), layer.out = random.integer(0, 3) ? 1 : 2;
    } else if (kind == 1) {
      layer.groups = random.integer(2, 4), layer.in = random.integer(1, 6), layer.out = random.integer(1, 9);
    } else {
      layer.in = random.integer(1, 24), layer.out = random.integer(1, 27);
    }
    for (bool found = false; !found;) {
      found = true;
      for (size_t d = 3 - layer.rank; d < 3; ++d) {
        const bool is_last = d == 2;
        layer.input[d] = random.integer(1, layer.rank == 3 ? 6 : is_last ? random.one_of<int64_t>({9, 20, 90}) : 12);
        layer.kernel[d] = random.one_of<int64_t>({1, 1, 2, 3, 3, 5});
        layer.strides[d] = random.one_of<int64_t>({1, 1, 2, 3});
        layer.dilations[d] = random.one_of<int64_t>({1, 1, 1, 2});
        layer.begins[d] = random.integer(0, 3), layer.ends[d] = random.integer(0, 3);
        if (random.integer(0, 2) == 0) layer.begins[d] = layer.ends[d] = 0;
        const int64_t reach = (layer.kernel[d] - 1) * layer.dilations[d] + 1;
        if (is_transposed) {
          layer.padding[d] = random.integer(0, std::max(layer.strides[d], layer.dilations[d]) - 1);
          layer.output[d] =
              layer.strides[d] * (layer.input[d] - 1) + reach + layer.padding[d] - layer.begins[d] - layer.ends[d];
        } else {
          const int64_t room = layer.input[d] + layer.begins[d] + layer.ends[d] - reach;
          layer.output[d] = room < 0 ? 0 : room / layer.strides[d] + 1;
        }
        found = found && layer.output[d] >= 1;
      }
    }
    return layer;
  }
};

int64_t flat(const Three& at, const Three& size) { return (at[0] * size[1] + at[1]) * size[2] + at[2]; }
int64_t count(const Three& size) { return size[0] * size[1] * size[2]; }

template <class Body>
void each(const Three& size, const Body& body) {
  for (int64_t z = 0; z < size[0]; ++z) {
    for (int64_t y = 0; y < size[1]; ++y) {
      for (int64_t x = 0; x < size[2]; ++x) body(Three{z, y, x});
    }
  }
}

void test_conv(Random& random, bool is_transposed, int index) {
  const Layer layer = Layer::random(random, is_transposed);
  const int64_t channels = layer.groups * layer.out, in_channels = layer.groups * layer.in;
  Case test;
  test.key = is_transposed ? "ai.qdqtool::ConvTranspose" : "ai.qdqtool::Conv";
  test.constants = 1;
  const bool is_wide = random.integer(0, 2) == 0;
  const DataType x_type = some_type(random, is_wide), w_type = some_type(random, is_wide);
  const auto with_axes = [&](int64_t first, int64_t second, const Three& axes) {
    Shape shape = {first, second};
    for (const int64_t size : layer.list(axes)) shape.push_back(size);
    return shape;
  };
  const Data x = Data::random(random, x_type, with_axes(layer.batch, in_channels, layer.input));
  Data w = Data::random(
      random, w_type,
      is_transposed ? with_axes(in_channels, layer.out, layer.kernel) : with_axes(channels, layer.in, layer.kernel));
  const int64_t x_zero = zero_point(random, x_type, random.flag());
  std::vector<int64_t> w_zero(random.integer(0, 2) == 0 ? static_cast<size_t>(channels) : 1);
  const bool is_simple = random.flag();
  for (int64_t& z : w_zero) z = zero_point(random, w_type, is_simple);
  if (random.flag() && !is_16_bit(w_type)) gather_weights(random, w);
  const int64_t x_shift = random.integer(0, 3) ? 0 : random.integer(1, 15);
  test.inputs = {x, w};
  std::vector<int32_t> bias(static_cast<size_t>(channels), 0);
  const double typical = 5000 * size_of_sums(x_type, w_type) *
                         std::sqrt(static_cast<double>(layer.in * count(layer.kernel))) *
                         static_cast<double>(int64_t{1} << x_shift);
  test.inputs.resize(3);
  if (random.flag()) {
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(typical), (int64_t{1} << 31) - 1);
    for (int32_t& b : bias) b = static_cast<int32_t>(random.integer(-most, most));
    test.inputs[2] = Data::of(DataType::int32, {channels}, bias);
  }
  const Arithmetic arithmetic =
      Arithmetic::random(random, test.node, test.inputs, 3, static_cast<size_t>(channels), typical, is_wide);
  auto& attributes = test.node.attributes;
  attributes.ints["x_zero_point"] = x_zero, attributes.ints["group"] = layer.groups,
  attributes.ints["x_shift"] = x_shift;
  attributes.int_lists["w_zero_points"] = w_zero;
  attributes.int_lists["kernel_shape"] = layer.list(layer.kernel),
  attributes.int_lists["strides"] = layer.list(layer.strides);
  attributes.int_lists["dilations"] = layer.list(layer.dilations);
  std::vector<int64_t> pads = layer.list(layer.begins), ends = layer.list(layer.ends);
  pads.insert(pads.end(), ends.begin(), ends.end());
  attributes.int_lists["pads"] = pads;
  if (is_transposed) attributes.int_lists["output_padding"] = layer.list(layer.padding);

  std::vector<int64_t> wanted;
  for (int64_t n = 0; n < layer.batch; ++n) {
    std::vector<int64_t> sums(static_cast<size_t>(channels * count(layer.output)), 0);
    for (int64_t m = 0; m < channels; ++m) {
      const int64_t zw = w_zero[w_zero.size() == 1 ? 0 : static_cast<size_t>(m)];
      for (int64_t c = 0; c < layer.in; ++c) {
        const int64_t channel = m / layer.out * layer.in + c;
        const int64_t x_at = (n * in_channels + channel) * count(layer.input), y_at = m * count(layer.output);
        const int64_t w_at =
            (is_transposed ? channel * layer.out + m % layer.out : m * layer.in + c) * count(layer.kernel);
        // The side that moves by the stride: input positions of a transposed convolution, else output positions.
        each(is_transposed ? layer.input : layer.output, [&](const Three& at) {
          each(layer.kernel, [&](const Three& k) {
            Three other;
            for (size_t d = 0; d < 3; ++d) {
              other[d] = at[d] * layer.strides[d] + k[d] * layer.dilations[d] - layer.begins[d];
              if (other[d] < 0 || other[d] >= (is_transposed ? layer.output : layer.input)[d]) return;
            }
            const Three &seen = is_transposed ? at : other, &made = is_transposed ? other : at;
            sums[static_cast<size_t>(y_at + flat(made, layer.output))] +=
                (x.at(x_at + flat(seen, layer.input)) - x_zero) * (w.at(w_at + flat(k, layer.kernel)) - zw);
          });
        });
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const size_t m = i / static_cast<size_t>(count(layer.output));
      wanted.push_back(arithmetic(Wide{sums[i]} * (int64_t{1} << x_shift) + bias[m], m));
    }
  }
  check_all(test, with_axes(layer.batch, channels, layer.output), wanted, index % 8 == 0,
            test.key + " " + std::to_string(index));
}

void test_matmul(Random& random, int index) {
  Case test;
  test.key = "ai.qdqtool::MatMul";
  const bool is_constant = random.integer(0, 2) != 0;
  const int64_t rows = random.one_of<int64_t>({1, 1, 2, 5, 6, 7, 13, 40}),
                depth = random.one_of<int64_t>({1, 3, 4, 17, 64, 100, 300});
  const int64_t columns = random.one_of<int64_t>({1, 3, 15, 16, 17, 33, 48, 63, 64, 65, 100, 130, 200});
  Shape a_shape = {rows, depth}, b_shape = {depth, columns}, y_shape = {rows, columns};
  const int64_t kind = random.integer(0, 7);
  int64_t a_batches = 1, b_batches = 1, batches = 1;
  std::function<std::pair<int64_t, int64_t>(int64_t)> pick = [](int64_t) { return std::pair<int64_t, int64_t>(0, 0); };
  if (kind == 1) {
    a_shape = {3, rows, depth}, y_shape = {3, rows, columns}, a_batches = batches = 3;
    pick = [](int64_t b) { return std::pair<int64_t, int64_t>(b, 0); };
  } else if (kind == 2) {
    a_shape = {2, 3, rows, depth}, b_shape = {2, 3, depth, columns}, y_shape = {2, 3, rows, columns},
    a_batches = b_batches = batches = 6;
    pick = [](int64_t b) { return std::pair<int64_t, int64_t>(b, b); };
  } else if (kind == 3) {
    a_shape = {2, 1, rows, depth}, b_shape = {3, depth, columns}, y_shape = {2, 3, rows, columns}, a_batches = 2,
    b_batches = 3, batches = 6;
    pick = [](int64_t b) { return std::pair<int64_t, int64_t>(b / 3, b % 3); };
  } else if (kind == 4) {
    b_shape = {2, 1, depth, columns}, y_shape = {2, 1, rows, columns}, b_batches = batches = 2;
    pick = [](int64_t b) { return std::pair<int64_t, int64_t>(0, b); };
  } else if (kind == 5 && rows == 1) {
    a_shape = {depth}, y_shape = {columns};
  } else if (kind == 6 && columns == 1) {
    b_shape = {depth}, y_shape = {rows};
  }
  const bool is_wide = random.integer(0, 2) == 0;
  const DataType a_type = some_type(random, is_wide), b_type = some_type(random, is_wide);
  const Data a = Data::random(random, a_type, a_shape), b = Data::random(random, b_type, b_shape);
  const int64_t a_zero = zero_point(random, a_type, random.flag());
  std::vector<int64_t> b_zero(is_constant && random.integer(0, 2) == 0 ? static_cast<size_t>(columns) : 1);
  const bool is_simple = random.flag();
  for (int64_t& z : b_zero) z = zero_point(random, b_type, is_simple);
  const int64_t x_shift = random.integer(0, 3) ? 0 : random.integer(1, 15);
  test.inputs = {a, b};
  test.inputs.resize(3);
  test.constants = is_constant ? 1 : 2;
  std::vector<int32_t> bias(static_cast<size_t>(columns), 0);
  const double typical = 5000 * size_of_sums(a_type, b_type) * std::sqrt(static_cast<double>(depth)) *
                         static_cast<double>(int64_t{1} << x_shift);
  if (random.flag()) {
    const int64_t most = std::min<int64_t>(static_cast<int64_t>(typical), (int64_t{1} << 31) - 1);
    for (int32_t& one : bias) one = static_cast<int32_t>(random.integer(-most, most));
    test.inputs[2] = Data::of(DataType::int32, {columns}, bias);
  }
  const Arithmetic arithmetic =
      Arithmetic::random(random, test.node, test.inputs, 3, is_constant ? static_cast<size_t>(columns) : 1, typical, is_wide);
  test.node.attributes.ints["a_zero_point"] = a_zero, test.node.attributes.ints["x_shift"] = x_shift;
  test.node.attributes.int_lists["b_zero_points"] = b_zero;

  std::vector<int64_t> wanted;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const auto [a_at, b_at] = pick(batch);
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < columns; ++n) {
        const auto channel = static_cast<size_t>(n);
        int64_t sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += (a.at((a_at * rows + m) * depth + k) - a_zero) *
                 (b.at((b_at * depth + k) * columns + n) - b_zero[b_zero.size() == 1 ? 0 : channel]);
        }
        wanted.push_back(arithmetic(Wide{sum} * (int64_t{1} << x_shift) + bias[channel], channel));
      }
    }
  }
  (void)a_batches, (void)b_batches;
  check_all(test, y_shape, wanted, index % 8 == 0, test.key + " " + std::to_string(index));
}

// Rows of sums of every size, with those where rounding decides.
void test_requantizer(Random& random, int index) {
  NodeInfo node;
  std::vector<Data> inputs;
  const int magnitude = static_cast<int>(random.integer(4, 31));
  const Arithmetic arithmetic = Arithmetic::random(random, node, inputs, 0, 3, std::ldexp(1.0, magnitude - 1));
  node.inputs = tensors_of(inputs);
  const int64_t bound = (int64_t{1} << magnitude) - 1;
  std::vector<int32_t> sums;
  for (int64_t i = 0; i < 99; ++i) sums.push_back(static_cast<int32_t>(random.integer(-bound, bound)));
  for (const int64_t sum : {int64_t{0}, int64_t{1}, int64_t{-1}, bound, -bound, (bound + 1) / 2, -(bound + 1) / 2}) {
    sums.push_back(static_cast<int32_t>(sum));
  }
  for (const Isa isa : all_isas()) {
    node.isa = isa;
    const auto requantizer = qdqtool::Requantizer::of_inputs(node, 0, 3);
    const auto path = requantizer.plan({bound, bound, bound});
    for (size_t channel = 0; channel < 3; ++channel) {
      std::vector<uint8_t> y(sums.size());
      requantizer.row(sums.data(), sums.size(), channel, y.data(), path);
      for (size_t i = 0; i < sums.size(); ++i) {
        const int64_t found = arithmetic.type == DataType::int8 ? static_cast<int8_t>(y[i]) : y[i],
                      wanted = arithmetic(sums[i], channel);
        const std::string what = "requantizer " + std::to_string(index) + " path " +
                                 std::to_string(static_cast<int>(path)) + " of " + std::to_string(sums[i]);
        if (found != wanted) fail(what + ": " + std::to_string(found) + ", not " + std::to_string(wanted));
        if (requantizer(sums[i], channel) != wanted)
          fail(what + ": the scalar one is " + std::to_string(requantizer(sums[i], channel)));
      }
    }
  }
}

// What must be refused with a message, and what it says.
void test_errors() {
  Random random(1);
  const auto conv = [&](const std::function<void(Case&)>& change) {
    Case test;
    test.key = "ai.qdqtool::Conv";
    test.constants = 1;
    test.inputs = {Data::random(random, DataType::uint8, {1, 4, 5, 5}),
                   Data::random(random, DataType::int8, {2, 4, 3, 3}), Data(),
                   Data::of<int32_t>(DataType::int32, {1}, {1}), Data::of<int32_t>(DataType::int32, {1}, {8})};
    test.node.outputs = {DataType::uint8};
    change(test);
    return error_of(test);
  };
  const auto check = [](const std::string& message, const std::string& wanted) {
    if (message.find(wanted) == std::string::npos || (wanted.empty() && !message.empty()))
      fail("message '" + message + "', not '" + wanted + "'");
  };
  check(conv([](Case&) {}), "");
  check(conv([&](Case& t) { t.inputs[0] = Data::random(random, DataType::int32, {1, 4, 5, 5}); }), "X is int32");
  check(conv([&](Case& t) {
          t.inputs[0] = Data::random(random, DataType::uint8, {1, 3, 5, 5});
        }),
        "X has the shape [1, 3, 5, 5]");
  check(conv([&](Case& t) { t.inputs[0] = Data::random(random, DataType::uint8, {1, 4, 2, 5}); }), "no elements");
  check(conv([](Case& t) { t.constants = 2; }), "W must be a constant");
  check(conv([](Case& t) { t.node.attributes.ints["group"] = 3; }), "group is 3");
  check(conv([](Case& t) { t.node.attributes.ints["group"] = -1; }), "group is -1");
  check(conv([](Case& t) { t.node.attributes.ints["x_zero_point"] = 256; }), "x_zero_point");
  check(conv([](Case& t) { t.node.attributes.int_lists["w_zero_points"] = {0, 0, 0}; }), "w_zero_points has 3 entries");
  check(conv([](Case& t) { t.node.attributes.int_lists["strides"] = {0, 1}; }), "strides");
  check(conv([](Case& t) { t.node.attributes.int_lists["pads"] = {1, 1}; }), "pads has 2 entries");
  check(conv([](Case& t) {
          t.node.attributes.int_lists["pads"] = {int64_t{1} << 31, 0, int64_t{1} << 31, int64_t{1} << 31};
        }),
        "64 bits");
  check(conv([](Case& t) { t.inputs[4] = Data(); }), "shift is missing");
  check(conv([](Case& t) { t.node.attributes.strings["rounding"] = "up"; }), "rounding is 'up'");
  check(conv([](Case& t) {
          t.inputs[3] = Data::of<int32_t>(DataType::int32, {3}, {1, 1, 1});
        }),
        "multiplier has the shape [3]");
  Case test;
  test.key = "ai.qdqtool::MatMul";
  test.constants = 1;
  test.inputs = {Data::random(random, DataType::uint8, {2, 3}), Data::random(random, DataType::int8, {4, 5}), Data(),
                 Data::of<int32_t>(DataType::int32, {1}, {1}), Data::of<int32_t>(DataType::int32, {1}, {8})};
  test.node.outputs = {DataType::uint8};
  check(error_of(test), "A of shape [2, 3] does not multiply B of shape [4, 5]");
}

}  // namespace
}  // namespace test

int main(int count, char** arguments) {
  const int cases = test::rounds(400, count, arguments);
  test::Random random(20);
  for (int i = 0; i < 4 * cases; ++i) test::test_requantizer(random, i);
  for (int i = 0; i < cases; ++i) test::test_conv(random, false, i);
  for (int i = 0; i < cases / 2; ++i) test::test_conv(random, true, i);
  for (int i = 0; i < cases; ++i) test::test_matmul(random, i);
  test::test_errors();
  std::printf("%zu instruction sets, %d failures\n", test::all_isas().size(), test::failures);
  return test::failures != 0;
}
