// What kernels share whose indices are data: reading them, checking them once before anything is moved.
#pragma once
#include "kernels/movement/movement.hpp"

namespace qdqtool {

inline void check_index_type(const Tensor& tensor) {
  if (tensor.type == DataType::int32 || tensor.type == DataType::int64) return;
  throw Error("the indices are " + name_of(tensor.type) + ", not int64 or int32");
}

// Index number `at` of a tensor of int32 or int64, as it is written.
inline int64_t index_at(const Tensor& indices, int64_t at) {
  return indices.type == DataType::int64 ? indices.as<int64_t>()[at] : indices.as<int32_t>()[at];
}

// The same counted from the start of an axis of `size`, of which it is an index.
inline int64_t index_from_start(const Tensor& indices, int64_t at, int64_t size) {
  const int64_t index = index_at(indices, at);
  return index < 0 ? index + size : index;
}

// Throws Error unless -size <= index < size.
inline void check_index(int64_t index, int64_t size) {
  if (index < -size || index >= size) {
    throw Error("index " + std::to_string(index) + " is outside an axis of " + std::to_string(size));
  }
}

// work(T{}) with an unsigned T of as many bytes as an element has.
template <class Work>
void with_bytes_of(DataType type, const Work& work) {
  switch (size_of(type)) {
    case 1: return work(uint8_t{});
    case 2: return work(uint16_t{});
    case 4: return work(uint32_t{});
    default: return work(uint64_t{});
  }
}

// The element of `data` [b…, d…] at which the block lies that row `row` of `indices` [b…, …, k] names: k indices of the axes
// from `batch` on. Throws Error for one that is outside of its axis.
struct Tuples {
  Shape strides;    // of data
  size_t batch = 0; // axes that data and indices have in common
  size_t length = 0;
  int64_t rows = 0, rows_per_batch = 1, batch_step = 0;

  Tuples(const Tensor& data, const Tensor& indices, size_t common)
      : strides(strides_of(data.shape)), batch(common), length(static_cast<size_t>(indices.shape.back())) {
    rows = count_between(indices.shape, 0, indices.shape.size() - 1);
    rows_per_batch = std::max<int64_t>(1, count_between(indices.shape, batch, indices.shape.size() - 1));
    batch_step = count_between(data.shape, batch, data.shape.size());
  }

  int64_t offset(const Tensor& data, const Tensor& indices, int64_t row) const {
    int64_t found = row / rows_per_batch * batch_step;
    for (size_t i = 0; i < length; ++i) {
      const int64_t at = row * static_cast<int64_t>(length) + static_cast<int64_t>(i), size = data.shape[batch + i];
      check_index(index_at(indices, at), size);
      found += index_from_start(indices, at, size) * strides[batch + i];
    }
    return found;
  }
};

// Checks that `indices` [b…, …, k] can name blocks of `data` [b…, d…]: b equal, k axes at most.
inline void check_tuples(const Shape& data, const Tensor& indices, size_t batch) {
  check_index_type(indices);
  indices.count();
  const Shape& shape = indices.shape;
  if (shape.empty() || data.empty()) throw Error("data and indices need an axis each");
  if (batch >= shape.size() || batch >= data.size()) throw Error("batch_dims is " + std::to_string(batch));
  if (!std::equal(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(batch), data.begin())) {
    throw Error(name_of(data) + " and the indices " + name_of(shape) + " differ in their first axes");
  }
  if (shape.back() < 1 || shape.back() > static_cast<int64_t>(data.size() - batch)) {
    throw Error("the indices " + name_of(shape) + " name more axes than " + name_of(data) + " has");
  }
}

// For GatherElements and ScatterElements: the rows of the indices along their last axis, and where each begins in the data.
struct Elements {
  size_t axis;
  Shape shape, strides;  // of the indices; of the data
  int64_t length, size, step;  // of a row; elements of the data along `axis`, and from one to the next

  Elements(const Shape& data, const Shape& indices, size_t along)
      : axis(along), shape(indices), strides(strides_of(data)), length(indices.back()), size(data[along]), step(strides[along]) {}

  // The element of the data at which row `row` begins, without its indices.
  int64_t offset(int64_t row) const {
    int64_t found = 0;
    for (size_t k = shape.size() - 1; k-- > 0;) {
      if (k != axis) found += row % shape[k] * strides[k];
      row /= shape[k];
    }
    return found;
  }

  // From one element of a row to the next, without its index.
  int64_t pace() const { return axis + 1 == shape.size() ? 0 : 1; }
};

inline void check_elements(const Shape& data, const Tensor& indices, size_t axis) {
  check_index_type(indices);
  indices.count();
  bool fits = indices.shape.size() == data.size() && !data.empty();
  for (size_t i = 0; fits && i < data.size(); ++i) fits = i == axis || indices.shape[i] <= data[i];
  if (!fits) throw Error("the indices " + name_of(indices.shape) + " do not fit " + name_of(data));
}

inline void check_all(const Tensor& indices, int64_t size) {
  const int64_t count = indices.count();
  for (int64_t i = 0; i < count; ++i) check_index(index_at(indices, i), size);
}

}  // namespace qdqtool
