// The intrinsics of x86, for code of one instruction set.
#pragma once
#include "kernels/shared/isa.hpp"

// Loops over registers must disappear.
#if defined(__clang__)
#define QDQTOOL_UNROLL _Pragma("unroll")
#else
#define QDQTOOL_UNROLL _Pragma("GCC unroll 8")
#endif

#if QDQTOOL_X86
// gcc 12 warns of its own headers where an intrinsic leaves lanes undefined (gcc bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif
