// What an EPContext node carries: a header that says what the program was compiled for, the program, and a checksum.
#pragma once
#include <string>

namespace qdqtool {

constexpr uint32_t program_format = 1;

struct Payload {
  std::string target, target_version, target_sha256, qdqtool;
  std::string header;         // its JSON
  std::string bytes;          // all of it
  size_t program = 0;         // where in it the program begins
  size_t program_size = 0;
};

// "QDQNPU1\n" | uint32 format | uint32 n | n bytes of JSON | uint64 m | m bytes of ModelProto | uint32 CRC-32 of all before; little end
// first. Throws Error when it is another format, cut, or damaged.
Payload read_payload(std::string bytes);

// Throws Error unless the payload was compiled for the target that a session asks for. "" asks for nothing; a path asks for its stem. Of a
// target's file nothing is read here: its digest, or a compiler that reads it (Question::check), tells a changed one.
void check_target(const Payload& payload, const std::string& target, const std::string& sha256);

}  // namespace qdqtool
