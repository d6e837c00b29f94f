// Two operands brought to one shape as numpy does, handed out in blocks of kBlock elements of the result.
#pragma once
#include <array>

#include "kernels/shared/arguments.hpp"
#include "kernels/shared/lanes.hpp"

namespace qdqtool {

constexpr size_t kMostAxes = 16;

// The shape of a result of operands with these shapes; Error when they do not fit.
inline Shape broadcast_shape(const Shape& a, const Shape& b) {
  const size_t rank = std::max(a.size(), b.size());
  if (rank > kMostAxes) throw Error("tensors of rank " + std::to_string(rank) + " are not computed");
  Shape shape(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t from_a = i + a.size() < rank ? 1 : a[i + a.size() - rank],
                  from_b = i + b.size() < rank ? 1 : b[i + b.size() - rank];
    if (from_a != from_b && from_a != 1 && from_b != 1) {
      throw Error(name_of(a) + " and " + name_of(b) + " cannot be broadcast");
    }
    shape[i] = from_a == 1 ? from_b : from_a;
  }
  count_of(shape);
  return shape;
}

// How two operands are read: axes that step alike are merged; the stride of an operand is 0 where it is repeated.
class Broadcast {
 public:
  // The result must have elements.
  Broadcast(const Shape& a, const Shape& b) {
    const Shape shape = broadcast_shape(a, b);
    std::array<int64_t, 2> stride{1, 1};
    std::vector<Axis> axes;  // from the last
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t size = shape[shape.size() - 1 - i];
      if (size == 1) continue;
      Axis axis{size, {0, 0}};
      for (const size_t operand : {size_t{0}, size_t{1}}) {
        const Shape& own = operand == 0 ? a : b;
        if (i >= own.size() || own[own.size() - 1 - i] == 1) continue;
        axis.stride[operand] = stride[operand];
        stride[operand] *= size;
      }
      const auto follows = [&](size_t operand) {
        return axis.stride[operand] == axes.back().stride[operand] * axes.back().size;
      };
      if (!axes.empty() && follows(0) && follows(1)) {
        axes.back().size *= size;
      } else {
        axes.push_back(axis);
      }
    }
    if (axes.empty()) axes.push_back({1, {1, 1}});
    axes_ = std::move(axes);
  }

  // Elements [begin, begin + count) of operand 0 or 1: a pointer to kBlock elements, in the source where they lie there in a row,
  // else in `buffer`. Elements past count are of no meaning.
  template <class T>
  const T* block(size_t operand, const T* source, int64_t begin, int64_t count, T* buffer) const {
    if (axes_.size() == 1 && axes_[0].stride[operand] == 1) return whole_block(source + begin, count, buffer);
    int64_t at[kMostAxes] = {};  // the index along each axis
    int64_t offset = 0, rest = begin;
    for (size_t k = 0; k < axes_.size(); ++k) {
      at[k] = rest % axes_[k].size;
      offset += at[k] * axes_[k].stride[operand];
      rest /= axes_[k].size;
    }
    const int64_t step = axes_[0].stride[operand];
    for (int64_t done = 0; done < count;) {
      const int64_t length = std::min(count - done, axes_[0].size - at[0]);
      if (step == 0) {
        std::fill(buffer + done, buffer + done + length, source[offset]);
      } else {
        std::memcpy(buffer + done, source + offset, static_cast<size_t>(length) * sizeof(T));
      }
      done += length;
      at[0] += length;
      offset += length * step;
      for (size_t k = 0; at[k] == axes_[k].size && k + 1 < axes_.size(); ++k) {
        offset += axes_[k + 1].stride[operand] - at[k] * axes_[k].stride[operand];
        at[k] = 0;
        ++at[k + 1];
      }
    }
    return buffer;
  }

 private:
  struct Axis {
    int64_t size;
    std::array<int64_t, 2> stride;
  };
  std::vector<Axis> axes_;  // the innermost first
};

}  // namespace qdqtool
