#include "provider/api.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>

#include "provider/mutex.hpp"
#include "provider/platform.hpp"

namespace qdqtool {

namespace {

// "1.23.2" → 23. The interface's version is onnxruntime's minor version. 0 when the text is no version.
uint32_t minor_version(const char* text) {
  unsigned major = 0, minor = 0;
  return std::sscanf(text, "%u.%u", &major, &minor) == 2 && major == 1 ? minor : 0;
}

}  // namespace

Api::Api(const void* const* table, uint32_t minor)
    : Tables{table},
      runtime(minor),
      version(std::min(minor, ort::newest_api)),
      ep{GetEpApi()},
      editor{GetModelEditorApi()} {}

const Api& Api::of(const ort::ApiBase* base) {
  static Mutex mutex;
  static std::map<const ort::ApiBase*, std::unique_ptr<const Api>> known;
  const Lock lock(mutex);
  auto& found = known[base];
  if (!found) {
    const uint32_t minor = minor_version(base->GetVersionString());
    // Asking for a version that is not there prints to stderr, so that the text is read first.
    const void* const* table = minor >= ort::oldest_api ? base->GetApi(ort::oldest_api) : nullptr;
    if (!table) throw Error(std::string("the simulated NPU needs onnxruntime 1.23 or newer, this is ") + base->GetVersionString());
    found.reset(new Api(table, minor));
  }
  return *found;
}

ort::Status* Api::status(const char* text) const noexcept {
  try {
    return CreateStatus(ort::fail, as_utf8(text).c_str());
  } catch (...) {
    return CreateStatus(ort::fail, "the simulated NPU failed, and has no memory left to say how");
  }
}

ort::Status* Api::refuse(const ort::ApiBase* base, const std::string& message) {
  return ort::Tables{base->GetApi(1)}.CreateStatus(ort::fail, message.c_str());
}

void Api::check(ort::Status* status) const {
  if (!status) return;
  const Held<ort::Status, 93> held(status, ReleaseStatus);
  throw Error(GetErrorMessage(status));
}

bool Api::succeeds(ort::Status* status) const {
  if (status) ReleaseStatus(status);
  return !status;
}

std::string Api::name_of(const ort::ValueInfo* value) const {
  const char* name = "";
  if (value) check(GetValueInfoName(value, &name));
  return name;
}

std::string Api::bytes_of(const ort::OpAttr* attribute, int type) const {
  size_t size = 0;
  succeeds(ReadOpAttr(attribute, type, nullptr, 0, &size));  // fails, and says how much there is
  std::string bytes(size, '\0');
  if (size) check(ReadOpAttr(attribute, type, bytes.data(), size, &size));
  return bytes;
}

Tensor Api::tensor_of(const ort::Value* value) const {
  Tensor tensor;
  if (!value) return tensor;
  const void* data = nullptr;
  if (runtime >= 24) {
    int type = 0;
    const int64_t* dims = nullptr;
    size_t count = 0;
    check(GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &count));
    tensor.type = static_cast<DataType>(type);
    tensor.shape.assign(dims, dims + count);
  } else {
    ort::TensorInfo* info = nullptr;
    check(GetTensorTypeAndShape(value, &info));
    const Held<ort::TensorInfo, 99> held(info, ReleaseTensorTypeAndShapeInfo);
    tensor = type_of(info);
  }
  check(GetTensorData(value, &data));
  tensor.data = const_cast<void*>(data);
  return tensor;
}

Tensor Api::type_of(const ort::TensorInfo* info) const {
  Tensor tensor;
  int type = 0;
  size_t rank = 0;
  check(GetTensorElementType(info, &type));
  check(GetDimensionsCount(info, &rank));
  tensor.type = static_cast<DataType>(type);
  tensor.shape.resize(rank);
  if (rank) check(GetDimensions(info, tensor.shape.data(), rank));
  return tensor;
}

std::map<std::string, std::string> Api::config_of(const ort::SessionOptions* options) const {
  ort::KeyValues* entries = nullptr;
  check(GetSessionOptionsConfigEntries(options, &entries));
  const Held<ort::KeyValues, 300> held(entries, ReleaseKeyValuePairs);
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  GetKeyValuePairs(entries, &keys, &values, &count);
  std::map<std::string, std::string> config;
  for (size_t i = 0; i < count; ++i) config[keys[i]] = values[i];
  return config;
}

void Api::parallel_for(const ort::KernelContext* context, size_t count, const std::function<void(size_t)>& body) const {
  if (count == 1) return body(0);
  if (!count) return;
  // An exception must not get into the threads of onnxruntime: the first is kept and thrown on this one.
  struct Job {
    const std::function<void(size_t)>& body;
    std::exception_ptr error;
    Mutex mutex;
  } job{body, nullptr, {}};
  const auto step = [](void* user, size_t index) {
    auto& job = *static_cast<Job*>(user);
    try {
      job.body(index);
    } catch (...) {
      const Lock lock(job.mutex);
      if (!job.error) job.error = std::current_exception();
    }
  };
  check(KernelContext_ParallelFor(context, step, count, 0, &job));
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace qdqtool
