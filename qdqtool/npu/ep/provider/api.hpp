// onnxruntime's functions as C++ wants them: errors as exceptions, memory that frees itself; and the way back, where no exception gets out.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/kernel.hpp"
#include "provider/abi.hpp"

namespace qdqtool {

constexpr const char* provider_name = "NpuSimExecutionProvider";

// What onnxruntime frees with its function number Number, freed at the end of a scope.
template <class T, size_t Number>
using Held = std::unique_ptr<T, ort::Slot<Number, void(T*)>>;

// One onnxruntime of the process. Two may live in one process (Python's own and a shared library), so nothing of it is global:
// every object that calls onnxruntime holds the Api it was made by.
class Api : public ort::Tables {
 public:
  // The Api of `base`; lives as long as the process. Throws Error when it is older than 1.23.
  static const Api& of(const ort::ApiBase* base);
  // A status, from an onnxruntime of any version.
  static ort::Status* refuse(const ort::ApiBase* base, const std::string& message);

  const uint32_t runtime;  // its minor version: 23 for 1.23.2
  const uint32_t version;  // what our structures claim to be written for
  const ort::EpTables ep;
  const ort::EditorTables editor;

  // Throws Error with the text of `status` unless it is null.
  void check(ort::Status* status) const;
  // Whether `status` is null; an error is thrown away.
  bool succeeds(ort::Status* status) const;
  // A status with this text, in which bytes that are no UTF-8 are '?': Python could not read it otherwise, and would go on without us.
  ort::Status* status(const char* text) const noexcept;
  // Runs `body`; what it throws becomes a status. The only way in which functions of ours are called by onnxruntime.
  template <class Body>
  ort::Status* guard(Body body) const noexcept {
    try {
      body();
      return nullptr;
    } catch (const std::bad_alloc&) {
      return status("the simulated NPU is out of memory");
    } catch (const std::exception& error) {
      return status(error.what());
    } catch (...) {
      return status("the simulated NPU failed without a reason");
    }
  }

  // The objects that a pair of functions counts and lists.
  template <class T, class Owner, class Count, class List>
  std::vector<const T*> list(const Owner* owner, Count count, List list) const {
    size_t size = 0;
    check(count(owner, &size));
    std::vector<const T*> found(size);
    if (size) check(list(owner, found.data(), size));
    return found;
  }
  // A name; "" for a value that was left out.
  std::string name_of(const ort::ValueInfo* value) const;
  // Bytes of an attribute that is no tensor and no graph.
  std::string bytes_of(const ort::OpAttr* attribute, int type) const;
  // Type, shape and memory of a tensor; an empty Tensor for nullptr.
  Tensor tensor_of(const ort::Value* value) const;
  // Type and shape; an unknown dimension is -1.
  Tensor type_of(const ort::TensorInfo* info) const;
  // Entries of a session's configuration.
  std::map<std::string, std::string> config_of(const ort::SessionOptions* options) const;
  // body(0) … body(count - 1) on the threads of the session that runs `context`.
  void parallel_for(const ort::KernelContext* context, size_t count, const std::function<void(size_t)>& body) const;

 private:
  Api(const void* const* table, uint32_t minor);
};

}  // namespace qdqtool
