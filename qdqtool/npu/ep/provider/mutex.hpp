// std::mutex, which MinGW-w64 has only with its POSIX threads: Windows' own lock instead.
#pragma once
#include <mutex>

namespace qdqtool {

#ifdef _WIN32
extern "C" __declspec(dllimport) void __stdcall AcquireSRWLockExclusive(void** lock);
extern "C" __declspec(dllimport) void __stdcall ReleaseSRWLockExclusive(void** lock);

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  void lock() { AcquireSRWLockExclusive(&lock_); }
  void unlock() { ReleaseSRWLockExclusive(&lock_); }

 private:
  void* lock_ = nullptr;
};
#else
using Mutex = std::mutex;
#endif

using Lock = std::lock_guard<Mutex>;

}  // namespace qdqtool
