#include "kernels/shared/windows.hpp"

namespace qdqtool {

namespace {

// Of a window, a stride and a pad: products of a few stay within 64 bits.
constexpr int64_t kLongest = int64_t{1} << 24;

void check_range(const std::vector<int64_t>& values, size_t count, int64_t least, const char* name) {
  if (values.size() != count) {
    throw Error(std::string(name) + " has " + std::to_string(values.size()) + " numbers; " + std::to_string(count) +
                " are meant");
  }
  for (const int64_t value : values) {
    if (value < least || value > kLongest) throw Error(std::string(name) + " has " + std::to_string(value));
  }
}

}  // namespace

WindowAttributes::WindowAttributes(const NodeInfo& node) : ceil_mode_(node.attributes.integer("ceil_mode", 0) != 0) {
  const Attributes& attributes = node.attributes;
  kernel_ = attributes.integers("kernel_shape", {});
  const size_t rank = kernel_.size();
  if (rank < 1 || rank > 3) throw Error("kernel_shape has " + std::to_string(rank) + " axes; 1 to 3 are computed");
  strides_ = attributes.integers("strides", std::vector<int64_t>(rank, 1));
  dilations_ = attributes.integers("dilations", std::vector<int64_t>(rank, 1));
  pads_ = attributes.integers("pads", std::vector<int64_t>(2 * rank, 0));
  check_range(kernel_, rank, 1, "kernel_shape");
  check_range(strides_, rank, 1, "strides");
  check_range(dilations_, rank, 1, "dilations");
  check_range(pads_, 2 * rank, 0, "pads");
  for (size_t i = 0; i < rank; ++i) {
    if ((kernel_[i] - 1) * dilations_[i] >= kLongest) {
      throw Error("a window reaches over more than " + std::to_string(kLongest) + " elements");
    }
  }
  taps();
  const std::string name = attributes.text("auto_pad", "NOTSET");
  if (name == "SAME_UPPER") {
    auto_pad_ = AutoPad::same_upper;
  } else if (name == "SAME_LOWER") {
    auto_pad_ = AutoPad::same_lower;
  } else if (name == "VALID") {
    auto_pad_ = AutoPad::valid;
  } else if (name != "NOTSET" && !name.empty()) {
    throw Error("auto_pad is '" + name + "'; one of NOTSET, SAME_UPPER, SAME_LOWER, VALID");
  }
}

int64_t WindowAttributes::taps() const {
  int64_t count = 1;
  for (const int64_t length : kernel_) count *= length;
  if (count > kLongest / 4) {
    throw Error("a window has " + std::to_string(count) + " elements");  // 255 of each stay within 32 bits
  }
  return count;
}

WindowAxis WindowAttributes::fit(size_t axis, int64_t in) const {
  WindowAxis found;
  found.in = in;
  found.kernel = kernel_[axis], found.stride = strides_[axis], found.dilation = dilations_[axis];
  const int64_t reach = (found.kernel - 1) * found.dilation + 1;
  if (auto_pad_ == AutoPad::none) {
    found.before = pads_[axis], found.after = pads_[axis + kernel_.size()];
  } else if (auto_pad_ != AutoPad::valid) {
    const int64_t windows = in / found.stride + (in % found.stride != 0);
    const int64_t missing = std::max<int64_t>(0, (windows - 1) * found.stride + reach - in);
    found.before = auto_pad_ == AutoPad::same_upper ? missing / 2 : missing - missing / 2;
    found.after = missing - found.before;
  }
  const int64_t room = add_sizes(in, found.before + found.after) - reach;  // of the first element of a window
  found.out = room >= 0 ? room / found.stride + 1 : 0;
  if (ceil_mode_ && (room >= 0 ? room % found.stride != 0 : room > -found.stride)) ++found.out;
  // A window that starts behind the input and its padding in front is none.
  if (ceil_mode_ && found.out > 0 && (found.out - 1) * found.stride >= in + found.before) --found.out;
  if (in < 1 || found.out < 1) {
    throw Error("a window of " + std::to_string(reach) + " does not fit an axis of " + std::to_string(in));
  }
  return found;
}

Windows WindowAttributes::windows(const Shape& input) const {
  const size_t rank = kernel_.size();
  if (input.size() != rank + 2) {
    throw Error("input 0 has the shape " + name_of(input) + "; rank " + std::to_string(rank + 2) + " is meant");
  }
  count_of(input);
  Windows windows;
  for (size_t i = 0; i < rank; ++i) windows[3 - rank + i] = fit(i, input[2 + i]);
  return windows;
}

Shape WindowAttributes::output_shape(const Shape& input) const {
  const Windows found = windows(input);
  Shape shape(input.begin(), input.begin() + 2);
  for (size_t i = 3 - kernel_.size(); i < 3; ++i) shape.push_back(found[i].out);
  count_of(shape);
  return shape;
}

}  // namespace qdqtool
