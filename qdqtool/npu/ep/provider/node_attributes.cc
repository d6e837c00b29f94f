#include "provider/node_attributes.hpp"

namespace qdqtool {

// Attributes of a node that is being created. onnxruntime tells what an attribute is only by refusing to read it as something else.
Attributes attributes_of(const Api& api, const ort::KernelInfo* info, const Operator& op) {
  Attributes found;
  for (const AttributeField& field : op.attributes) {
    const char* name = field.name.c_str();
    int64_t integer = 0;
    float real = 0;
    size_t size = 0;
    if (api.succeeds(api.KernelInfoGetAttribute_int64(info, name, &integer))) {
      found.ints[name] = integer;
    } else if (api.succeeds(api.KernelInfoGetAttribute_float(info, name, &real))) {
      found.floats[name] = real;
    } else if (api.succeeds(api.KernelInfoGetAttribute_string(info, name, nullptr, &size))) {
      std::string text(size, '\0');
      api.check(api.KernelInfoGetAttribute_string(info, name, text.data(), &size));
      found.strings[name] = text.c_str();  // size counts the null at the end
    } else if (api.succeeds(api.KernelInfoGetAttributeArray_int64(info, name, nullptr, &size))) {
      std::vector<int64_t> integers(size);
      if (size) api.check(api.KernelInfoGetAttributeArray_int64(info, name, integers.data(), &size));
      found.int_lists[name] = integers;
    } else if (api.succeeds(api.KernelInfoGetAttributeArray_float(info, name, nullptr, &size))) {
      found.float_lists[name].resize(size);
      if (size) api.check(api.KernelInfoGetAttributeArray_float(info, name, found.float_lists[name].data(), &size));
    }
  }
  return found;
}

// The same while shapes are inferred, where onnxruntime hands out the attribute itself.
Attributes attributes_of(const Api& api, const ort::ShapeInferContext* context, const Operator& op) {
  Attributes found;
  for (const AttributeField& field : op.attributes) {
    const ort::OpAttr* attribute = nullptr;
    if (!api.succeeds(api.ShapeInferContext_GetAttribute(context, field.name.c_str(), &attribute)) || !attribute) continue;
    int type = 0;
    api.check(api.OpAttr_GetType(attribute, &type));
    const std::string bytes = api.bytes_of(attribute, type);
    const auto numbers = [&bytes](auto zero) {
      std::vector<decltype(zero)> list(bytes.size() / sizeof zero);
      bytes.copy(reinterpret_cast<char*>(list.data()), list.size() * sizeof zero);
      return list;
    };
    switch (type) {
      case ort::type_int: found.ints[field.name] = numbers(int64_t{}).at(0); break;
      case ort::type_float: found.floats[field.name] = numbers(float{}).at(0); break;
      case ort::type_string: found.strings[field.name] = bytes; break;
      case ort::type_ints: found.int_lists[field.name] = numbers(int64_t{}); break;
      case ort::type_floats: found.float_lists[field.name] = numbers(float{}); break;
      default: throw Error("attribute '" + field.name + "' is neither a number, a text nor a list of numbers");
    }
  }
  return found;
}

}  // namespace qdqtool
