// The parts of kernel.hpp that are not templates: sizes, counts and the getters of attributes.
#include "program/kernel.hpp"

#include <limits>

namespace qdqtool {

namespace {

// The word for the map of `attributes` that holds `name`, nullptr where none does.
const char* kind_of(const Attributes& attributes, const std::string& name) {
  if (attributes.ints.count(name)) return "an integer";
  if (attributes.floats.count(name)) return "a float";
  if (attributes.strings.count(name)) return "a string";
  if (attributes.int_lists.count(name)) return "a list of integers";
  if (attributes.float_lists.count(name)) return "a list of floats";
  return nullptr;
}

// The value of `name` in `map`; nullptr when the attribute is absent, Error when it is there as something else.
template <class Map>
const typename Map::mapped_type* find(const Attributes& attributes, const Map& map, const std::string& name,
                                      const char* wanted) {
  const auto at = map.find(name);
  if (at != map.end()) return &at->second;
  if (const char* kind = kind_of(attributes, name))
    throw Error("attribute '" + name + "' is " + kind + ", not " + wanted);
  return nullptr;
}

template <class T>
T value_or(const T* found, const T& fallback) {
  return found ? *found : fallback;
}

}  // namespace

size_t size_of(DataType type) {
  switch (type) {
    case DataType::uint8:
    case DataType::int8:
    case DataType::boolean: return 1;
    case DataType::uint16:
    case DataType::int16:
    case DataType::float16:
    case DataType::bfloat16: return 2;
    case DataType::float32:
    case DataType::int32:
    case DataType::uint32: return 4;
    case DataType::int64:
    case DataType::uint64:
    case DataType::float64: return 8;
    case DataType::none: break;
  }
  throw Error("no kernel reads or writes tensors of data type " + std::to_string(static_cast<int32_t>(type)));
}

int64_t count_of(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0) throw Error("a dimension is negative: " + std::to_string(dimension));
    if (dimension != 0 && count > std::numeric_limits<int64_t>::max() / dimension) {
      throw Error("a shape has more elements than 64 bits count");
    }
    count *= dimension;
  }
  return count;
}

int64_t Attributes::integer(const std::string& name) const {
  const int64_t* found = find(*this, ints, name, "an integer");
  if (!found) throw Error("attribute '" + name + "' is missing");
  return *found;
}

int64_t Attributes::integer(const std::string& name, int64_t fallback) const {
  return value_or(find(*this, ints, name, "an integer"), fallback);
}

float Attributes::real(const std::string& name, float fallback) const {
  return value_or(find(*this, floats, name, "a float"), fallback);
}

std::string Attributes::text(const std::string& name, const std::string& fallback) const {
  return value_or(find(*this, strings, name, "a string"), fallback);
}

std::vector<int64_t> Attributes::integers(const std::string& name, const std::vector<int64_t>& fallback) const {
  return value_or(find(*this, int_lists, name, "a list of integers"), fallback);
}

}  // namespace qdqtool
