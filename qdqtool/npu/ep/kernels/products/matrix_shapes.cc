#include "kernels/products/matrix_shapes.hpp"

#include <algorithm>

#include "kernels/shared/arguments.hpp"

namespace qdqtool {

MatrixShapes matrix_shapes(const Shape& a, const Shape& b) {
  if (a.empty() || b.empty())
    throw Error("A has the shape " + name_of(a) + ", B " + name_of(b) + "; neither may be a scalar");
  MatrixShapes found;
  Shape first = a, second = b;
  if (a.size() == 1) first.insert(first.begin(), 1);
  if (b.size() == 1) second.push_back(1);
  const size_t rank = std::max(first.size(), second.size());
  first.insert(first.begin(), rank - first.size(), 1), second.insert(second.begin(), rank - second.size(), 1);
  const auto refuse = [&] { throw Error("A of shape " + name_of(a) + " does not multiply B of shape " + name_of(b)); };
  if (first[rank - 1] != second[rank - 2]) refuse();
  found.rows = static_cast<size_t>(first[rank - 2]), found.depth = static_cast<size_t>(first[rank - 1]);
  found.columns = static_cast<size_t>(second[rank - 1]);
  found.a_count = static_cast<size_t>(count_between(first, 0, rank - 2)),
  found.b_count = static_cast<size_t>(count_between(second, 0, rank - 2));
  int64_t batches = 1;
  for (size_t d = 0; d + 2 < rank; ++d) {
    if (first[d] != second[d] && first[d] != 1 && second[d] != 1) refuse();
    found.output.push_back(first[d] == 1 ? second[d] : first[d]);
    batches = multiply_sizes(batches, found.output.back());
  }
  if (a.size() > 1) found.output.push_back(first[rank - 2]);
  if (b.size() > 1) found.output.push_back(second[rank - 1]);
  count_of(found.output);
  if (found.b_count == 1) {  // one matrix B: those of A are rows of one matrix
    found.rows *= found.a_count, found.a_count = 1;
    found.a_of = found.b_of = {0};
    return found;
  }
  for (int64_t batch = 0; batch < batches; ++batch) {
    int64_t rest = batch, a_at = 0, b_at = 0, a_step = 1, b_step = 1;
    for (size_t d = rank - 2; d-- > 0;) {
      const int64_t size = first[d] == 1 ? second[d] : first[d], at = rest % size;
      rest /= size;
      if (first[d] != 1) a_at += at * a_step;
      if (second[d] != 1) b_at += at * b_step;
      a_step *= first[d], b_step *= second[d];
    }
    found.a_of.push_back(static_cast<size_t>(a_at)), found.b_of.push_back(static_cast<size_t>(b_at));
  }
  return found;
}

}  // namespace qdqtool
