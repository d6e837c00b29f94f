// ai.qdqtool::FloatMatMul: numpy's matmul of A and B, then y = alpha·Σ + beta·C.
#include "kernels/floats/float_products.hpp"
#include "kernels/shared/broadcast.hpp"

namespace qdqtool {

namespace {

typedef float Lanes __attribute__((vector_size(32)));

QDQTOOL_INLINE void load(const float* from, Lanes& lanes) { std::memcpy(&lanes, from, sizeof lanes); }

// The sums of one row in a panel.
struct Row {
  Lanes low, high;
  QDQTOOL_INLINE void add(const Lanes& left, const Lanes& right, float factor) {
    low = low + left * factor;
    high = high + right * factor;
  }
  QDQTOOL_INLINE void store(float* to) const {
    std::memcpy(to, &low, sizeof low);
    std::memcpy(to + 8, &high, sizeof high);
  }
};

// `rows` rows of a panel at once, each in registers of its own: written out, as compilers keep arrays in memory.
template <int rows>
struct PanelLoop {
  static QDQTOOL_INLINE void run(const float* a, int64_t depth, const float* panel, float* totals) {
    Row first{Lanes{}, Lanes{}}, second = first, third = first, fourth = first;
    const float* const b = a + (rows > 1 ? depth : 0);
    const float* const c = b + (rows > 2 ? depth : 0);
    const float* const d = c + (rows > 3 ? depth : 0);
    for (int64_t k = 0; k < depth; ++k, panel += kFloatColumns) {
      Lanes left, right;
      load(panel, left);
      load(panel + 8, right);
      first.add(left, right, a[k]);
      if (rows > 1) second.add(left, right, b[k]);
      if (rows > 2) third.add(left, right, c[k]);
      if (rows > 3) fourth.add(left, right, d[k]);
    }
    first.store(totals);
    if (rows > 1) second.store(totals + kFloatColumns);
    if (rows > 2) third.store(totals + 2 * kFloatColumns);
    if (rows > 3) fourth.store(totals + 3 * kFloatColumns);
  }
};

constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kRowsPerPart = 32;

class MatMul : public FloatKernel {
 public:
  explicit MatMul(const NodeInfo& node)
      : FloatKernel(node), alpha_(node.attributes.real("alpha", 1)), beta_(node.attributes.real("beta", 1)) {
    check_inputs(node.inputs, 2, 3);
    check_floats(node.inputs, 3);
    rows_ = constant(node.inputs[0]);
    const Tensor& b = node.inputs[1];
    if (!b.data || b.shape.size() < 2) return;
    const std::vector<float> numbers = constant(b);
    panels_.resize(static_cast<size_t>(panels_count(b.shape)));
    pack(numbers.data(), b.shape, panels_.data(), [](size_t count, const std::function<void(size_t)>& body) {
      for (size_t i = 0; i < count; ++i) body(i);
    });
  }

  std::vector<Shape> infer(const std::vector<Tensor>& inputs) const override {
    check_inputs(inputs, 2, 3);
    check_floats(inputs, 3);
    const Sizes s(inputs);
    if (has_input(inputs, 2)) {
      const Shape& c = inputs[2].shape;
      if (s.y.size() != 2 || broadcast_shape(c, s.y) != s.y) {
        throw Error("a bias of shape " + name_of(c) + " does not fit " + name_of(s.y));
      }
    }
    return {s.y};
  }

  size_t scratch(const std::vector<Tensor>& inputs) const override {
    const Sizes s(inputs);
    size_t bytes = floats(count_of(s.y));
    if (rows_.empty()) bytes += floats(inputs[0].count());
    if (panels_.empty()) bytes += floats(inputs[1].count()) + floats(panels_count(s.b));
    if (has_input(inputs, 2)) bytes += floats(inputs[2].count());
    return bytes;
  }

  void run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs, void* scratch, const ParallelFor& parallel) const override {
    const Sizes s(inputs);
    const int64_t count = outputs[0].count();
    if (count == 0) return;
    FloatMemory memory(scratch);
    float* const totals = memory.take(count);
    const float* rows = rows_.data();
    if (rows_.empty()) {
      float* const read_rows = memory.take(inputs[0].count());
      read(inputs[0], read_rows, parallel);
      rows = read_rows;
    }
    const float* panels = panels_.data();
    if (panels_.empty()) {
      float* const numbers = memory.take(inputs[1].count());
      float* const packed = memory.take(panels_count(s.b));
      read(inputs[1], numbers, parallel);
      pack(numbers, s.b, packed, parallel);
      panels = packed;
    }
    multiply(s, rows, panels, totals, parallel);
    if (alpha_ != 1.0f) {
      for_parts(parallel, count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) totals[i] = totals[i] * alpha_;
      });
    }
    if (has_input(inputs, 2)) {
      float* const bias = memory.take(inputs[2].count());
      read(inputs[2], bias, parallel);
      add_bias(bias, inputs[2].shape, s.y, totals);
    }
    write(totals, outputs[0], parallel);
  }

 private:
  // The operands as [batches…, M, K] and [batches…, K, N].
  struct Sizes {
    Shape a, b, batch, y;
    int64_t m, k, n;
    explicit Sizes(const std::vector<Tensor>& inputs) : a(inputs[0].shape), b(inputs[1].shape) {
      const bool is_row = a.size() == 1, is_column = b.size() == 1;
      if (a.empty() || b.empty()) throw Error("an operand has no dimensions");
      if (is_row) a.insert(a.begin(), 1);
      if (is_column) b.push_back(1);
      m = a[a.size() - 2], k = a.back(), n = b.back();
      if (b[b.size() - 2] != k) throw Error(name_of(inputs[0].shape) + " and " + name_of(inputs[1].shape) + " cannot be multiplied");
      const Shape a_batch(a.begin(), a.end() - 2), b_batch(b.begin(), b.end() - 2);
      batch = y = broadcast_shape(a_batch, b_batch);
      if (!is_row) y.push_back(m);
      if (!is_column) y.push_back(n);
      count_of(y);
      if (count_of(b_batch) == 1) {  // all rows are of one matrix
        m = count_of(y) / std::max<int64_t>(n, 1);
        batch.clear();
      }
    }
  };

  static int64_t matrices(const Shape& b) { return count_between(b, 0, b.size() - 2); }
  static int64_t panels_count(const Shape& b) { return multiply_sizes(matrices(b), panel_floats(b[b.size() - 2], b.back())); }

  static void pack(const float* numbers, const Shape& b, float* packed, const ParallelFor& parallel) {
    const int64_t depth = b[b.size() - 2], columns = b.back(), panels = panels_of(columns), each = depth * kFloatColumns;
    for_parts(parallel, matrices(b) * panels, each, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        pack_floats(numbers + i / panels * depth * columns, depth, columns, i % panels, packed + i * each);
      }
    });
  }

  // The matrix of `shape` (without its last two axes) that batch `index` of `batch` reads.
  static int64_t matrix_of(const Shape& batch, int64_t index, const Shape& shape) {
    const size_t own = shape.size() - 2;
    int64_t found = 0, step = 1;
    for (size_t i = 0; i < batch.size(); ++i) {
      const size_t axis = batch.size() - 1 - i;
      const int64_t at = index % batch[axis];
      index /= batch[axis];
      if (i >= own) continue;
      const int64_t size = shape[own - 1 - i];
      found += (size == 1 ? 0 : at) * step;
      step *= size;
    }
    return found;
  }

  void multiply(const Sizes& s, const float* rows, const float* panels, float* totals, const ParallelFor& parallel) const {
    constexpr int64_t panels_at_once = 8;
    const int64_t batches = count_of(s.batch), row_parts = (s.m + kRowsPerPart - 1) / kRowsPerPart;
    const int64_t panel_count = panels_of(s.n), panel_parts = (panel_count + panels_at_once - 1) / panels_at_once;
    const int64_t work = std::min(s.m, kRowsPerPart) * std::min(panel_count, panels_at_once) * s.k;
    for_parts(parallel, batches * row_parts * panel_parts, work, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / panel_parts / row_parts, first = i / panel_parts % row_parts * kRowsPerPart;
        const float* const a = rows + (s.batch.empty() ? 0 : matrix_of(s.batch, batch, s.a)) * s.m * s.k;
        const float* const b = panels + (s.batch.empty() ? 0 : matrix_of(s.batch, batch, s.b)) * panel_floats(s.k, s.n);
        float* const y = totals + batch * s.m * s.n;
        const int64_t last = std::min(panel_count, (i % panel_parts + 1) * panels_at_once);
        for (int64_t panel = i % panel_parts * panels_at_once; panel < last; ++panel) {
          multiply_panel(isa_, a + first * s.k, std::min(kRowsPerPart, s.m - first), s.k, b + panel * s.k * kFloatColumns,
                         std::min(kFloatColumns, s.n - panel * kFloatColumns), y + first * s.n + panel * kFloatColumns, s.n);
        }
      }
    });
  }

  // Of [M, N]; the bias has one or two axes, each of its size or 1.
  void add_bias(const float* bias, const Shape& shape, const Shape& y, float* totals) const {
    const int64_t columns = shape.empty() ? 1 : shape.back(), rows = shape.size() < 2 ? 1 : shape[shape.size() - 2];
    for (int64_t m = 0; m < y[0]; ++m) {
      const float* const from = bias + (rows == 1 ? 0 : m * columns);
      for (int64_t n = 0; n < y[1]; ++n) totals[m * y[1] + n] = totals[m * y[1] + n] + from[columns == 1 ? 0 : n] * beta_;
    }
  }

  const float alpha_, beta_;
  std::vector<float> rows_, panels_;  // of constants
};

}  // namespace

void pack_floats(const float* source, int64_t depth, int64_t columns, int64_t panel, float* packed) {
  const int64_t first = panel * kFloatColumns, width = std::min(kFloatColumns, columns - first);
  for (int64_t k = 0; k < depth; ++k) {
    float* const to = packed + k * kFloatColumns;
    std::memcpy(to, source + k * columns + first, static_cast<size_t>(width) * sizeof(float));
    std::fill(to + width, to + kFloatColumns, 0.0f);
  }
}

void multiply_panel(Isa isa, const float* rows, int64_t count, int64_t depth, const float* panel, int64_t width, float* totals,
                    int64_t stride) {
  float sums[kRowsAtOnce * kFloatColumns];
  for (int64_t m = 0; m < count; m += kRowsAtOnce) {
    const int64_t taken = std::min(kRowsAtOnce, count - m);
    const float* const a = rows + m * depth;
    float* const to = sums;
    switch (taken) {
      case 1: run_loop<PanelLoop<1>>(isa, a, depth, panel, to); break;
      case 2: run_loop<PanelLoop<2>>(isa, a, depth, panel, to); break;
      case 3: run_loop<PanelLoop<3>>(isa, a, depth, panel, to); break;
      default: run_loop<PanelLoop<4>>(isa, a, depth, panel, to); break;
    }
    for (int64_t r = 0; r < taken; ++r) {
      std::memcpy(totals + (m + r) * stride, sums + r * kFloatColumns, static_cast<size_t>(width) * sizeof(float));
    }
  }
}

const Operator float_matmul{"FloatMatMul", {2, 3}, floating({{"alpha", type_float}, {"beta", type_float}}), shapes::multiplied,
                            make_kernel<MatMul>};

}  // namespace qdqtool
