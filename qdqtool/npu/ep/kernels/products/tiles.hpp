// How work is cut for ParallelFor, and who has which piece of scratch memory.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/products/gemm.hpp"

namespace qdqtool {

constexpr size_t kAlignment = 64;
constexpr size_t kParts = 24;  // of the work, where there is so much: enough for a dozen threads to end nearly at once

inline size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// `columns` cut into tiles of nearly the same width, each a multiple of kLanes but for the last.
struct Tiles {
  size_t columns = 0;
  size_t count() const { return (columns + kTile - 1) / kTile; }
  size_t begin(size_t tile) const { return std::min(columns, units() * tile / std::max<size_t>(1, count()) * kLanes); }
  size_t width(size_t tile) const { return begin(tile + 1) - begin(tile); }

 private:
  size_t units() const { return (columns + kLanes - 1) / kLanes; }
};

// [begin(part), begin(part + 1)) of `items`, cut into `parts`.
struct Parts {
  size_t items = 0, parts = 1;
  size_t begin(size_t part) const { return items * part / parts; }
};

// In how many parts to cut `items` that take `operations` multiplications together, at most `most`.
inline size_t parts_for(size_t items, double operations, size_t most) {
  constexpr double least = 1 << 18;  // of a part: a few microseconds, against one for handing it to a thread
  const auto worth = static_cast<size_t>(std::max(1.0, std::min(operations / least, 4096.0)));
  return std::max<size_t>(1, std::min({items, worth, most}));
}

// Pieces of memory for bodies that run at once. A body takes the lowest free one, so that a single thread stays in the
// same memory.
class Pieces {
 public:
  Pieces(void* memory, size_t bytes) : memory_(static_cast<uint8_t*>(memory)), bytes_(bytes) {}

  // At most 32 may be held at a time, and as many as there is memory for.
  class Piece {
   public:
    explicit Piece(Pieces& from) : from_(from) {
      uint32_t free = from_.free_.load(std::memory_order_relaxed);
      do {
        index_ = lowest(free);
      } while (!from_.free_.compare_exchange_weak(free, free & ~(uint32_t{1} << index_), std::memory_order_acquire));
    }
    ~Piece() { from_.free_.fetch_or(uint32_t{1} << index_, std::memory_order_release); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    void* data() const { return from_.memory_ + index_ * from_.bytes_; }

   private:
    static size_t lowest(uint32_t bits) {
      size_t index = 0;
      while (!(bits >> index & 1)) ++index;
      return index;
    }
    Pieces& from_;
    size_t index_ = 0;
  };

 private:
  uint8_t* memory_;
  size_t bytes_;
  std::atomic<uint32_t> free_{~uint32_t{0}};
};

}  // namespace qdqtool
