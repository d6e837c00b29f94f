// Which instructions the kernels use: chosen once from what the processor has, or forced (environment QDQTOOL_NPU_ISA,
// set_isa, NodeInfo).
#pragma once
#include <string>

#include "program/kernel.hpp"

// Functions for one instruction set carry its attribute; the rest of the program is compiled for the plain processor.
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define QDQTOOL_X86 1
#define QDQTOOL_AVX2 __attribute__((target("avx2")))
#define QDQTOOL_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else
#define QDQTOOL_X86 0
#endif

// For helpers that take or return vector registers: they must become part of a function with the same attribute.
#define QDQTOOL_INLINE inline __attribute__((always_inline))

namespace qdqtool {

// Isa::avx512 means F, BW, DQ, VL and VNNI; Isa::best stands for a choice that is not made yet.
bool has_isa(Isa isa);  // whether this processor and operating system run it
Isa isa_named(const std::string&
                  name);  // "portable", "avx2", "avx512"; throws Error for another name, or where has_isa() is false

// What a kernel prepared now is to use, never Isa::best: `wanted` where that says it, else what set_isa() said last,
// else the environment variable, else the best there is. Throws Error when this processor does not have it.
Isa choose_isa(Isa wanted = Isa::best);
void set_isa(Isa isa);  // throws Error where has_isa() is false; Isa::best takes it back

}  // namespace qdqtool
