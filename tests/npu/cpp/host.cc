// A program without Python: host ONNXRUNTIME NPU MODEL INPUT OUTPUT DIM… reads x (uint8) from INPUT, runs MODEL on the simulated NPU a few
// times, in two threads, and writes all outputs, one after the other, to OUTPUT. Says what onnxruntime says, and exits with 1, on an error.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "provider/abi.hpp"

using namespace qdqtool::ort;

namespace {

struct Session;

// Functions that a program calls, and a provider does not.
struct Host : Tables {
  Slot<3, Status*(int level, const char* name, void** out)> CreateEnv{t};
  Slot<7, Status*(void* env, const PathChar* path, const SessionOptions*, Session** out)> CreateSession{t};
  Slot<9, Status*(Session*, const RunOptions*, const char* const* names, const Value* const* inputs, size_t count,
                  const char* const* output_names, size_t output_count, Value** outputs)>
      Run{t};
  Slot<10, Status*(SessionOptions** out)> CreateSessionOptions{t};
  Slot<31, Status*(const Session*, size_t* out)> SessionGetOutputCount{t};
  Slot<37, Status*(const Session*, size_t index, Allocator*, char** out)> SessionGetOutputName{t};
  Slot<49, Status*(const MemoryInfo*, void* data, size_t bytes, const int64_t* dims, size_t rank, int type, Value** out)>
      CreateTensorWithDataAsOrtValue{t};
  Slot<69, Status*(int allocator, int type, MemoryInfo** out)> CreateCpuMemoryInfo{t};
  Slot<76, Status*(Allocator*, void*)> AllocatorFree{t};
  Slot<78, Status*(Allocator** out)> GetAllocatorWithDefaultOptions{t};
  Slot<92, void(void* env)> ReleaseEnv{t};
  Slot<94, void(MemoryInfo*)> ReleaseMemoryInfo{t};
  Slot<95, void(Session*)> ReleaseSession{t};
  Slot<100, void(SessionOptions*)> ReleaseSessionOptions{t};
  Slot<301, Status*(void* env, const char* name, const PathChar* path)> RegisterExecutionProviderLibrary{t};
  Slot<302, Status*(void* env, const char* name)> UnregisterExecutionProviderLibrary{t};
  Slot<303, Status*(const void* env, const EpDevice* const** out, size_t* count)> GetEpDevices{t};
  Slot<304, Status*(SessionOptions*, void* env, const EpDevice* const* devices, size_t count, const char* const* keys,
                    const char* const* values, size_t entries)>
      SessionOptionsAppendExecutionProvider_V2{t};
  Slot<312, const char*(const EpDevice*)> EpDevice_EpName{t};

  explicit Host(const void* const* table) : Tables{table} {}

  void check(Status* status, const char* what) const {
    if (!status) return;
    std::printf("%s: %s\n", what, GetErrorMessage(status));
    std::exit(1);
  }
};

std::string read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All outputs of one run, one after the other.
std::string run(const Host& host, Session* session, std::string x, const std::vector<int64_t>& dims) {
  MemoryInfo* memory = nullptr;
  Value* input = nullptr;
  Allocator* allocator = nullptr;
  size_t count = 0;
  host.check(host.CreateCpuMemoryInfo(0, 0, &memory), "memory");
  host.check(host.CreateTensorWithDataAsOrtValue(memory, x.data(), x.size(), dims.data(), dims.size(), 2, &input), "input");
  host.check(host.GetAllocatorWithDefaultOptions(&allocator), "allocator");
  host.check(host.SessionGetOutputCount(session, &count), "outputs");
  std::vector<char*> names(count);
  std::vector<Value*> outputs(count);
  for (size_t i = 0; i < count; ++i) host.check(host.SessionGetOutputName(session, i, allocator, &names[i]), "name");
  const char* input_name = "x";
  host.check(host.Run(session, nullptr, &input_name, &input, 1, names.data(), count, outputs.data()), "run");
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const void* data = nullptr;
    size_t size = 0;
    host.check(host.GetTensorData(outputs[i], &data), "data");
    host.check(host.GetTensorSizeInBytes(outputs[i], &size), "size");
    bytes.append(static_cast<const char*>(data), size);
    host.ReleaseValue(outputs[i]);
    host.check(host.AllocatorFree(allocator, names[i]), "free");
  }
  host.ReleaseValue(input);
  host.ReleaseMemoryInfo(memory);
  return bytes;
}

}  // namespace

int main(int count, char** words) {
  if (count < 7) return 2;
  void* library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::printf("%s\n", dlerror()), 2;
  const auto* base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library, "OrtGetApiBase"))();
  const Host host(base->GetApi(oldest_api));

  void* env = nullptr;
  SessionOptions* options = nullptr;
  Session* session = nullptr;
  const EpDevice* const* devices = nullptr;
  size_t device_count = 0;
  host.check(host.CreateEnv(4, "host", &env), "environment");
  host.check(host.RegisterExecutionProviderLibrary(env, "npu", words[2]), "registration");
  host.check(host.GetEpDevices(env, &devices, &device_count), "devices");
  std::vector<const EpDevice*> npu;
  for (size_t i = 0; i < device_count; ++i) {
    if (!std::strcmp(host.EpDevice_EpName(devices[i]), "NpuSimExecutionProvider")) npu.push_back(devices[i]);
  }
  host.check(host.CreateSessionOptions(&options), "options");
  host.check(host.SessionOptionsAppendExecutionProvider_V2(options, env, npu.data(), npu.size(), nullptr, nullptr, 0), "provider");
  host.check(host.CreateSession(env, words[3], options, &session), "session");

  const std::string x = read(words[4]);
  std::vector<int64_t> dims;
  for (int i = 6; i < count; ++i) dims.push_back(std::atoll(words[i]));
  const std::string y = run(host, session, x, dims);
  bool is_same = true;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        if (run(host, session, x, dims) != y) is_same = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::ofstream(words[5], std::ios::binary) << y;
  host.ReleaseSession(session);
  host.ReleaseSessionOptions(options);
  host.check(host.UnregisterExecutionProviderLibrary(env, "npu"), "end");
  host.ReleaseEnv(env);
  std::printf("onnxruntime %s, %zu device, %s\n", base->GetVersionString(), npu.size(), is_same ? "same every time" : "not the same");
  return is_same ? 0 : 1;
}
