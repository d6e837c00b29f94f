// The engine of the movement kernels. What it copies is described per axis; adjacent axes that step alike are merged first, the
// contiguous end becomes one block, and where only the order of two axes changes, squares of both are copied that fit the cache.
#include "kernels/movement/movement.hpp"

#include <cstring>

namespace qdqtool {

namespace {

constexpr int64_t kTile = 32;  // elements along one side of a square: 32 lines of 64 bytes stay in the first cache

// The contiguous elements at the end, and the axes before them: the last one is walked as a row, the others are outer.
struct Walk {
  std::vector<Axis> outer;
  Axis row;
  int64_t block = 1;
};

Walk walk_of(std::vector<Axis> axes) {
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (axis.size == 1 && !axis.map) continue;
    if (!merged.empty() && !axis.map && !merged.back().map && merged.back().stride == axis.stride * axis.size) {
      merged.back() = {merged.back().size * axis.size, axis.stride, nullptr};
    } else {
      merged.push_back(axis);
    }
  }
  Walk walk;
  if (!merged.empty() && !merged.back().map && merged.back().stride == 1) {
    walk.block = merged.back().size;
    merged.pop_back();
  }
  if (!merged.empty()) {
    walk.row = merged.back();
    merged.pop_back();
  }
  walk.outer = std::move(merged);
  return walk;
}

// Where output element `index` of these axes lies in the source; false when one of them says: fill.
bool locate(const std::vector<Axis>& axes, int64_t index, int64_t& offset) {
  offset = 0;
  for (size_t k = axes.size(); k-- > 0;) {
    const int64_t at = index % axes[k].size;
    index /= axes[k].size;
    const int64_t step = axes[k].map ? axes[k].map[at] : at;
    if (step < 0) return false;
    offset += step * axes[k].stride;
  }
  return true;
}

template <class T>
void fill_elements(T* target, int64_t count, T value) {
  std::fill(target, target + count, value);
}

// Neighbours in a row's map that are neighbours in the source, or that are all filled.
struct Run {
  int64_t begin, end;
  int64_t step;  // of the first, negative where filled
};

// How a row is copied: in runs, or one by one where these are too short to be worth it.
struct RowPlan {
  std::vector<Run> runs;
  bool fills = false;
};

RowPlan plan_of(const Axis& row, int64_t block) {
  RowPlan plan;
  if (!row.map) return plan;
  std::vector<Run>& runs = plan.runs;
  for (int64_t i = 0; i < row.size; ++i) {
    const int64_t step = row.map[i];
    plan.fills = plan.fills || step < 0;
    const bool follows = !runs.empty() && (step < 0 ? runs.back().step < 0
                                                    : row.stride == block && runs.back().step >= 0 &&
                                                          step - runs.back().step == i - runs.back().begin);
    if (follows) {
      runs.back().end = i + 1;
    } else {
      runs.push_back({i, i + 1, step < 0 ? -1 : step});
    }
  }
  constexpr int64_t least = 6;  // elements on average
  if (static_cast<int64_t>(runs.size()) * least > row.size * block) runs.clear();
  return plan;
}

// Entries [begin, end) of a row of blocks.
template <class T>
void copy_row(const Axis& row, const RowPlan& plan, int64_t block, int64_t begin, int64_t end, const T* source,
              T* target, T fill) {
  const std::vector<Run>& runs = plan.runs;
  const auto bytes = static_cast<size_t>(block) * sizeof(T);
  if (!runs.empty()) {
    const auto after = [](int64_t at, const Run& run) { return at < run.end; };
    for (auto run = std::upper_bound(runs.begin(), runs.end(), begin, after); run != runs.end() && run->begin < end;
         ++run) {
      const int64_t first = std::max(begin, run->begin), last = std::min(end, run->end);
      T* to = target + (first - begin) * block;
      if (run->step < 0) {
        fill_elements(to, (last - first) * block, fill);
      } else {
        std::memcpy(to, source + (run->step + first - run->begin) * row.stride,
                    static_cast<size_t>(last - first) * bytes);
      }
    }
  } else if (block > 1) {
    for (int64_t i = begin; i < end; ++i, target += block) {
      const int64_t step = row.map ? row.map[i] : i;
      if (step < 0) {
        fill_elements(target, block, fill);
      } else {
        std::memcpy(target, source + step * row.stride, bytes);
      }
    }
  } else if (row.map && row.stride == 1 && !plan.fills) {
    for (int64_t i = begin; i < end; ++i) *target++ = source[row.map[i]];
  } else if (row.map) {
    for (int64_t i = begin; i < end; ++i) *target++ = row.map[i] < 0 ? fill : source[row.map[i] * row.stride];
  } else {
    for (int64_t i = begin; i < end; ++i) *target++ = source[i * row.stride];
  }
}

template <class T>
void copy_rows(const Walk& walk, const T* source, T* target, T fill, const ParallelFor& parallel) {
  int64_t outer = 1;
  for (const Axis& axis : walk.outer) outer *= axis.size;
  const RowPlan plan = plan_of(walk.row, walk.block);
  for_parts(parallel, outer * walk.row.size, walk.block, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t index = begin / walk.row.size, first = begin % walk.row.size;
      const int64_t last = std::min(walk.row.size, first + (end - begin));
      T* to = target + begin * walk.block;
      int64_t offset = 0;
      if (locate(walk.outer, index, offset)) {
        copy_row(walk.row, plan, walk.block, first, last, source + offset, to, fill);
      } else {
        fill_elements(to, (last - first) * walk.block, fill);
      }
      begin += last - first;
    }
  });
}

// The outer axis along which the source is contiguous, when no axis has a map; the number of axes when there is none.
size_t contiguous_axis(const Walk& walk) {
  size_t found = walk.outer.size();
  if (walk.block != 1 || walk.row.map || walk.row.stride == 0) return found;
  for (size_t k = 0; k < walk.outer.size(); ++k) {
    if (walk.outer[k].map) return walk.outer.size();
    if (walk.outer[k].stride == 1) found = k;
  }
  return found;
}

// Axis `k` of the outer ones is contiguous in the source, the row in the target.
template <class T>
void copy_squares(Walk walk, size_t k, const T* source, T* target, const ParallelFor& parallel) {
  const Axis row = walk.row, column = walk.outer[k];
  std::vector<Axis> before = walk.outer;  // with the stride in the target as a second list
  Shape sizes, steps(walk.outer.size());
  for (const Axis& axis : walk.outer) sizes.push_back(axis.size);
  int64_t step = row.size;
  for (size_t i = walk.outer.size(); i-- > 0; step *= sizes[i]) steps[i] = step;
  const int64_t column_step = steps[k];
  before.erase(before.begin() + static_cast<std::ptrdiff_t>(k));
  steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(k));
  std::vector<Axis> written = before;
  for (size_t i = 0; i < written.size(); ++i) written[i].stride = steps[i];
  int64_t planes = 1;
  for (const Axis& axis : before) planes *= axis.size;
  const int64_t strips = (column.size + kTile - 1) / kTile;
  for_parts(parallel, planes * strips, kTile * row.size, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      int64_t from = 0, to = 0;
      locate(before, item / strips, from);
      locate(written, item / strips, to);
      const int64_t low = item % strips * kTile, high = std::min(column.size, low + kTile);
      for (int64_t left = 0; left < row.size; left += kTile) {
        const int64_t right = std::min(row.size, left + kTile);
        for (int64_t c = low; c < high; ++c) {
          T* line = target + to + c * column_step;
          const T* read = source + from + c;
          for (int64_t r = left; r < right; ++r) line[r] = read[r * row.stride];
        }
      }
    }
  });
}

template <class T>
void move_typed(const Walk& walk, const void* source, void* target, const void* fill, const ParallelFor& parallel) {
  T value{};
  if (fill) std::memcpy(&value, fill, sizeof(T));
  const auto* from = static_cast<const T*>(source);
  auto* to = static_cast<T*>(target);
  const size_t k = contiguous_axis(walk);
  if (k < walk.outer.size()) return copy_squares(walk, k, from, to, parallel);
  copy_rows(walk, from, to, value, parallel);
}

}  // namespace

void move_elements(std::vector<Axis> axes, size_t element, const void* source, void* target, const void* fill,
                   const ParallelFor& parallel) {
  for (const Axis& axis : axes) {
    if (axis.size == 0) return;
  }
  const Walk walk = walk_of(std::move(axes));
  if (walk.outer.empty() && walk.row.size == 1 && !walk.row.map) {
    return copy_bytes(source, target, walk.block * static_cast<int64_t>(element), parallel);
  }
  switch (element) {
    case 1: return move_typed<uint8_t>(walk, source, target, fill, parallel);
    case 2: return move_typed<uint16_t>(walk, source, target, fill, parallel);
    case 4: return move_typed<uint32_t>(walk, source, target, fill, parallel);
    case 8: return move_typed<uint64_t>(walk, source, target, fill, parallel);
    default: throw Error("elements of " + std::to_string(element) + " bytes are not moved");
  }
}

void copy_bytes(const void* source, void* target, int64_t bytes, const ParallelFor& parallel) {
  for_parts(parallel, (bytes + 4095) / 4096, 512,
            [&](int64_t begin, int64_t end) {  // a page copies as fast as 512 elements
              const int64_t first = begin * 4096, last = std::min(bytes, end * 4096);
              std::memcpy(static_cast<char*>(target) + first, static_cast<const char*>(source) + first,
                          static_cast<size_t>(last - first));
            });
}

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = multiply_sizes(strides[i], shape[i]);
  return strides;
}

Listed attribute_list(const NodeInfo& node, const std::string& name) {
  Listed found{true, node.attributes.integers(name, {})};
  found.has = node.attributes.int_lists.count(name) > 0;
  return found;
}

Listed attribute_or_input(const Listed& attribute, const std::vector<Tensor>& inputs, size_t index, const char* name) {
  if (attribute.has || !has_input(inputs, index)) return attribute;
  return {true, integers_in(inputs[index], name)};
}

}  // namespace qdqtool
