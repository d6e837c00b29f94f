// Which axes a reduction takes away. Those that are kept, and those that are not, are merged where they lie side by side.
#pragma once
#include "kernels/shared/arguments.hpp"

namespace qdqtool {

struct SteppedAxis {
  int64_t size, stride;
};

// Where element `index` of these axes begins.
inline int64_t offset_of(const std::vector<SteppedAxis>& axes, int64_t index) {
  int64_t offset = 0;
  for (size_t k = axes.size(); k-- > 0;) {
    offset += index % axes[k].size * axes[k].stride;
    index /= axes[k].size;
  }
  return offset;
}

inline int64_t count_of(const std::vector<SteppedAxis>& axes) {
  int64_t count = 1;
  for (const SteppedAxis& axis : axes) count *= axis.size;
  return count;
}

// The attributes `axes` (all where there are none) and `keepdims`.
class Reduced {
 public:
  explicit Reduced(const NodeInfo& node)
      : axes_(node.attributes.integers("axes", {})), keeps_(node.attributes.integer("keepdims", 1) != 0) {}

  std::vector<bool> of(size_t rank) const {
    std::vector<bool> goes(rank, axes_.empty());
    for (const size_t axis : axes_from_start(axes_, rank)) goes[axis] = true;
    return goes;
  }

  // The shape of the result; `count` becomes the elements that each is made from.
  Shape shape(const Shape& from, int64_t& count) const {
    const std::vector<bool> goes = of(from.size());
    Shape to;
    count = 1;
    qdqtool::count_of(from);
    for (size_t i = 0; i < from.size(); ++i) {
      if (goes[i]) count = multiply_sizes(count, from[i]);
      if (!goes[i] || keeps_) to.push_back(goes[i] ? 1 : from[i]);
    }
    return to;
  }

 private:
  const std::vector<int64_t> axes_;
  const bool keeps_;
};

// The merged axes of a tensor, without the run of `length` elements at its end, which is part of a reduction (last_goes) or kept.
struct MergedAxes {
  std::vector<SteppedAxis> kept, gone;
  bool last_goes = true;
  int64_t length = 1;

  MergedAxes(const Shape& shape, const std::vector<bool>& goes) {
    int64_t stride = 1;
    for (size_t i = goes.size(); i-- > 0;) {
      const int64_t size = shape[i];
      if (size == 1) continue;
      if (kept.empty() && gone.empty()) last_goes = goes[i];
      std::vector<SteppedAxis>& axes = goes[i] ? gone : kept;
      if (!axes.empty() && axes.front().stride * axes.front().size == stride) {
        axes.front().size *= size;
      } else {
        axes.insert(axes.begin(), {size, stride});
      }
      stride *= size;
    }
    std::vector<SteppedAxis>& last = last_goes ? gone : kept;
    if (last.empty()) return;
    length = last.back().size;
    last.pop_back();
  }
};

}  // namespace qdqtool
