// The second door: the operators of ai.qdqtool in an ordinary session, over the same kernels.
#pragma once
#include "provider/api.hpp"

namespace qdqtool {

// Adds the domain to a session's options. Throws Error.
void add_custom_ops(const Api& api, ort::SessionOptions* options);

}  // namespace qdqtool
