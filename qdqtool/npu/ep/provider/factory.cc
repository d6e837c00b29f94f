// The doors of the library: what onnxruntime looks for by name.
#include <memory>

#include "provider/api.hpp"
#include "provider/custom_ops.hpp"
#include "provider/provider.hpp"

namespace qdqtool {

namespace {

constexpr uint32_t vendor_id = 0x51D9;  // of no real vendor
constexpr const char* vendor = "qdqtool";

// Sessions live longer than the factory when a library is unregistered early: a Provider never looks back at it.
struct Factory : ort::EpFactory {
  const Api& api;
  ort::HardwareDevice* npu = nullptr;  // ours from 1.24 on

  explicit Factory(const Api& api);
  ~Factory() {
    if (npu) api.ep.ReleaseHardwareDevice(npu);
  }
  size_t devices(const ort::HardwareDevice* const* found, size_t count, ort::EpDevice** out, size_t room);
};

// A virtual NPU where onnxruntime knows such devices, else the CPU, which is always there.
size_t Factory::devices(const ort::HardwareDevice* const* found, size_t count, ort::EpDevice** out, size_t room) {
  if (!room) return 0;
  ort::KeyValues* metadata = nullptr;
  api.CreateKeyValuePairs(&metadata);
  const Held<ort::KeyValues, 300> held(metadata, api.ReleaseKeyValuePairs);
  api.AddKeyValuePair(metadata, "simulates", "npu");
  const ort::HardwareDevice* device = npu;
  if (!device && api.runtime >= 24) {
    ort::KeyValues* kind = nullptr;
    api.CreateKeyValuePairs(&kind);
    const Held<ort::KeyValues, 300> held_kind(kind, api.ReleaseKeyValuePairs);
    api.AddKeyValuePair(kind, "is_virtual", "1");
    api.check(api.ep.CreateHardwareDevice(ort::device_npu, vendor_id, 0, vendor, kind, &npu));
    device = npu;
  }
  for (size_t i = 0; !device && i < count; ++i) {
    if (api.HardwareDevice_Type(found[i]) == ort::device_cpu) device = found[i];
  }
  if (!device) return 0;
  api.check(api.ep.CreateEpDevice(this, device, metadata, nullptr, out));
  return 1;
}

Factory::Factory(const Api& api) : api(api) {
  version = api.version;
  GetName = [](const ort::EpFactory*) { return provider_name; };
  GetVendor = [](const ort::EpFactory*) { return vendor; };
  GetVendorId = [](const ort::EpFactory*) { return vendor_id; };
  GetVersion = [](const ort::EpFactory*) { return QDQTOOL_VERSION; };
  GetSupportedDevices = [](ort::EpFactory* self, const ort::HardwareDevice* const* found, size_t count, ort::EpDevice** out, size_t room,
                           size_t* made) {
    auto* factory = static_cast<Factory*>(self);
    return factory->api.guard([&] { *made = factory->devices(found, count, out, room); });
  };
  CreateEp = [](ort::EpFactory* self, const ort::HardwareDevice* const*, const ort::KeyValues* const*, size_t,
                const ort::SessionOptions* options, const ort::Logger*, ort::Ep** out) {
    const auto* factory = static_cast<Factory*>(self);
    return factory->api.guard([&] { *out = new Provider(factory->api, options); });
  };
  ReleaseEp = [](ort::EpFactory*, ort::Ep* ep) { delete static_cast<Provider*>(ep); };  // the factory may be gone
  ValidateCompiledModelCompatibilityInfo = [](ort::EpFactory* self, const ort::HardwareDevice* const*, size_t, const char* info, int* out) {
    return static_cast<Factory*>(self)->api.guard([&] { *out = compatibility_of(info); });
  };
  CreateDataTransfer = [](ort::EpFactory*, void** out) -> ort::Status* { return *out = nullptr, nullptr; };
  CreateAllocator = [](ort::EpFactory*, const ort::MemoryInfo*, const ort::KeyValues*, ort::Allocator** out) -> ort::Status* {
    return *out = nullptr, nullptr;
  };
  ReleaseAllocator = [](ort::EpFactory*, ort::Allocator*) {};
  IsStreamAware = [](const ort::EpFactory*) { return false; };
}

// Runs `body` with the Api of `base`; a status in every case of failure, also from an onnxruntime that is too old.
template <class Body>
ort::Status* enter(const ort::ApiBase* base, Body body) noexcept {
  try {
    body(Api::of(base));
    return nullptr;
  } catch (const std::exception& error) {
    return Api::refuse(base, error.what());
  } catch (...) {
    return Api::refuse(base, "the simulated NPU could not be loaded");
  }
}

}  // namespace

}  // namespace qdqtool

QDQTOOL_EXPORT qdqtool::ort::Status* CreateEpFactories(const char*, const qdqtool::ort::ApiBase* base, const qdqtool::ort::Logger*,
                                                       qdqtool::ort::EpFactory** out, size_t room, size_t* made) {
  return qdqtool::enter(base, [&](const qdqtool::Api& api) {
    *made = 0;
    if (!room) throw qdqtool::Error("there is no room for a factory");
    out[0] = std::make_unique<qdqtool::Factory>(api).release();
    *made = 1;
  });
}

QDQTOOL_EXPORT qdqtool::ort::Status* ReleaseEpFactory(qdqtool::ort::EpFactory* factory) {
  delete static_cast<qdqtool::Factory*>(factory);
  return nullptr;
}

QDQTOOL_EXPORT qdqtool::ort::Status* RegisterCustomOps(qdqtool::ort::SessionOptions* options, const qdqtool::ort::ApiBase* base) {
  return qdqtool::enter(base, [&](const qdqtool::Api& api) { qdqtool::add_custom_ops(api, options); });
}
