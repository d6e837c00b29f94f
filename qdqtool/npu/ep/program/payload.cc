#include "program/payload.hpp"

#include <cstring>
#include <map>

#include "program/kernel.hpp"
#include "provider/platform.hpp"

namespace qdqtool {

namespace {

constexpr char magic[] = "QDQNPU1\n";
constexpr size_t magic_size = sizeof magic - 1;

template <class Number>
Number number_at(const std::string& bytes, size_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(Number)) throw Error("the compiled program is cut at its header");
  Number value = 0;
  for (size_t i = sizeof(Number); i-- > 0;) value = static_cast<Number>(value << 8 | static_cast<unsigned char>(bytes[at + i]));
  return value;
}

// The texts of a flat JSON object: {"key": "value", …}. Nothing else stands in a header.
class Json {
 public:
  explicit Json(const std::string& text) : text_(text) {}

  std::map<std::string, std::string> object() {
    std::map<std::string, std::string> fields;
    expect('{');
    if (peek() != '}') {
      do {
        const std::string key = string();
        expect(':');
        fields[key] = string();
      } while (peek() == ',' && ++at_);
    }
    expect('}');
    if (peek()) fault();
    return fields;
  }

 private:
  [[noreturn]] static void fault() { throw Error("the header of the compiled program is not the JSON object it should be"); }
  char peek() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_]) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char wanted) {
    if (peek() != wanted) fault();
    ++at_;
  }
  std::string string() {
    expect('"');
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        value.push_back(text_[at_]);
        continue;
      }
      // An escape stays as it is written: names are compared and shown, and none of ours has one but \" and \\.
      if (++at_ == text_.size()) fault();
      if (text_[at_] != '"' && text_[at_] != '\\') value.push_back('\\');
      value.push_back(text_[at_]);
    }
    expect('"');
    return value;
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::string target_text(const std::string& target, const std::string& sha256) {
  return target + (sha256.empty() ? "" : " (sha256 " + sha256.substr(0, 12) + "…)");
}

}  // namespace

Payload read_payload(std::string bytes) {
  if (bytes.compare(0, magic_size, magic) != 0) {
    throw Error("the EPContext node holds no program of the simulated NPU (it does not begin with QDQNPU1)");
  }
  const auto format = number_at<uint32_t>(bytes, magic_size);
  if (format != program_format) {
    throw Error("expected program format " + std::to_string(program_format) + ", found " + std::to_string(format) +
                "; compile the model again with the qdqtool that runs it");
  }
  const size_t header = magic_size + 8;
  const auto header_size = number_at<uint32_t>(bytes, magic_size + 4);
  if (header_size > bytes.size() - header) throw Error("the compiled program is cut in its header");
  const size_t program = header + header_size + 8;
  const auto program_size = number_at<uint64_t>(bytes, program - 8);
  if (bytes.size() - program < 4 || program_size != bytes.size() - program - 4) {
    throw Error("the compiled program is cut: it says " + std::to_string(program_size) + " bytes, and " +
                std::to_string(bytes.size() - program) + " follow");
  }
  const size_t end = bytes.size() - 4;
  if (crc32(bytes.data(), end) != number_at<uint32_t>(bytes, end)) throw Error("the compiled program is damaged: its checksum is wrong");

  const std::string text = bytes.substr(header, header_size);
  auto fields = Json(text).object();
  Payload payload;
  payload.target = fields["target"];
  payload.target_version = fields["target_version"];
  payload.target_sha256 = fields["target_sha256"];
  payload.qdqtool = fields["qdqtool"];
  payload.header = text;
  payload.program = program;
  payload.program_size = program_size;
  payload.bytes = std::move(bytes);
  return payload;
}

void check_target(const Payload& payload, const std::string& target, const std::string& sha256) {
  if (target.empty() && sha256.empty()) return;
  std::string name = target.empty() ? payload.target : target;
  if (name.size() > 5 && name.compare(name.size() - 5, 5, ".toml") == 0) name = utf8_of(path_of(name).stem());
  if (name == payload.target && (sha256.empty() || sha256 == payload.target_sha256)) return;
  throw Error("the compiled program is stale: expected target " + target_text(name, sha256) + ", found " +
              target_text(payload.target, payload.target_sha256) + "; compile the model again");
}

}  // namespace qdqtool
