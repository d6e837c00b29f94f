// Sums of products one by one, in 64 bits: what is right for any types, where no bound proves 32 bits enough. A wider
// type of activations is one more line in with_type().
#pragma once
#include "kernels/shared/arguments.hpp"

namespace qdqtool {

// body(T{}) with the C++ type of the elements.
template <class Body>
void with_type(DataType type, const Body& body) {
  switch (type) {
    case DataType::uint8: return body(uint8_t{});
    case DataType::int8: return body(int8_t{});
    default: throw Error(name_of(type) + " is not computed");
  }
}

// Elements that lie `step` apart, and what stands for 0 among them.
template <class T>
struct Factor {
  const T* data;
  int64_t step;
  int64_t zero_point;
};

template <class A, class B>
int64_t sum_of_products(const Factor<A>& a, const Factor<B>& b, size_t count) {
  int64_t sum = 0;
  for (auto i = static_cast<int64_t>(count); i-- > 0;) {
    sum += (a.data[i * a.step] - a.zero_point) * (b.data[i * b.step] - b.zero_point);
  }
  return sum;
}

}  // namespace qdqtool
