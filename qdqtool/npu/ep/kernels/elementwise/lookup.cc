// ai.qdqtool::Lookup: y = table[x - type minimum], with one table [n], or one for each index of an axis, [C, n]; n is 256 for an index
// of 8 bits and 65536 for one of 16.
#include "kernels/shared/elements.hpp"
#include "kernels/shared/x86.hpp"

namespace qdqtool {

namespace {

// An element read as the place of its entry: its value minus the type's minimum.
template <class T>
size_t place(T x) {
  return static_cast<size_t>(static_cast<int32_t>(x) - static_cast<int32_t>(std::numeric_limits<T>::min()));
}

template <class X, class Y>
void look(const X* __restrict x, const Y* __restrict table, int64_t count, Y* __restrict y) {
  for (int64_t i = 0; i < count; ++i) y[i] = table[place(x[i])];
}

// Bytes by the byte of their index as it lies in memory.
using Look = void (*)(const uint8_t* table, const uint8_t* x, int64_t count, uint8_t* y);

void look_plain(const uint8_t* table, const uint8_t* x, int64_t count, uint8_t* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = table[x[i]];
}

#if QDQTOOL_X86
// Each half of the table is two registers, from which one instruction takes 64 bytes by the low 7 bits of their indices.
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi"))) void look_vbmi(const uint8_t* table, const uint8_t* x,
                                                                               int64_t count, uint8_t* y) {
  const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 64);
  const __m512i t2 = _mm512_loadu_si512(table + 128), t3 = _mm512_loadu_si512(table + 192);
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = std::min<int64_t>(64, count - i);
    const __mmask64 mask = ~uint64_t{0} >> (64 - left);
    const __m512i index = _mm512_maskz_loadu_epi8(mask, x + i);
    const __m512i low = _mm512_permutex2var_epi8(t0, index, t1), high = _mm512_permutex2var_epi8(t2, index, t3);
    _mm512_mask_storeu_epi8(y + i, mask, _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(index), high));
  }
}
#endif

Look look_for(Isa isa) {
#if QDQTOOL_X86
  if (isa == Isa::avx512 && __builtin_cpu_supports("avx512vbmi")) return look_vbmi;
#endif
  (void)isa;
  return look_plain;
}

class Lookup : public Kernel {
 public:
  explicit Lookup(const NodeInfo& node)
      : axis_(node.attributes.integer("axis", 0)), look_(look_for(choose_isa(node.isa))) {
    check_outputs(node, 1);
    check_inputs(node.inputs, 2, 2);
    input_ = node.inputs[0].type;
    check_integer(input_, "input 0");
    check_integer(node.outputs[0], "the output");
    table_ = node.inputs[1];
    check_type(table_.type, node.outputs[0], "the table");
    if (!table_.data) throw Error("the table must be a constant");
    entries_ = int64_t{1} << (8 * size_of(input_));
    const Shape& shape = table_.shape;
    if (shape.empty() || shape.size() > 2 || shape.back() != entries_ || table_.count() == 0) {
      const std::string entries = std::to_string(entries_) + "]";
      throw Error("the table has the shape " + name_of(shape) + "; [" + entries + " or [C, " + entries + " is meant");
    }
    channels_ = shape.size() == 2 ? shape[0] : 0;
    if (has_16_bit(node, 2)) return;
    bytes_.resize(static_cast<size_t>(table_.count()));
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i ^ flip_of(input_)] = table_.as<uint8_t>()[i];
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    count_of(shape);
    if (channels_ == 0) return {shape};
    const size_t axis = axis_from_start(axis_, shape.size());
    if (shape[axis] != channels_) {
      throw Error(std::to_string(channels_) + " tables do not fit axis " + std::to_string(axis) + " of " + name_of(shape));
    }
    return {shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    if (channels_ == 0) {
      return for_parts(parallel, (count + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kBlock;
        run(inputs[0], outputs[0], first, std::min(count, end * kBlock) - first, 0);
      });
    }
    const int64_t inner = count_between(shape, axis_from_start(axis_, shape.size()) + 1, shape.size());
    for_parts(parallel, count / inner, inner, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) run(inputs[0], outputs[0], row * inner, inner, row % channels_);
    });
  }

 private:
  void run(const Tensor& x, Tensor& y, int64_t first, int64_t count, int64_t channel) const {
    if (!bytes_.empty()) {
      return look_(bytes_.data() + channel * entries_, x.as<uint8_t>() + first, count, y.as<uint8_t>() + first);
    }
    with_integer(input_, [&](auto index) {
      using X = decltype(index);
      with_integer(table_.type, [&](auto entry) {
        using Y = decltype(entry);
        look(x.as<X>() + first, table_.as<Y>() + channel * entries_, count, y.as<Y>() + first);
      });
    });
  }

  const int64_t axis_;
  const Look look_;
  int64_t entries_, channels_;  // channels_: 0 where there is one table
  DataType input_;
  Tensor table_;                // a constant, which outlives the kernel
  std::vector<uint8_t> bytes_;  // the tables where index and entries have 8 bits
};

}  // namespace

const Operator lookup{"Lookup", {2, 2}, {{"axis", type_int}}, shapes::as_input, make_kernel<Lookup>, type_of_second};

}  // namespace qdqtool
