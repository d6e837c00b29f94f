// The movement operators on random cases, against an index for each element of the output that is worked out here on its own; and
// what they refuse. `movement_test bench` tells times.
#include <numeric>

#include "harness.hpp"

namespace test {
namespace {

DataType random_type(Random& random) {
  return random.one_of({DataType::uint8, DataType::int8, DataType::int16, DataType::float16, DataType::int32,
                        DataType::float32, DataType::int64});
}

Shape random_shape(Random& random, int64_t least_rank) {
  Shape shape;
  for (int64_t rank = random.integer(least_rank, 5); rank > 0; --rank) {
    shape.push_back(random.one_of<int64_t>({1, 2, 3, 4, 9}));
  }
  if (!shape.empty() && random.flag()) {
    shape[static_cast<size_t>(random.integer(0, static_cast<int64_t>(shape.size()) - 1))] = random.integer(1, 70);
  }
  return shape;
}

using Index = std::vector<int64_t>;

Index index_of(const Shape& shape, int64_t flat) {
  Index index(shape.size());
  for (size_t i = shape.size(); i-- > 0; flat /= shape[i]) index[i] = flat % shape[i];
  return index;
}

int64_t flat_of(const Shape& shape, const Index& index) {
  int64_t flat = 0;
  for (size_t i = 0; i < shape.size(); ++i) flat = flat * shape[i] + index[i];
  return flat;
}

std::string described(const Case& test) {
  std::string text = test.key;
  for (const auto& [name, value] : test.node.attributes.strings) text += " " + name + "=" + value;
  for (const auto& [name, value] : test.node.attributes.ints) text += " " + name + "=" + std::to_string(value);
  for (const auto& [name, value] : test.node.attributes.int_lists) text += " " + name + "=" + text_of(value);
  for (const Data& input : test.inputs) {
    text += " " + text_of(input.tensor.shape);
    if (input.tensor.type == DataType::int64 && input.tensor.count() < 9) {
      text += "=";
      for (int64_t i = 0; i < input.tensor.count(); ++i) text += (i ? "," : "") + std::to_string(input.at(i));
    }
  }
  return text;
}

// Output `which` has `shape`; its element `index` is that of input source(index).first at source(index).second, or the fill where
// that is below 0.
template <class Source>
void check(Case& test, size_t which, const Shape& shape, const Source& source, const char* fill = nullptr) {
  try {
    const std::vector<Data> outputs = outputs_of(test);
    const Data& found = outputs.at(which);
    if (found.tensor.shape != shape) {
      return fail(described(test) + ": shape " + text_of(found.tensor.shape) + ", not " + text_of(shape));
    }
    const size_t element = qdqtool::size_of(found.tensor.type);
    static const char zeros[8] = {};
    for (int64_t i = 0; i < qdqtool::count_of(shape); ++i) {
      const auto [input, at] = source(index_of(shape, i));
      const char* read = static_cast<const char*>(test.inputs.at(input).tensor.data);
      const char* wanted = at < 0 ? (fill ? fill : zeros) : read + at * static_cast<int64_t>(element);
      if (std::memcmp(found.tensor.as<char>() + i * static_cast<int64_t>(element), wanted, element) == 0) continue;
      return fail(described(test) + ": element " + std::to_string(i) + " of " + text_of(shape));
    }
  } catch (const Error& error) {
    fail(described(test) + ": " + error.what());
  }
}

Case case_of(Random& random, const std::string& key, DataType type, const Shape& shape, size_t outputs = 1) {
  Case test;
  test.key = key;
  test.inputs = {Data::random(random, type, shape)};
  test.constants = 1;
  test.node.outputs.assign(outputs, type);
  return test;
}

std::pair<size_t, int64_t> at(int64_t flat) { return {0, flat}; }

void transpose(Random& random) {
  const Shape from = random_shape(random, 0);
  Case test = case_of(random, "::Transpose", random_type(random), from);
  Index order(from.size());
  std::iota(order.rbegin(), order.rend(), 0);
  if (random.integer(0, 4)) {
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    test.node.attributes.int_lists["perm"] = order;
  }
  Shape to;
  for (const int64_t axis : order) to.push_back(from[static_cast<size_t>(axis)]);
  check(test, 0, to, [&](const Index& index) {
    Index source(from.size());
    for (size_t i = 0; i < order.size(); ++i) source[static_cast<size_t>(order[i])] = index[i];
    return at(flat_of(from, source));
  });
}

void slice(Random& random) {
  const Shape from = random_shape(random, 1);
  Case test = case_of(random, "::Slice", random_type(random), from);
  Shape to = from;
  Index first(from.size(), 0), step(from.size(), 1), starts, ends, axes, steps;
  for (size_t i = 0; i < from.size(); ++i) {
    if (random.flag()) continue;
    const int64_t size = from[i], pace = random.one_of<int64_t>({1, 1, 2, 3, -1, -2, 100, -100});
    const int64_t start = random.one_of<int64_t>({random.integer(-size, size - 1), 0, INT64_MAX, INT64_MIN, -1});
    const int64_t end = random.one_of<int64_t>({random.integer(-size, size), size, INT64_MAX, INT64_MIN, -1});
    std::vector<int64_t> taken;  // as Python takes them: one index after the other
    const int64_t low = pace > 0 ? 0 : -1, high = pace > 0 ? size : size - 1;
    const int64_t begin =
        std::min(std::max(start < 0 ? start + size : start, pace > 0 ? int64_t{0} : int64_t{-1}), high);
    const int64_t stop = std::min(std::max(end < 0 ? end + size : end, low), high);
    for (int64_t at = pace < 0 && start < -size ? 0 : begin; pace > 0 ? at < stop : at > stop; at += pace) {
      taken.push_back(at);
    }
    to[i] = static_cast<int64_t>(taken.size()), first[i] = taken.empty() ? 0 : taken[0], step[i] = pace;
    starts.push_back(start), ends.push_back(end), steps.push_back(pace);
    axes.push_back(random.flag() ? static_cast<int64_t>(i)
                                 : static_cast<int64_t>(i) - static_cast<int64_t>(from.size()));
  }
  for (const Index& list : {starts, ends, axes, steps}) test.inputs.push_back(Data::integers(list));
  check(test, 0, to, [&](Index index) {
    for (size_t i = 0; i < index.size(); ++i) index[i] = first[i] + index[i] * step[i];
    return at(flat_of(from, index));
  });
}

void pad(Random& random) {
  const Shape from = random_shape(random, 1);
  const std::string mode = random.one_of<std::string>({"constant", "reflect", "edge", "wrap"});
  const DataType type = random_type(random);
  Case test = case_of(random, "::Pad", type, from);
  test.node.attributes.strings["mode"] = mode;
  Index before(from.size()), after(from.size()), axes, pads;
  Shape to = from;
  for (size_t i = 0; i < from.size(); ++i) {
    if (random.flag()) continue;
    before[i] = random.integer(-1, 6), after[i] = random.integer(-1, 6);
    if (from[i] + std::min<int64_t>(before[i], 0) + std::min<int64_t>(after[i], 0) < 1) before[i] = after[i] = 0;
    to[i] += before[i] + after[i];
    axes.push_back(static_cast<int64_t>(i));
  }
  for (const int64_t axis : axes) pads.push_back(before[static_cast<size_t>(axis)]);
  for (const int64_t axis : axes) pads.push_back(after[static_cast<size_t>(axis)]);
  const Data fill = Data::random(random, type, {});
  test.inputs.push_back(Data::integers(pads));
  test.inputs.push_back(fill);
  test.inputs.push_back(Data::integers(axes));
  check(
      test, 0, to,
      [&](Index index) {
        bool inside = true;
        for (size_t i = 0; i < index.size(); ++i) {
          // What is left after cutting is repeated step by step until it reaches the index.
          const int64_t low = std::max<int64_t>(0, -before[i]), high = from[i] - 1 + std::min<int64_t>(after[i], 0);
          int64_t source = index[i] - before[i];
          if (mode == "constant") inside = inside && source >= 0 && source < from[i];
          if (mode == "edge") source = std::min(std::max(source, low), high);
          while (mode == "wrap" && source < low) source += high - low + 1;
          while (mode == "wrap" && source > high) source -= high - low + 1;
          if (mode == "reflect" && low == high) source = low;
          while (mode == "reflect" && (source < low || source > high)) {
            source = source < low ? 2 * low - source : 2 * high - source;
          }
          index[i] = source;
        }
        return at(inside ? flat_of(from, index) : -1);
      },
      fill.tensor.as<char>());
}

void gather(Random& random) {
  const Shape from = random_shape(random, 1), picked = random.flag()   ? Shape{random.integer(0, 80)}
                                                       : random.flag() ? Shape{}
                                                                       : Shape{2, 3};
  Case test = case_of(random, "::Gather", random_type(random), from);
  const int64_t rank = static_cast<int64_t>(from.size()), axis = random.integer(-rank, rank - 1);
  const auto k = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  test.node.attributes.ints["axis"] = axis;
  Data indices(random.flag() ? DataType::int64 : DataType::int32, picked);
  int64_t next = 0;
  for (int64_t i = 0; i < indices.tensor.count(); ++i) {
    next = random.flag() ? random.integer(-from[k], from[k] - 1) : std::min(next + 1, from[k] - 1);
    if (indices.tensor.type == DataType::int64) indices.tensor.as<int64_t>()[i] = next;
    if (indices.tensor.type == DataType::int32) indices.tensor.as<int32_t>()[i] = static_cast<int32_t>(next);
  }
  test.inputs.push_back(indices);
  if (random.flag()) test.constants = 2;  // indices that are computed
  const auto split = from.begin() + static_cast<std::ptrdiff_t>(k);
  Shape to(from.begin(), split);
  to.insert(to.end(), picked.begin(), picked.end());
  to.insert(to.end(), split + 1, from.end());
  check(test, 0, to, [&](const Index& index) {
    const auto middle = index.begin() + static_cast<std::ptrdiff_t>(k),
               end = middle + static_cast<std::ptrdiff_t>(picked.size());
    const int64_t taken = indices.at(flat_of(picked, Index(middle, end)));
    Index source(index.begin(), middle);
    source.push_back(taken < 0 ? taken + from[k] : taken);
    source.insert(source.end(), end, index.end());
    return at(flat_of(from, source));
  });
}

void repeat(Random& random) {
  const bool tiles = random.flag();
  Shape from = random_shape(random, tiles ? 1 : 0), to = from;
  Index given;
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t times = random.one_of<int64_t>({1, 1, 2, 3, 0});
    if (tiles) to[i] = from[i] * times, given.push_back(times);
    if (!tiles && random.flag()) from[i] = 1, to[i] = times * 2 + 1;
    if (!tiles) given.push_back(random.flag() && to[i] == from[i] ? 1 : to[i]);
  }
  while (!tiles && !given.empty() && given[0] == 1 && random.flag()) given.erase(given.begin());
  if (!tiles && random.flag() && given.size() == from.size()) given.insert(given.begin(), 3), to.insert(to.begin(), 3);
  Case test = case_of(random, tiles ? "::Tile" : "::Expand", random_type(random), from);
  test.inputs.push_back(Data::integers(given));
  check(test, 0, to, [&](const Index& index) {
    Index source(index.end() - static_cast<std::ptrdiff_t>(from.size()), index.end());
    for (size_t i = 0; i < from.size(); ++i) source[i] %= from[i];
    return at(flat_of(from, source));
  });
}

void join_and_split(Random& random) {
  const Shape whole = random_shape(random, 1);
  const DataType type = random_type(random);
  const int64_t rank = static_cast<int64_t>(whole.size()), axis = random.integer(-rank, rank - 1);
  const auto k = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  Index lengths;
  for (int64_t left = whole[k]; left > 0 || lengths.empty(); left -= lengths.back()) {
    lengths.push_back(random.integer(0, left));
  }
  Index begins(lengths.size());
  std::partial_sum(lengths.begin(), lengths.end() - 1, begins.begin() + 1);
  Case split = case_of(random, "::Split", type, whole, lengths.size());
  split.node.attributes.ints["axis"] = axis;
  split.inputs.push_back(Data::integers(lengths));
  Case join;
  join.key = "::Concat";
  join.node.attributes.ints["axis"] = axis;
  join.node.outputs = {type};
  for (size_t i = 0; i < lengths.size(); ++i) {
    Shape part = whole;
    part[k] = lengths[i];
    check(split, i, part, [&](Index index) {
      index[k] += begins[i];
      return at(flat_of(whole, index));
    });
    join.inputs.push_back(Data::random(random, type, part));
  }
  join.constants = join.inputs.size();
  check(join, 0, whole, [&](Index index) {
    size_t i = lengths.size() - 1;
    while (index[k] < begins[i] || lengths[i] == 0) --i;
    index[k] -= begins[i];
    return std::pair<size_t, int64_t>{i, flat_of(join.inputs[i].tensor.shape, index)};
  });
  const int64_t parts = random.integer(1, 4), part = (whole[k] + parts - 1) / parts;
  Case equal = case_of(random, "::Split", type, whole, static_cast<size_t>(parts));
  equal.node.attributes.ints["axis"] = axis;
  if (whole[k] % parts != 0) equal.node.attributes.ints["num_outputs"] = parts;
  for (int64_t i = 0; i < parts && part * i < whole[k]; ++i) {
    Shape shape = whole;
    shape[k] = std::min(part, whole[k] - part * i);
    check(equal, static_cast<size_t>(i), shape, [&](Index index) {
      index[k] += part * i;
      return at(flat_of(whole, index));
    });
  }
}

// The same elements in the same order under the shape that is wanted.
void views(Random& random) {
  const auto check_view = [&random](const std::string& key, const Shape& from, const Shape& to,
                                    const std::vector<Index>& inputs, const std::map<std::string, int64_t>& ints = {}) {
    Case test = case_of(random, key, random_type(random), from);
    test.node.attributes.ints = ints;
    for (const Index& input : inputs) test.inputs.push_back(Data::integers(input));
    if (!prepared(test)->is_view()) fail(key + " is no view");
    check(test, 0, to, [&](const Index& index) { return at(flat_of(to, index)); });
  };
  check_view("::Identity", {2, 3}, {2, 3}, {});
  check_view("::Reshape", {2, 3, 4}, {2, 12}, {{0, -1}});
  check_view("::Reshape", {2, 3, 4}, {24}, {{-1}});
  check_view("::Reshape", {1}, {}, {{}});
  check_view("::Reshape", {0, 3}, {3, 0}, {{3, 0}}, {{"allowzero", 1}});
  check_view("::Reshape", {0, 3}, {0, 0}, {{0, -1}});
  check_view("::Reshape", {2, 3, 4}, {2, 3, 2, 2}, {{0, 0, 2, -1}});
  check_view("::Flatten", {2, 3, 4}, {2, 12}, {});
  check_view("::Flatten", {2, 3, 4}, {1, 24}, {}, {{"axis", 0}});
  check_view("::Flatten", {2, 3, 4}, {24, 1}, {}, {{"axis", 3}});
  check_view("::Flatten", {2, 3, 4}, {6, 4}, {}, {{"axis", -1}});
  check_view("::Squeeze", {1, 3, 1, 4}, {3, 4}, {});
  check_view("::Squeeze", {1, 3, 1, 4}, {1, 3, 4}, {{-2}});
  check_view("::Unsqueeze", {3, 4}, {1, 3, 4, 1}, {{0, -1}});
  Case old = case_of(random, "::Unsqueeze", DataType::int8, {3, 4});  // opset 11
  old.node.attributes.int_lists["axes"] = {1};
  check(old, 0, {3, 1, 4}, [](const Index& index) { return at(flat_of({3, 1, 4}, index)); });
}

// Tensors that are computed in parts.
void large(Random& random) {
  const Shape from{2, 130, 33, 64};
  Case test = case_of(random, "::Transpose", DataType::int8, from);
  test.node.attributes.int_lists["perm"] = {0, 2, 3, 1};
  check(test, 0, {2, 33, 64, 130}, [&](const Index& i) { return at(flat_of(from, {i[0], i[3], i[1], i[2]})); });
  test.node.attributes.int_lists["perm"] = {1, 0, 2, 3};
  check(test, 0, {130, 2, 33, 64}, [&](const Index& i) { return at(flat_of(from, {i[1], i[0], i[2], i[3]})); });
  Case twice = case_of(random, "::Gather", DataType::int8, from);
  Index doubled;
  for (int64_t i = 0; i < 128; ++i) doubled.push_back(i / 2);
  twice.node.attributes.ints["axis"] = 3;
  twice.inputs.push_back(Data::integers(doubled));
  check(twice, 0, {2, 130, 33, 128}, [&](Index i) {
    i[3] /= 2;
    return at(flat_of(from, i));
  });
  Case same = case_of(random, "::Identity", DataType::float32, from);
  check(same, 0, from, [&](const Index& i) { return at(flat_of(from, i)); });
}

void refusals(Random& random) {
  const auto refuse = [&random](const std::string& key, const Shape& from, const std::vector<Index>& inputs,
                                const std::string& part, const std::map<std::string, int64_t>& ints = {},
                                size_t outputs = 1) {
    Case test = case_of(random, key, DataType::int8, from, outputs);
    test.node.attributes.ints = ints;
    for (const Index& input : inputs) test.inputs.push_back(Data::integers(input));
    const std::string message = error_of(test);
    if (message.find(part) == std::string::npos) {
      fail(described(test) + ": '" + message + "' does not say '" + part + "'");
    }
  };
  const int64_t huge = int64_t{1} << 40;
  refuse("::Reshape", {2, 3}, {{4, -1}}, "[2, 3] cannot become [4, -1]");
  refuse("::Reshape", {2, 3}, {{-1, -1}}, "has -1 twice");
  refuse("::Reshape", {2, 3}, {{-7}}, "a dimension of -7");
  refuse("::Reshape", {2, 3}, {{6, 1, 0}}, "copies axis 2 of [2, 3]");
  refuse("::Reshape", {2, 3}, {{0, -1}}, "both 0 and -1", {{"allowzero", 1}});
  refuse("::Reshape", {2, 3}, {{huge, huge}}, "greater than 64 bits");
  refuse("::Reshape", {2, 3}, {}, "input 1 is missing");
  refuse("::Flatten", {2, 3}, {}, "axis 3 is outside", {{"axis", 3}});
  refuse("::Squeeze", {2, 3}, {{0}}, "axis 0 of [2, 3] is not 1");
  refuse("::Unsqueeze", {2, 3}, {{0, 0}}, "axis 0 is named twice");
  refuse("::Unsqueeze", {2, 3}, {}, "the axes are missing");
  refuse("::Slice", {2, 3}, {{0}, {1}, {0}, {0}}, "a step is 0");
  refuse("::Slice", {2, 3}, {{0, 0}, {1}}, "differ in length");
  refuse("::Slice", {2, 3}, {{0}, {1}, {2}}, "axis 2 is outside");
  refuse("::Pad", {2, 3}, {{1, 1}}, "2 pads for 2 axes");
  refuse("::Pad", {2, 3}, {{-2, 0, -1, 0}}, "the pads cut more than axis 0 of [2, 3] has");
  refuse("::Pad", {2, 3}, {{INT64_MIN, 0, 0, 0}}, "a pad of -9223372036854775808");
  refuse("::Pad", {2, 3}, {{INT64_MAX, 0, 0, 0}}, "a pad of 9223372036854775807");
  refuse("::Gather", {2, 3}, {{2}}, "index 2 is outside an axis of 2");
  refuse("::Gather", {2, 3}, {{INT64_MIN}}, "index -9223372036854775808 is outside");
  refuse("::Gather", {0, 3}, {{0}}, "index 0 is outside an axis of 0");
  refuse("::Expand", {2, 3}, {{2, 4}}, "[2, 3] cannot be expanded to [2, 4]");
  refuse("::Expand", {1, 1}, {{huge, huge}}, "more elements than 64 bits");
  refuse("::Expand", {1}, {{-1}}, "negative");
  refuse("::Tile", {2, 3}, {{1, -1}}, "repeated -1 times");
  refuse("::Tile", {2, 3}, {{1, INT64_MAX}}, "greater than 64 bits");
  refuse("::Split", {2, 3}, {{1, 1}}, "split [1, 1] does not fit an axis of 2 and 1 outputs");
  refuse("::Split", {2, 3}, {{-1, 3}}, "split has a length of -1", {}, 2);
  refuse("::Split", {3, 3}, {}, "3 is not 2 equal parts", {}, 2);
  refuse("::Concat", {2, 3}, {}, "'axis' is missing");
  refuse("::Transpose", {2, 3}, {{0}}, "has 2 inputs; at most 1");
  Case order = case_of(random, "::Transpose", DataType::int8, {2, 3});
  order.node.attributes.int_lists["perm"] = {0, 0};
  if (error_of(order) != "axis 0 is named twice") {
    fail("perm names an axis twice: " + error_of(order));
  }
  Case join = case_of(random, "::Concat", DataType::int8, {2, 3});
  join.node.attributes.ints["axis"] = 0;
  join.inputs.push_back(Data(DataType::int8, {2, 4}));
  if (error_of(join) != "[2, 3] and [2, 4] differ beside axis 0") {
    fail("concat of other shapes: " + error_of(join));
  }
  join.inputs[1] = Data(DataType::uint8, {2, 3});
  if (error_of(join) != "an input is uint8, not int8") {
    fail("concat of other types: " + error_of(join));
  }
  Case late = case_of(random, "::Reshape", DataType::int8, {2, 3});
  late.inputs.push_back(Data::integers({6}));
  late.constants = 2;
  if (error_of(late) != "the shape must be known before the run") {
    fail("a computed shape: " + error_of(late));
  }
  Case other = case_of(random, "::Identity", DataType::int8, {2});
  other.node.outputs = {DataType::int64};
  if (error_of(other) != "an output is int64, not int8") fail("another type: " + error_of(other));
}

void bench(Random& random) {
  const Shape image{1, 64, 112, 112};
  const auto show = [](const char* name, Case test) {
    std::printf("%-40s %.4f ms\n", name, milliseconds(test));
  };
  Case turn = case_of(random, "::Transpose", DataType::int8, image);
  turn.node.attributes.int_lists["perm"] = {0, 2, 3, 1};
  show("Transpose NCHW-NHWC 64x112x112", turn);
  turn.node.attributes.int_lists["perm"] = {0, 2, 1, 3};
  show("Transpose CH 64x112x112", turn);
  Case pads = case_of(random, "::Pad", DataType::int8, image);
  pads.inputs.push_back(Data::integers({0, 0, 1, 1, 0, 0, 1, 1}));
  show("Pad 1 64x112x112", pads);
  Case twice = case_of(random, "::Gather", DataType::int8, image);
  Index doubled;
  for (int64_t i = 0; i < 224; ++i) doubled.push_back(i / 2);
  twice.node.attributes.ints["axis"] = 3;
  twice.inputs.push_back(Data::integers(doubled));
  show("Gather axis 3, 64x112x112 to 224", twice);
  twice.node.attributes.ints["axis"] = 2;
  show("Gather axis 2, 64x112x112 to 224", twice);
  Case cut = case_of(random, "::Slice", DataType::int8, image);
  for (const Index& list : {Index{0, 0}, Index{112, 112}, Index{2, 3}, Index{2, 2}}) {
    cut.inputs.push_back(Data::integers(list));
  }
  show("Slice of every second, 64x112x112", cut);
  Case join = case_of(random, "::Concat", DataType::int8, image);
  join.inputs.push_back(Data::random(random, DataType::int8, image));
  join.node.attributes.ints["axis"] = 1;
  show("Concat of two 64x112x112", join);
}

}  // namespace
}  // namespace test

int main(int count, char** arguments) {
  using namespace test;
  Random random(21);
  if (count > 1 && std::string(arguments[1]) == "bench") {
    bench(random);
    return 0;
  }
  for (int i = 0, end = rounds(400, count, arguments); i < end; ++i) {
    transpose(random);
    slice(random);
    pad(random);
    gather(random);
    repeat(random);
    join_and_split(random);
  }
  views(random);
  large(random);
  refusals(random);
  std::printf("%d failures\n", failures);
  return failures != 0;
}
