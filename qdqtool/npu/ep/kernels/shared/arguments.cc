#include "kernels/shared/arguments.hpp"

namespace qdqtool {

void for_parts(const ParallelFor& parallel, int64_t items, int64_t elements, const RangeBody& body) {
  if (items <= 0) return;
  const int64_t least = std::max<int64_t>(1, kElementsPerPart / std::max<int64_t>(1, elements));
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(items / least, 256));
  if (parts == 1) return body(0, items);
  const int64_t size = items / parts, longer = items % parts;  // the first `longer` parts have one item more
  parallel(static_cast<size_t>(parts), [&](size_t part) {
    const auto p = static_cast<int64_t>(part);
    const int64_t begin = p * size + std::min(p, longer);
    body(begin, begin + size + (p < longer ? 1 : 0));
  });
}

}  // namespace qdqtool
