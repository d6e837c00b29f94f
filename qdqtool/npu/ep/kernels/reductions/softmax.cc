// ai.qdqtool::Softmax along one axis, of 8 or 16 bits. With d = max - x, in steps of the input, and E the table of exponentials in
// steps of 2^-30, which is 0 behind its end:
//   y = fit(round(E[d]·m / (ΣE·2^shift)) + z), as a rational number
// There is no float mode: the exponentials are integers in any.
#include <cmath>

#include "kernels/requantize/near_quotient.hpp"

namespace qdqtool {

namespace {

constexpr int64_t kGreatest = int64_t{1} << 30;  // an exponential: of 0
constexpr int64_t kLongestRow = int64_t{1} << 24;   // elements of a row: their sum is below 2^55

// What a row needs.
struct Share {
  double factor;  // m / (ΣE·2^shift)
  double half;    // what is added before a cast rounds down
  int32_t zero_point, low, high;
};

// The greatest of `count` elements and of `most`.
template <class X>
struct MostLoop {
  static QDQTOOL_INLINE void run(const X* __restrict x, int64_t count, X* most) {
    X strip[kStrip], found = *most;
    for (int k = 0; k < kStrip; ++k) strip[k] = found;
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) {
      for (int k = 0; k < kStrip; ++k) strip[k] = strip[k] > x[i + k] ? strip[k] : x[i + k];
    }
    for (; i < count; ++i) found = found > x[i] ? found : x[i];
    for (int k = 0; k < kStrip; ++k) found = found > strip[k] ? found : strip[k];
    *most = found;
  }
};

// exponentials[i] = table[most - x[i]], and their sum.
template <class X>
struct ExponentialLoop {
  static QDQTOOL_INLINE void run(const X* __restrict x, int64_t count, const int32_t* __restrict table, int32_t most,
                                 int32_t last, int32_t* __restrict exponentials, int64_t* sum) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t d = most - static_cast<int32_t>(x[i]);
      const int32_t e = table[sizeof(X) == 1 || d < last ? d : last];  // 8 bits: all distances are in the table
      exponentials[i] = e, found += e;
    }
    *sum += found;
  }
};

// Shares of exponentials in strips; unsure[i] is not 0 where share i is not sure, and *any where one is.
template <class Y>
struct ShareLoop {
  static QDQTOOL_INLINE void run(const int32_t* __restrict exponentials, int64_t count, const Share* share,
                                 Y* __restrict y, int32_t* __restrict unsure, int32_t* any) {
    const Share s = *share;
    int32_t doubts = 0;
    for (int64_t i = 0; i < count; i += kStrip) {
      for (int k = 0; k < kStrip; ++k) {
        const double moved = exponentials[i + k] * s.factor + s.half;
        const auto below = static_cast<int32_t>(moved - kNear), above = static_cast<int32_t>(moved + kNear);
        int32_t value = above + s.zero_point;
        value = value < s.low ? s.low : value;
        value = value > s.high ? s.high : value;
        y[i + k] = static_cast<Y>(value);
        unsure[i + k] = below ^ above;
        doubts |= below ^ above;
      }
    }
    *any = doubts;
  }
};

class Softmax : public Kernel {
 public:
  explicit Softmax(const NodeInfo& node) : axis_(node.attributes.integer("axis", -1)), output_(node) {
    check_inputs(node.inputs, 2, 2);
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    read_table(node.inputs[1]);
    if (output_.real) throw Error("mode is 'float'; integer is meant");
    const int32_t multiplier = multiplier_of(node, "multiplier");
    if (multiplier < 0) throw Error("multiplier is below 0");
    output_.scale_by(multiplier, node.attributes.integer("shift"), kGreatest);
    const double most = std::ldexp(static_cast<double>(output_.multiplier()), -output_.shift());
    is_nearly_known_ = is_nearly_known(output_.output, most);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    count_of(shape);
    const size_t axis = axis_from_start(axis_, shape.size());
    if (shape[axis] > kLongestRow) {
      throw Error("an axis of " + std::to_string(shape[axis]) + " is longer than " + std::to_string(kLongestRow));
    }
    return {shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    const size_t axis = axis_from_start(axis_, shape.size());
    const int64_t length = shape[axis], inner = count_between(shape, axis + 1, shape.size());
    with_integer(input_, [&](auto from) {
      const auto* x = inputs[0].as<decltype(from)>();
      for_parts(parallel, count / length, length * 4,  // an element costs as much as four that are moved
                [&](int64_t begin, int64_t end) {
                  for (int64_t row = begin; row < end; ++row) {
                    const int64_t at = row / inner * length * inner + row % inner;
                    compute(x + at, outputs[0], at, length, inner);
                  }
                });
    });
  }

 private:
  void read_table(const Tensor& table) {
    const bool is_wide = is_16_bit(input_);
    check_type(table.type, is_wide ? DataType::int32 : DataType::int64, "the table");
    if (!table.data) throw Error("the table must be a constant");
    const int64_t count = table.count();
    if (table.shape.size() != 1 || count < 1 || (is_wide ? count > 65536 : count != 256)) {
      throw Error("the table has the shape " + name_of(table.shape) + "; [" + (is_wide ? "65536] or shorter" : "256]") +
                  " is meant");
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t entry = is_wide ? table.as<int32_t>()[i] : table.as<int64_t>()[i];
      if (entry < 0 || entry > kGreatest) throw Error("the table has the entry " + std::to_string(entry));
      table_.push_back(static_cast<int32_t>(entry));
    }
    if (table_[0] == 0) throw Error("the table begins with 0");
    if (is_wide && table_.back() != 0 && count < 65536) throw Error("the table ends before it becomes 0");
    end_ = static_cast<int32_t>(count) - 1;
  }

  // `count` elements, `step` apart, side by side.
  template <class T>
  static const T* gathered(const T* x, int64_t count, int64_t step, T* buffer) {
    if (step == 1) return x;
    for (int64_t i = 0; i < count; ++i) buffer[i] = x[i * step];
    return buffer;
  }

  // `length` elements, `step` apart, of `y` from `at` on, kBlock at a time. The exponentials of a row that is one block are read once.
  template <class X>
  void compute(const X* x, Tensor& y, int64_t at, int64_t length, int64_t step) const {
    X buffer[kBlock], most = std::numeric_limits<X>::min();
    int32_t exponentials[kBlock];
    int64_t sum = 0;
    const auto take = [&](int64_t first, int64_t count, int64_t* into) {
      run_loop<ExponentialLoop<X>>(output_.isa, gathered(x + first * step, count, step, &buffer[0]), count, table_.data(),
                                   static_cast<int32_t>(most), end_, &exponentials[0], into);
      std::fill(&exponentials[count], &exponentials[(count + kStrip - 1) / kStrip * kStrip], 0);
    };
    for (int64_t first = 0; first < length; first += kBlock) {
      const int64_t count = std::min<int64_t>(kBlock, length - first);
      run_loop<MostLoop<X>>(output_.isa, gathered(x + first * step, count, step, &buffer[0]), count, &most);
    }
    for (int64_t first = 0; first < length; first += kBlock) take(first, std::min<int64_t>(kBlock, length - first), &sum);
    const Share share = share_of(sum);
    for (int64_t first = 0; first < length; first += kBlock) {
      const int64_t count = std::min<int64_t>(kBlock, length - first);
      int64_t again = 0;
      if (length > kBlock) take(first, count, &again);
      with_integer(y.type, [&](auto to) {
        write(&exponentials[0], count, share, sum, y.as<decltype(to)>() + at + first * step, step);
      });
    }
  }

  Share share_of(int64_t sum) const {
    const Output& output = output_.output;
    return {std::ldexp(static_cast<double>(output_.multiplier()) / static_cast<double>(sum), -output_.shift()),
            output.rounding == Rounding::toward_zero ? 0 : 0.5, static_cast<int32_t>(output.zero_point),
            static_cast<int32_t>(output.low), static_cast<int32_t>(output.high)};
  }

  // `count` shares of `sum`, `step` apart; behind the exponentials is room for a strip.
  template <class Y>
  void write(const int32_t* exponentials, int64_t count, const Share& share, int64_t sum, Y* y, int64_t step) const {
    Y found[kBlock];
    int32_t unsure[kBlock], any = 1;
    if (is_nearly_known_) {
      run_loop<ShareLoop<Y>>(output_.isa, exponentials, count, &share, &found[0], &unsure[0], &any);
    } else {
      std::fill(&unsure[0], &unsure[count], 1);
    }
    for (int64_t i = 0; any && i < count; ++i) {
      if (unsure[i]) found[i] = static_cast<Y>(exactly(exponentials[i], sum));
    }
    if (step == 1) return static_cast<void>(std::memcpy(y, &found[0], static_cast<size_t>(count) * sizeof(Y)));
    for (int64_t i = 0; i < count; ++i) y[i * step] = found[i];
  }

  int64_t exactly(int64_t exponential, int64_t sum) const {
    return scaled_ratio(output_.output, Int128{exponential} * output_.multiplier(), sum, output_.shift());
  }

  const int64_t axis_;
  BlockOutput output_;
  bool is_nearly_known_ = false;
  DataType input_;
  std::vector<int32_t> table_;
  int32_t end_ = 0;  // the last entry
};

}  // namespace

const Operator softmax{"Softmax", {2, 2}, arithmetic({{"axis", type_int}, {"multiplier", type_int}, {"shift", type_int}}),
                       shapes::as_input, make_kernel<Softmax>};

}  // namespace qdqtool
