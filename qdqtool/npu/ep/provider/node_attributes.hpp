// The attributes of an ordinary session's node, as kernels want them. onnxruntime hands them out one by one, by name.
#pragma once
#include "program/operators.hpp"
#include "provider/api.hpp"

namespace qdqtool {

// While a kernel is created.
Attributes attributes_of(const Api& api, const ort::KernelInfo* info, const Operator& op);
// While shapes are inferred.
Attributes attributes_of(const Api& api, const ort::ShapeInferContext* context, const Operator& op);

}  // namespace qdqtool
