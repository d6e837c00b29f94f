#include "kernels/shared/isa.hpp"

#include <atomic>
#include <cstdlib>

namespace qdqtool {

namespace {

const char* const variable = "QDQTOOL_NPU_ISA";

std::atomic<Isa>& forced() {
  static std::atomic<Isa> value{Isa::best};
  return value;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::best: return "best";
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "?";
}

Isa best() {
  if (has_isa(Isa::avx512)) return Isa::avx512;
  return has_isa(Isa::avx2) ? Isa::avx2 : Isa::portable;
}

Isa from_environment() {
  const char* text = std::getenv(variable);
  if (!text || !*text) return best();
  try {
    return isa_named(text);
  } catch (const Error& error) {
    throw Error(std::string("environment variable ") + variable + ": " + error.what());
  }
}

Isa require(Isa isa) {
  if (!has_isa(isa))
    throw Error(std::string("this processor does not have the instruction set '") + name_of(isa) + "'");
  return isa;
}

}  // namespace

bool has_isa(Isa isa) {
#if QDQTOOL_X86
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2");
  if (isa == Isa::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
  }
#endif
  return isa == Isa::portable || isa == Isa::best;
}

Isa isa_named(const std::string& name) {
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (name == name_of(isa)) return require(isa);
  }
  throw Error("there is no instruction set '" + name + "'; one of portable, avx2, avx512");
}

Isa choose_isa(Isa wanted) {
  if (wanted == Isa::best) wanted = forced().load(std::memory_order_relaxed);
  if (wanted != Isa::best) return require(wanted);
  static const Isa chosen = from_environment();
  return chosen;
}

void set_isa(Isa isa) { forced().store(require(isa), std::memory_order_relaxed); }

}  // namespace qdqtool
