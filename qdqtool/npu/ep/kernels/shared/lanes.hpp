// Loops over blocks of a fixed length, which compilers turn into vector instructions, and the choice between two compilations of
// each.
#pragma once
#include <cstring>

#include "kernels/requantize/requantize.hpp"
#include "kernels/shared/isa.hpp"

namespace qdqtool {

constexpr int kBlock = 512;  // elements: what a loop reads and writes stays in the first cache
constexpr int kStrip = 64;   // of them where not all are there: compilers make vectors of loops of a fixed length

#if QDQTOOL_X86
template <class Loop, class... Args>
QDQTOOL_AVX2 void run_avx2(Args... args) {
  Loop::run(args...);
}
#endif

// Loop::run(args...), a QDQTOOL_INLINE function, compiled for AVX2 where `isa` allows that and for the plain processor elsewhere.
template <class Loop, class... Args>
void run_loop(Isa isa, Args... args) {
#if QDQTOOL_X86
  if (isa != Isa::portable) return run_avx2<Loop>(args...);
#else
  (void)isa;
#endif
  Loop::run(args...);
}

template <class Loop, class... Args>
void run_plainly(Args... args) {
  Loop::run(args...);
}

// The function that run_loop<Loop> calls, for what is chosen once and called where the type is no longer known.
template <class Loop, class... Args>
auto loop_of(Isa isa) -> void (*)(Args...) {
#if QDQTOOL_X86
  if (isa != Isa::portable) return run_avx2<Loop, Args...>;
#else
  (void)isa;
#endif
  return run_plainly<Loop, Args...>;
}

// The byte of an int8 read as uint8 with its order kept: byte ^ flip is the value minus the type's minimum.
inline uint8_t flip_of(DataType type) { return type == DataType::int8 ? 0x80 : 0; }

// round(value), exact for |value| < 2^21. Adding 1.5·2^23 leaves no bits below one: the sum is rounded half to even; what that
// took away is exact, and says where the others differ.
template <Rounding rounding>
QDQTOOL_INLINE int32_t round_small(float value) {
  constexpr float magic = 12582912.0f;
  const float even = (value + magic) - magic, rest = value - even;
  const auto whole = static_cast<int32_t>(even);
  if (rounding == Rounding::half_up) return whole + (rest == 0.5f);
  if (rounding == Rounding::half_away) {
    return whole + ((value > 0.0f) & (rest == 0.5f)) - ((value < 0.0f) & (rest == -0.5f));
  }
  if (rounding == Rounding::toward_zero) {
    return whole - ((value > 0.0f) & (rest < 0.0f)) + ((value < 0.0f) & (rest > 0.0f));
  }
  return whole;
}

// run_loop() of Loop<rounding> for a rounding that is known at run time.
template <template <Rounding> class Loop, class... Args>
void run_rounding(Rounding rounding, Isa isa, Args... args) {
  switch (rounding) {
    case Rounding::half_up: return run_loop<Loop<Rounding::half_up>>(isa, args...);
    case Rounding::half_even: return run_loop<Loop<Rounding::half_even>>(isa, args...);
    case Rounding::half_away: return run_loop<Loop<Rounding::half_away>>(isa, args...);
    case Rounding::toward_zero: return run_loop<Loop<Rounding::toward_zero>>(isa, args...);
  }
}

// `count` elements of a source as a whole block: the source itself, or at its end a copy in `buffer` with zeros behind.
template <class T>
const T* whole_block(const T* source, int64_t count, T* buffer) {
  if (count == kBlock) return source;
  std::memcpy(buffer, source, static_cast<size_t>(count) * sizeof(T));
  std::memset(buffer + count, 0, static_cast<size_t>(kBlock - count) * sizeof(T));
  return buffer;
}

}  // namespace qdqtool
