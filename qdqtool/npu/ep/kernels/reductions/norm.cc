// ai.qdqtool::Norm: a normalization of groups of n integers, each group by its own mean and variance.
//   S1 = Σ(x - z), S2 = Σ(x - z)²; centered: v = n·S2 - S1², c = n·(x - z) - S1; else v = n·S2, c = n·(x - z)       exact
//   k = s_x / n, r = float32(k / √(v·k² + ε)), 0 where v is 0                                                      float64
//   y = fit(round(((c·r)·γ + β) / y_scale) + z_y)                                                                  float32
// A group is all from `axis` on, γ and β by the place in it; with `groups` it is a share of the channels of [N, C, …], γ and β by
// the channel.
#include "kernels/requantize/block_output.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kLongestGroup = int64_t{1} << 30;  // elements of a group: its sums stay within 64 bits

// Σx and Σx² of a block, within 64 bits.
template <class T>
struct SumsLoop {
  static QDQTOOL_INLINE void run(const T* __restrict x, int64_t count, int64_t* __restrict sum, int64_t* __restrict squares) {
    int64_t i = 0, total = 0, wide = 0;
    for (; i + kStrip <= count; i += kStrip) {
      int32_t part = 0;
      if (sizeof(T) == 1) {
        int32_t narrow = 0;
        for (int j = 0; j < kStrip; ++j) part += x[i + j], narrow += int32_t{x[i + j]} * x[i + j];
        wide += narrow;
      } else {
        int64_t broad = 0;
        for (int j = 0; j < kStrip; ++j) {
          const auto value = static_cast<uint32_t>(int32_t{x[i + j]});  // a square modulo 2^32 is the square
          part += x[i + j], broad += static_cast<int64_t>(uint64_t{value * value});
        }
        wide += broad;
      }
      total += part;
    }
    for (; i < count; ++i) total += x[i], wide += int64_t{x[i]} * x[i];
    *sum += total, *squares += wide;
  }
};

// c = n·x - offset as float32, where 32 bits hold all of it.
template <class T>
struct CenterLoop {
  static QDQTOOL_INLINE void run(const T* __restrict x, int64_t count, int32_t n, int32_t offset, float* __restrict c) {
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) c[i + j] = static_cast<float>(x[i + j] * n - offset);
    }
    for (; i < count; ++i) c[i] = static_cast<float>(x[i] * n - offset);
  }
};

// values = c·factor·gain + shift, each operation rounded; in place.
struct ScaleLoop {
  static QDQTOOL_INLINE void run(float* __restrict c, int64_t count, float factor, const float* __restrict gain,
                                 const float* __restrict shift) {
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int j = 0; j < kStrip; ++j) c[i + j] = c[i + j] * factor * gain[i + j] + shift[i + j];
    }
    for (; i < count; ++i) c[i] = c[i] * factor * gain[i] + shift[i];
  }
};

class Norm : public Kernel {
 public:
  explicit Norm(const NodeInfo& node)
      : axis_(node.attributes.integer("axis", -1)),
        groups_(node.attributes.integer("groups", 0)),
        centered_(node.attributes.integer("centered", 1) != 0),
        epsilon_(node.attributes.real("epsilon", 0)),
        x_scale_(scale_of(node, "x_scale")),
        output_(node, true) {
    check_inputs(node.inputs, 2, 3);
    if (node.attributes.text("mode", "float") != "float") throw Error("mode is not float");
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    zero_ = zero_point_of(node, "x_zero_point", input_);
    if (groups_ < 0) throw Error("groups is below 0");
    if (!(epsilon_ >= 0) || std::isinf(epsilon_)) throw Error("epsilon is no finite number from 0 on");
    gains_ = parameter(node.inputs[1], "the gain");
    shifts_ = has_input(node.inputs, 2) ? parameter(node.inputs[2], "the shift") : std::vector<float>{0.0f};
    // A shift of -0 changes nothing, not even the sign of a zero.
    if (!has_input(node.inputs, 2)) shifts_[0] = -0.0f;
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 3);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    qdqtool::count_of(shape);
    const Form form = form_of(shape);
    if (form.length > kLongestGroup) throw Error("a group of " + std::to_string(form.length) + " elements is too long");
    const int64_t entries = groups_ ? shape[1] : form.length;
    for (const std::vector<float>* parameter : {&gains_, &shifts_}) {
      const auto size = static_cast<int64_t>(parameter->size());
      if (size != 1 && size != entries) {
        throw Error("a parameter has " + std::to_string(size) + " entries for " + std::to_string(entries));
      }
    }
    return {shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    const Form form = form_of(inputs[0].shape);
    with_integer(input_, [&](auto from) {
      const auto* x = inputs[0].as<decltype(from)>();
      for_parts(parallel, count / form.length, form.length * 4, [&](int64_t begin, int64_t end) {
        for (int64_t group = begin; group < end; ++group) normalize(x + group * form.length, outputs[0], form, group);
      });
    });
  }

 private:
  // Groups of `length` elements; segments of `segment` elements have one gain, or their own where it is 0.
  struct Form {
    int64_t length, segment;
  };

  static std::vector<float> parameter(const Tensor& tensor, const char* what) {
    check_type(tensor.type, DataType::float32, what);
    if (!tensor.data) throw Error(std::string(what) + " must be a constant");
    if (tensor.shape.size() != 1 || tensor.shape[0] < 1) throw Error(std::string(what) + " has the shape " + name_of(tensor.shape));
    std::vector<float> found(tensor.as<float>(), tensor.as<float>() + tensor.shape[0]);
    for (const float value : found) {
      if (!std::isfinite(value)) throw Error(std::string(what) + " is not finite");
    }
    return found;
  }

  Form form_of(const Shape& shape) const {
    if (!groups_) return {count_between(shape, axis_from_start(axis_, shape.size()), shape.size()), 0};
    if (shape.size() < 2 || shape[1] % groups_) {
      throw Error("the channels of " + name_of(shape) + " are not of " + std::to_string(groups_) + " groups");
    }
    const int64_t inner = count_between(shape, 2, shape.size());
    return {multiply_sizes(shape[1] / groups_, inner), inner};
  }

  template <class T>
  void normalize(const T* x, Tensor& y, const Form& form, int64_t group) const {
    int64_t sum = 0, squares = 0;
    const int64_t n = form.length;
    for (int64_t i = 0; i < n; i += kBlock) {
      run_loop<SumsLoop<T>>(output_.isa, x + i, std::min<int64_t>(kBlock, n - i), &sum, &squares);
    }
    squares += zero_ * (zero_ * n - 2 * sum);
    sum -= zero_ * n;
    const Int128 variance = Int128{n} * squares - (centered_ ? Int128{sum} * sum : 0);
    const int64_t offset = zero_ * n + (centered_ ? sum : 0);
    const float factor = inverse(variance, n);
    const int64_t size = form.segment ? form.segment : n;
    for (int64_t at = 0, channel = group * (n / size); at < n; at += size, ++channel) {
      const size_t entry = form.segment ? static_cast<size_t>(channel % (groups_ * (n / size))) : 0;
      for (int64_t i = 0; i < size; i += kBlock) {
        const int64_t width = std::min<int64_t>(kBlock, size - i);
        const size_t first = form.segment ? entry : static_cast<size_t>(i);
        alignas(64) float gains[kBlock], shifts[kBlock];
        const float* gain = laid(gains_, first, form.segment != 0, width, gains);
        const float* shift = laid(shifts_, first, form.segment != 0, width, shifts);
        block(x + at + i, y, group * n + at + i, width, n, offset, factor, gain, shift);
      }
    }
  }

  // k / √(v·k² + ε), 0 where v is.
  float inverse(Int128 variance, int64_t n) const {
    if (variance == 0) return 0;
    const double k = static_cast<double>(x_scale_) / static_cast<double>(n);
    const double inside = static_cast<double>(variance) * (k * k) + static_cast<double>(epsilon_);
    return static_cast<float>(k / std::sqrt(inside));
  }

  // Entries from `first` on, or `width` times the one that counts.
  static const float* laid(const std::vector<float>& entries, size_t first, bool is_one, int64_t width, float* buffer) {
    if (entries.size() > 1 && !is_one) return entries.data() + first;
    std::fill(buffer, buffer + width, entries[entries.size() > 1 ? first : 0]);
    return buffer;
  }

  // `count` elements of `y` from `first` on.
  template <class T>
  void block(const T* x, Tensor& y, int64_t first, int64_t count, int64_t n, int64_t offset, float factor, const float* gain,
             const float* shift) const {
    alignas(64) float c[kBlock];
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (n <= most / (int64_t{4} << (8 * sizeof(T)))) {
      run_loop<CenterLoop<T>>(output_.isa, x, count, static_cast<int32_t>(n), static_cast<int32_t>(offset), static_cast<float*>(c));
    } else {
      for (int64_t i = 0; i < count; ++i) c[i] = static_cast<float>(x[i] * n - offset);
    }
    run_loop<ScaleLoop>(output_.isa, static_cast<float*>(c), count, factor, gain, shift);
    alignas(64) int32_t found[kBlock];
    output_.reals(c, found, count);
    narrow(output_.isa, found, first, count, y);
  }

  const int64_t axis_, groups_;
  const bool centered_;
  const float epsilon_, x_scale_;
  const BlockOutput output_;
  DataType input_;
  int64_t zero_ = 0;
  std::vector<float> gains_, shifts_;
};

}  // namespace

const Operator norm{"Norm", {2, 3}, arithmetic({{"x_zero_point", type_int}, {"x_scale", type_float}, {"axis", type_int},
                    {"groups", type_int}, {"centered", type_int}, {"epsilon", type_float}}), shapes::as_input, make_kernel<Norm>};

}  // namespace qdqtool
