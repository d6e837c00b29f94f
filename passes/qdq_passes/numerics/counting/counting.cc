// Extremes of values, and their counts in the bins of a histogram, in one pass. passes/qdq_passes/numerics/histogram.py defines the
// bins, and its numpy code gives the same integers: bin floor(x · 2^-exponent) − first, values of exactly 0 counted once more.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
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

// The instruction set that bins are computed with.
enum Isa { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };
template <Isa isa>
using With = std::integral_constant<Isa, isa>;

// The number of bins written, and of values that are 0.
struct Placed {
  int64_t bins, zeros;
};

// Whether `place` writes no bins for values of 0, the most frequent value behind a Relu.
template <Isa isa, class T>
constexpr bool kSkipsZeros = isa != kPortable && std::is_same<T, float>::value;

// Rounded down; of a negative value that is too small for its product there is nothing left, but it lies in bin −1.
template <class T>
QDQ_INLINE int32_t bin_of(T x, T factor, int32_t first) {
  const T scaled = x * factor;
  const int32_t whole = static_cast<int32_t>(scaled);
  const int32_t below = (static_cast<T>(whole) > scaled) | ((x < 0) & (scaled == 0));
  return whole - below - first;
}

// Bins of n values, at most kBlock; `bins` has room for a vector more.
template <class T, Isa isa>
QDQ_INLINE Placed place(const T* x, int64_t n, T factor, int32_t first, int32_t* bins, With<isa>) {
  int32_t zeros = 0;
  for (int64_t i = 0; i < n; ++i) {
    bins[i] = bin_of(x[i], factor, first);
    zeros += x[i] == 0;
  }
  return {n, zeros};
}

#if QDQ_X86
// For each mask of eight lanes the lanes that it holds, in order.
struct Lanes {
  uint8_t of[256][8];
  constexpr Lanes() : of{} {
    for (int mask = 0; mask < 256; ++mask) {
      for (int lane = 0, held = 0; lane < 8; ++lane) {
        if (mask >> lane & 1) of[mask][held++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
constexpr Lanes kLanesOf;

QDQ_AVX2 Placed place(const float* x, int64_t n, float factor, int32_t first, int32_t* bins, With<kAvx2>) {
  const __m256 by = _mm256_set1_ps(factor), zero = _mm256_setzero_ps();
  const __m256i from = _mm256_set1_epi32(first);
  int64_t placed = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 value = _mm256_loadu_ps(x + i), scaled = _mm256_mul_ps(value, by);
    const __m256 lost =
        _mm256_and_ps(_mm256_cmp_ps(value, zero, _CMP_LT_OQ), _mm256_cmp_ps(scaled, zero, _CMP_EQ_OQ));  // −1 or 0
    const __m256i whole = _mm256_cvttps_epi32(_mm256_floor_ps(scaled));
    const __m256i bin = _mm256_add_epi32(_mm256_sub_epi32(whole, from), _mm256_castps_si256(lost));
    const int kept = _mm256_movemask_ps(_mm256_cmp_ps(value, zero, _CMP_NEQ_UQ));
    const auto lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanesOf.of[kept]));
    const __m256i packed = _mm256_permutevar8x32_epi32(bin, _mm256_cvtepu8_epi32(lanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bins + placed), packed);
    placed += __builtin_popcount(static_cast<unsigned>(kept));
  }
  for (; i < n; ++i) {
    if (x[i] != 0) bins[placed++] = bin_of(x[i], factor, first);
  }
  return {placed, n - placed};
}

QDQ_AVX512 Placed place(const float* x, int64_t n, float factor, int32_t first, int32_t* bins, With<kAvx512>) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 by = _mm512_set1_ps(factor), zero = _mm512_setzero_ps();
  const __m512i from = _mm512_set1_epi32(first), one = _mm512_set1_epi32(1);
  int64_t placed = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const auto there = static_cast<__mmask16>(n - i < 16 ? (1u << (n - i)) - 1 : 0xFFFF);
    const __m512 value = _mm512_maskz_loadu_ps(there, x + i), scaled = _mm512_mul_ps(value, by);
    const __mmask16 lost = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(value, zero, _CMP_LT_OQ), scaled, zero, _CMP_EQ_OQ);
    __m512i bin = _mm512_sub_epi32(_mm512_maskz_cvt_roundps_epi32(there, scaled, kDown), from);
    bin = _mm512_mask_sub_epi32(bin, lost, bin, one);
    const __mmask16 kept = _mm512_cmp_ps_mask(value, zero, _CMP_NEQ_UQ);
    _mm512_storeu_si512(bins + placed, _mm512_maskz_compress_epi32(kept, bin));
    placed += __builtin_popcount(kept);
  }
  return {placed, n - placed};
}
#endif

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

template <Isa isa, class T>
QDQ_INLINE Status add(const T* x, int64_t n, const Bins& bins, double* found) {
  int32_t at[kBlock + kLanes];
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
    const Placed placed = place(x + start, block, factor, static_cast<int32_t>(bins.first), at, With<isa>{});
    zeros += placed.zeros;
    count_in_tables(at, placed.bins, own, start + 2 * kBlock <= n ? x + start + kBlock : static_cast<const T*>(nullptr));
  }
  if (!seen.is_finite) {
    status = kNotFinite;
  } else if (seen.low < bins.low || seen.high > bins.high) {
    status = kBeyond;
  }
  if (has_tables) empty_tables(own, bins.size, status == kCounted ? bins.counts : nullptr);
  for (int64_t start = 0; start < n && status == kCounted && !has_tables; start += kBlock) {
    const int64_t block = n - start < kBlock ? n - start : kBlock;
    const Placed placed = place(x + start, block, factor, static_cast<int32_t>(bins.first), at, With<isa>{});
    zeros += placed.zeros;
    count(at, placed.bins, bins.counts);
  }
  if (kSkipsZeros<isa, T> && zeros && status == kCounted) bins.counts[-bins.first] += zeros;
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
  return add<kPortable>(x, n, bins, found);
}
template <class T>
Status extremes_portable(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}

#if QDQ_X86
template <class T>
QDQ_AVX2 Status add_avx2(const T* x, int64_t n, const Bins& bins, double* found) {
  return add<kAvx2>(x, n, bins, found);
}
template <class T>
QDQ_AVX2 Status extremes_avx2(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}
template <class T>
QDQ_AVX512 Status add_avx512(const T* x, int64_t n, const Bins& bins, double* found) {
  return add<kAvx512>(x, n, bins, found);
}
template <class T>
QDQ_AVX512 Status extremes_avx512(const T* x, int64_t n, double* found) {
  return extremes(x, n, found);
}

// The newest instruction set that this processor has.
int best() {
  static const int found = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) return kPortable;
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_512 ? kAvx512 : kAvx2;
  }();
  return found;
}
#endif

template <class T>
int add_best(const T* x, int64_t n, const Bins& bins, int most, double* found) {
#if QDQ_X86
  const int isa = best() < most ? best() : most;
  if (isa == kAvx512) return add_avx512(x, n, bins, found);
  if (isa == kAvx2) return add_avx2(x, n, bins, found);
#endif
  (void)most;
  return add_portable(x, n, bins, found);
}

template <class T>
int extremes_best(const T* x, int64_t n, int most, double* found) {
#if QDQ_X86
  const int isa = best() < most ? best() : most;
  if (isa == kAvx512) return extremes_avx512(x, n, found);
  if (isa == kAvx2) return extremes_avx2(x, n, found);
#endif
  (void)most;
  return extremes_portable(x, n, found);
}

}  // namespace

// Counted up whenever a function below takes, returns or means something else, together with `INTERFACE` of `__init__.py`.
QDQ_EXPORT int qdq_counting_interface() { return 1; }

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
