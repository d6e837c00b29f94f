// Extremes of values, and their counts in the bins of a histogram, in one pass. passes/qdq_passes/numerics/histogram.py defines the
// bins, and its numpy code gives the same integers: bin floor(x · 2^-exponent) − first, values of exactly 0 counted once more.
#include <cmath>
#include <cstdint>
#include <limits>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define QDQ_X86 1
#define QDQ_AVX2 __attribute__((target("avx2")))
#define QDQ_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#else
#define QDQ_X86 0
#endif
#if defined(_WIN32)
#define QDQ_EXPORT extern "C" __declspec(dllexport)
#else
#define QDQ_EXPORT extern "C" __attribute__((visibility("default")))
#endif
// Part of each function for one instruction set.
#define QDQ_INLINE static inline __attribute__((always_inline))

namespace {

// Values that are looked at, then counted, while they are in the first-level cache.
constexpr int64_t kBlock = 2048;
constexpr int kLanes = 32;
// Equal values in a row must not wait for each other's count to be stored: neighbors go to different tables. The padding keeps a bin of
// two tables out of one cache set.
constexpr int kTables = 4;
constexpr int64_t kMostBins = 1 << 14, kStride = kMostBins + 48;
// Fewer values than this per bin do not pay for adding the tables up.
constexpr int64_t kTablesFrom = 4;

enum Status { kCounted = 0, kBeyond = 1, kNotFinite = 2 };

// All zero between calls.
thread_local uint32_t tables[kTables * kStride];

// The bins of a histogram that holds values in [low, high].
struct Bins {
  double low, high;
  int exponent;
  int64_t first, size;
  int64_t* counts;
};

template <class T>
struct Seen {
  T low = std::numeric_limits<T>::infinity(), high = -std::numeric_limits<T>::infinity();
  bool is_finite = true;
};

template <class T>
QDQ_INLINE void look(const T* x, int64_t n, Seen<T>& seen) {
  T low[kLanes], high[kLanes], nothing[kLanes];  // x · 0 is NaN where x is not finite
  for (int j = 0; j < kLanes; ++j) low[j] = seen.low, high[j] = seen.high, nothing[j] = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
    for (int j = 0; j < kLanes; ++j) high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    for (int j = 0; j < kLanes; ++j) nothing[j] += x[i + j] * 0;
  }
  for (int j = 0; i < n; ++i, ++j) {
    low[j] = x[i] < low[j] ? x[i] : low[j];
    high[j] = x[i] > high[j] ? x[i] : high[j];
    nothing[j] += x[i] * 0;
  }
  for (int j = 0; j < kLanes; ++j) {
    seen.low = low[j] < seen.low ? low[j] : seen.low;
    seen.high = high[j] > seen.high ? high[j] : seen.high;
    seen.is_finite &= nothing[j] == 0;
  }
}

// Bins of n values, at most kBlock; returns how many values are 0.
template <class T>
QDQ_INLINE int64_t place(const T* x, int64_t n, T factor, int32_t first, int32_t* bins) {
  int32_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T scaled = x[i] * factor;
    const int32_t whole = static_cast<int32_t>(scaled);
    // Rounded down; of a negative value that is too small for its product there is nothing left, but it lies in bin −1.
    const int32_t below = (static_cast<T>(whole) > scaled) | ((x[i] < 0) & (scaled == 0));
    bins[i] = whole - below - first;
    zeros += x[i] == 0;
  }
  return zeros;
}

QDQ_INLINE void count(const int32_t* bins, int64_t n, int64_t* counts) {
  for (int64_t i = 0; i < n; ++i) ++counts[bins[i]];
}

// Meanwhile as many values come from `next`, if it is not null, into the cache.
template <class T>
QDQ_INLINE void count_in_tables(const int32_t* bins, int64_t n, uint32_t* in, const T* next) {
  int64_t i = 0;
  for (; i + 2 * kTables <= n; i += 2 * kTables) {
#if defined(__GNUC__) || defined(__clang__)
    if (next) __builtin_prefetch(next + i);
#endif
    for (int k = 0; k < kTables; ++k) ++in[k * kStride + bins[i + k]];
    for (int k = 0; k < kTables; ++k) ++in[k * kStride + bins[i + kTables + k]];
  }
  for (; i < n; ++i) ++in[bins[i]];
}

// Add the tables to `counts` where that is not null, and clear them.
QDQ_INLINE void empty_tables(uint32_t* in, int64_t size, int64_t* counts) {
  for (int64_t i = 0; i < size && counts; ++i) {
    counts[i] += int64_t{in[i]} + in[kStride + i] + in[2 * kStride + i] + in[3 * kStride + i];
  }
  for (int k = 0; k < kTables; ++k) {
    for (int64_t i = 0; i < size; ++i) in[k * kStride + i] = 0;
  }
}

template <class T>
QDQ_INLINE Status add(const T* x, int64_t n, const Bins& bins, double* found) {
  int32_t at[kBlock];
  uint32_t* const own = tables;  // found once: a variable of the thread is not for loops
  Seen<T> seen;
  const T factor = static_cast<T>(std::ldexp(1.0, -bins.exponent));
  const bool has_tables = n >= kTablesFrom * bins.size && bins.size <= kMostBins;
  Status status = kCounted;
  int64_t zeros = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t block = n - start < kBlock ? n - start : kBlock;
    look(x + start, block, seen);
    if (status != kCounted || !has_tables) continue;
    if (!seen.is_finite || seen.low < bins.low || seen.high > bins.high) {  // the rest is only looked at
      status = kBeyond;
      continue;
    }
    zeros += place(x + start, block, factor, static_cast<int32_t>(bins.first), at);
    count_in_tables(at, block, own, start + 2 * kBlock <= n ? x + start + kBlock : static_cast<const T*>(nullptr));
  }
  if (!seen.is_finite) {
    status = kNotFinite;
  } else if (seen.low < bins.low || seen.high > bins.high) {
    status = kBeyond;
  }
  if (has_tables) empty_tables(own, bins.size, status == kCounted ? bins.counts : nullptr);
  for (int64_t start = 0; start < n && status == kCounted && !has_tables; start += kBlock) {
    const int64_t block = n - start < kBlock ? n - start : kBlock;
    zeros += place(x + start, block, factor, static_cast<int32_t>(bins.first), at);
    count(at, block, bins.counts);
  }
  found[0] = seen.low, found[1] = seen.high, found[2] = static_cast<double>(zeros);
  return status;
}

template <class T>
QDQ_INLINE Status extremes(const T* x, int64_t n, double* found) {
  Seen<T> seen;
  look(x, n, seen);
  found[0] = seen.low, found[1] = seen.high;
  return seen.is_finite ? kCounted : kNotFinite;
}

template <class T>
Status add_portable(const T* x, int64_t n, const Bins& bins, double* found) {
  return add(x, n, bins, found);
}
template <class T>
Status extremes_portable(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}

#if QDQ_X86
template <class T>
QDQ_AVX2 Status add_avx2(const T* x, int64_t n, const Bins& bins, double* found) {
  return add(x, n, bins, found);
}
template <class T>
QDQ_AVX2 Status extremes_avx2(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}
template <class T>
QDQ_AVX512 Status add_avx512(const T* x, int64_t n, const Bins& bins, double* found) {
  return add(x, n, bins, found);
}
template <class T>
QDQ_AVX512 Status extremes_avx512(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}

// 2 for AVX-512, 1 for AVX2, 0 for neither.
int best() {
  static const int found = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return 0;
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_512 ? 2 : 1;
  }();
  return found;
}
#endif

template <class T>
int add_best(const T* x, int64_t n, const Bins& bins, int most, double* found) {
#if QDQ_X86
  const int isa = best() < most ? best() : most;
  if (isa == 2) return add_avx512(x, n, bins, found);
  if (isa == 1) return add_avx2(x, n, bins, found);
#endif
  (void)most;
  return add_portable(x, n, bins, found);
}

template <class T>
int extremes_best(const T* x, int64_t n, int most, double* found) {
#if QDQ_X86
  const int isa = best() < most ? best() : most;
  if (isa == 2) return extremes_avx512(x, n, found);
  if (isa == 1) return extremes_avx2(x, n, found);
#endif
  (void)most;
  return extremes_portable(x, n, found);
}

}  // namespace

// Count n values (at most 2^31), all or none. `found` gets the smallest, the largest, and how many are 0.
// Returns 0 where they are counted, 1 where some lie beyond [low, high], 2 where some are not finite.
// `most`: 0 computes without AVX, 1 with AVX2 at most, 2 with AVX-512 at most.
QDQ_EXPORT int qdq_count_float32(const float* x, int64_t n, double low, double high, int exponent, int64_t first, int64_t size,
                                 int64_t* counts, int most, double* found) {
  return add_best(x, n, Bins{low, high, exponent, first, size, counts}, most, found);
}
QDQ_EXPORT int qdq_count_float64(const double* x, int64_t n, double low, double high, int exponent, int64_t first, int64_t size,
                                 int64_t* counts, int most, double* found) {
  return add_best(x, n, Bins{low, high, exponent, first, size, counts}, most, found);
}

// `found` gets the smallest and the largest of n values; returns 0, or 2 where some are not finite.
QDQ_EXPORT int qdq_extremes_float32(const float* x, int64_t n, int most, double* found) {
  return extremes_best(x, n, most, found);
}
QDQ_EXPORT int qdq_extremes_float64(const double* x, int64_t n, int most, double* found) {
  return extremes_best(x, n, most, found);
}
