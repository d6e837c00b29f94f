// ai.qdqtool::Softmax along one axis. With d = max - x, in steps of the input, and E the table of exponentials in steps of 2^-30:
//   y = fit(round(E[d]·m / (ΣE·2^shift)) + z), as a rational number
// There is no float mode: the exponentials are integers in any.
#include "lanes.hpp"
#include "mean.hpp"

namespace qdqtool {

namespace {

constexpr int kEntries = 256;
constexpr int64_t kGreatest = int64_t{1} << 30;  // an exponential: of 0
constexpr int64_t kLongest = int64_t{1} << 24;   // elements of a row: their sum is below 2^55

class Softmax : public Kernel {
 public:
  explicit Softmax(const NodeInfo& node) : axis_(node.attributes.integer("axis", -1)), output_(Output::of(node)) {
    check_inputs(node.inputs, 2, 2);
    input_ = node.inputs[0].type;
    check_8_bit(input_, "input 0");
    const Tensor& table = node.inputs[1];
    check_type(table.type, DataType::int64, "the table");
    if (!table.data) throw Error("the table must be a constant");
    if (table.shape != Shape{kEntries}) {
      throw Error("the table has the shape " + name_of(table.shape) + "; [256] is meant");
    }
    table_.assign(table.as<int64_t>(), table.as<int64_t>() + kEntries);
    for (const int64_t entry : table_) {
      if (entry < 0 || entry > kGreatest) throw Error("the table has the entry " + std::to_string(entry));
    }
    if (table_[0] == 0) throw Error("the table begins with 0");
    const std::string mode = node.attributes.text("mode", "integer");
    if (mode != "integer") throw Error("mode is '" + mode + "'; integer is meant");
    multiplier_ = node.attributes.integer("multiplier");
    const int64_t shift = node.attributes.integer("shift");
    if (multiplier_ < 0 || multiplier_ > std::numeric_limits<int32_t>::max()) {
      throw Error("multiplier is outside int32");
    }
    if (shift < -62 || shift > 62) throw Error("shift is " + std::to_string(shift) + "; -62 to 62");
    shift_ = static_cast<int>(shift);
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    count_of(shape);
    const size_t axis = axis_from_start(axis_, shape.size());
    if (shape[axis] > kLongest) {
      throw Error("an axis of " + std::to_string(shape[axis]) + " is longer than " + std::to_string(kLongest));
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
    const auto* x = inputs[0].as<uint8_t>();
    auto* y = outputs[0].as<uint8_t>();
    for_parts(parallel, count / length, length * 4,
              [&](int64_t begin, int64_t end) {  // an element costs as much as four that are moved
                for (int64_t row = begin; row < end; ++row) {
                  const int64_t at = row / inner * length * inner + row % inner;
                  compute(x + at, y + at, length, inner);
                }
              });
  }

 private:
  // `length` elements, `step` apart. Few differences occur: each is divided once.
  void compute(const uint8_t* x, uint8_t* y, int64_t length, int64_t step) const {
    const uint8_t flip = flip_of(input_);
    uint8_t most = 0;
    for (int64_t i = 0; i < length; ++i) most = std::max(most, static_cast<uint8_t>(x[i * step] ^ flip));
    int64_t sum = 0;
    for (int64_t i = 0; i < length; ++i) {
      sum += table_[static_cast<size_t>(most - static_cast<uint8_t>(x[i * step] ^ flip))];
    }
    uint8_t known[kEntries];
    bool is_known[kEntries] = {};
    const uint8_t nothing = share(0, sum);
    int64_t small = 0;  // exponentials up to this one are known to give what 0 gives
    for (int64_t i = 0; i < length; ++i) {
      const auto difference = static_cast<uint8_t>(most - static_cast<uint8_t>(x[i * step] ^ flip));
      if (!is_known[difference]) {
        const int64_t exponential = table_[difference];
        known[difference] = exponential <= small ? nothing : share(exponential, sum);
        is_known[difference] = true;
        if (known[difference] == nothing && !output_.wraps) small = std::max(small, exponential);
      }
      y[i * step] = known[difference];
    }
  }

  uint8_t share(int64_t exponential, int64_t sum) const {
    return static_cast<uint8_t>(scaled_ratio(output_, Int128{exponential} * multiplier_, sum, shift_));
  }

  const int64_t axis_;
  const Output output_;
  DataType input_;
  std::vector<int64_t> table_;
  int64_t multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace

void register_softmax(KernelTable& table) { table["ai.qdqtool::Softmax"] = make_kernel<Softmax>; }

}  // namespace qdqtool
