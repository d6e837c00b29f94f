// The compiler that turns graphs into programs. It is Python's, and lives outside of this library: a function that was attached.
#pragma once
#include <cstddef>
#include <string>

#include "provider/abi.hpp"

extern "C" {
// Called once by a compiler, with its answer.
typedef void (*qdqtool_put)(void* context, const char* data, size_t size);
// what 0: `model` is a graph; the answer "0,1,2;5,6" lists nodes (numbers in the order of the graph) that become one program each.
// what 1: `model` is one such group; the answer is the payload of an EPContext node.
// what 2: `model` is the header of a compiled program (JSON); fails when it was not compiled for the target of `options` as that is now.
// `options` has lines key=value: the options of the provider, and the session's entries that begin with "session.".
// Returns 0, or another number when it failed; then the answer is the reason. May be called from several threads at a time.
typedef int (*qdqtool_compiler)(int what, const char* options, size_t options_size, const char* model, size_t model_size,
                                qdqtool_put put, void* context);
}

// Attaches the compiler of the process; nullptr takes it away.
QDQTOOL_EXPORT void qdqtool_set_compiler(qdqtool_compiler compiler);

namespace qdqtool {

enum class Question { partition = 0, lower = 1, check = 2 };

// Whether there is one to ask.
bool has_compiler();

// Asks the compiler. Throws Error: there is none, or it failed.
std::string ask_compiler(Question question, const std::string& options, const std::string& model);

}  // namespace qdqtool
