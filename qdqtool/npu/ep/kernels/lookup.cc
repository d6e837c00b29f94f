// ai.qdqtool::Lookup: y = table[x - type minimum], with one table [256], or one for each index of an axis, [C, 256].
#include "elements.hpp"
#include "wide.hpp"

#if QDQTOOL_X86
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // gcc 12 warns of its own headers (gcc bug 105593)
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace qdqtool {

namespace {

constexpr size_t kEntries = 256;

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
    check_8_bit(input_, "input 0");
    check_8_bit(node.outputs[0], "the output");
    const Tensor& table = node.inputs[1];
    check_type(table.type, node.outputs[0], "the table");
    if (!table.data) throw Error("the table must be a constant");
    const Shape& shape = table.shape;
    if (shape.empty() || shape.size() > 2 || shape.back() != static_cast<int64_t>(kEntries) || table.count() == 0) {
      throw Error("the table has the shape " + name_of(shape) + "; [256] or [C, 256] is meant");
    }
    per_channel_ = shape.size() == 2;
    channels_ = per_channel_ ? shape[0] : 1;
    // By the byte of the index as it lies in memory.
    tables_.resize(static_cast<size_t>(table.count()));
    const uint8_t flip = flip_of(input_);
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i ^ flip] = table.as<uint8_t>()[i];
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 2);
    check_type(inputs[0].type, input_, "input 0");
    const Shape& shape = inputs[0].shape;
    count_of(shape);
    if (per_channel_) {
      const size_t axis = axis_from_start(axis_, shape.size());
      if (shape[axis] != channels_) {
        throw Error(std::to_string(channels_) + " tables do not fit axis " + std::to_string(axis) + " of " +
                    name_of(shape));
      }
    }
    return {shape};
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void*,
           const ParallelFor& parallel) const override {
    const Shape& shape = inputs[0].shape;
    const int64_t count = inputs[0].count();
    if (count == 0) return;
    const auto* x = inputs[0].as<uint8_t>();
    auto* y = outputs[0].as<uint8_t>();
    if (!per_channel_) {
      return for_parts(parallel, (count + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kBlock;
        look_(tables_.data(), x + first, std::min(count, end * kBlock) - first, y + first);
      });
    }
    const size_t axis = axis_from_start(axis_, shape.size());
    const int64_t inner = count_between(shape, axis + 1, shape.size());
    for_parts(parallel, count / inner, inner, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        look_(tables_.data() + row % channels_ * static_cast<int64_t>(kEntries), x + row * inner, inner,
              y + row * inner);
      }
    });
  }

 private:
  const int64_t axis_;
  const Look look_;
  DataType input_;
  bool per_channel_;
  int64_t channels_;
  std::vector<uint8_t> tables_;
};

}  // namespace

void register_lookup(KernelTable& table) {
  table["ai.qdqtool::Lookup"] = [](const NodeInfo& node) {
    return has_16_bit(node, 1) ? make_wide_lookup(node) : make_kernel<Lookup>(node);
  };
}

}  // namespace qdqtool
