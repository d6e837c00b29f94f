// Integers in blocks: any of the types of 8 and 16 bits read as int32 minus a zero point, and int32 written as any of them.
#pragma once
#include "kernels/shared/integers.hpp"
#include "kernels/shared/lanes.hpp"

namespace qdqtool {

template <class T>
struct WidenLoop {
  static QDQTOOL_INLINE void run(const T* __restrict x, int32_t zero_point, int32_t* __restrict y) {
    for (int i = 0; i < kBlock; ++i) y[i] = static_cast<int32_t>(x[i]) - zero_point;
  }
};

template <class T>
struct NarrowLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict x, int64_t count, T* __restrict y) {
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) y[i + j] = static_cast<T>(x[i + j]);
    }
    for (; i < count; ++i) y[i] = static_cast<T>(x[i]);
  }
};

// kBlock elements from `first` on of a tensor in one row, of which `length` are there, minus their zero point.
inline void widen(Isa isa, const Tensor& x, int64_t first, int64_t length, int32_t zero_point, int32_t* y) {
  with_integer(x.type, [&](auto element) {
    using T = decltype(element);
    T buffer[kBlock];
    run_loop<WidenLoop<T>>(isa, whole_block(x.as<T>() + first, length, buffer), zero_point, y);
  });
}

// `length` integers, which the type of `y` holds, to its elements from `first` on.
inline void narrow(Isa isa, const int32_t* x, int64_t first, int64_t length, Tensor& y) {
  with_integer(y.type, [&](auto element) {
    using T = decltype(element);
    run_loop<NarrowLoop<T>>(isa, x, length, y.as<T>() + first);
  });
}

// body(first, length) over blocks of at most kBlock elements, of which each costs as much as `cost` that are moved.
template <class Body>
void for_blocks(const ParallelFor& parallel, int64_t count, int64_t cost, const Body& body) {
  for_parts(parallel, (count + kBlock - 1) / kBlock, kBlock * cost, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kBlock; first < std::min(count, end * kBlock); first += kBlock) {
      body(first, std::min<int64_t>(kBlock, count - first));
    }
  });
}

}  // namespace qdqtool
