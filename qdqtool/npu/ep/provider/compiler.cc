#include "provider/compiler.hpp"

#include <atomic>

#include "program/kernel.hpp"

namespace {
std::atomic<qdqtool_compiler> attached{nullptr};
}

void qdqtool_set_compiler(qdqtool_compiler compiler) { attached = compiler; }

namespace qdqtool {

bool has_compiler() { return attached; }

std::string ask_compiler(Question question, const std::string& options, const std::string& model) {
  const qdqtool_compiler compiler = attached;
  if (!compiler) {
    throw Error("this model is not compiled for the NPU and no compiler is attached; "
                "run `qdqtool compile`, or call qdqtool.npu.register() in Python");
  }
  struct Answer {
    std::string text;
    bool is_out_of_memory = false;
  } answer;
  const auto put = [](void* context, const char* data, size_t size) {
    auto& answer = *static_cast<Answer*>(context);
    try {
      answer.text.assign(data, size);
    } catch (const std::exception&) {
      answer.is_out_of_memory = true;
    }
  };
  const int code = compiler(static_cast<int>(question), options.data(), options.size(), model.data(), model.size(), put, &answer);
  if (answer.is_out_of_memory) throw Error("out of memory while the compiler answered");
  if (code) throw Error(answer.text.empty() ? "the compiler failed without a reason" : answer.text);
  return std::move(answer.text);
}

}  // namespace qdqtool
