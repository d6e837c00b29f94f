#include "program/protobuf.hpp"

#include <cstring>

#include "program/kernel.hpp"

namespace qdqtool::protobuf {

void Reader::need(bool fine, const char* what) {
  if (!fine) throw Error(std::string("the program is damaged: ") + what);
}

uint64_t Reader::read_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    need(!bytes.empty(), "a number is cut");
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  need(false, "a number has more than 64 bits");
  return 0;
}

bool Reader::next() {
  if (rest_.empty()) return false;
  const uint64_t key = read_varint(rest_);
  need(key >> 3 && key >> 3 < 1u << 29, "a field has no number");
  field_ = static_cast<uint32_t>(key >> 3);
  wire_ = static_cast<int>(key & 7);
  uint64_t size = 0;
  switch (wire_) {
    case varint:
      number_ = read_varint(rest_);
      return true;
    case fixed64:
      size = 8;
      break;
    case fixed32:
      size = 4;
      break;
    case length_delimited:
      size = read_varint(rest_);
      break;
    default:
      need(false, "a field has an unknown wire type");
  }
  need(size <= rest_.size(), "a field is longer than what holds it");
  bytes_ = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return true;
}

int64_t Reader::integer() const {
  need(wire_ == varint, "a number was expected");
  return static_cast<int64_t>(number_);
}

float Reader::real() const {
  need(wire_ == fixed32, "a float was expected");
  float value;
  std::memcpy(&value, bytes_.data(), sizeof value);
  return value;
}

std::string_view Reader::bytes() const {
  need(wire_ == length_delimited, "bytes were expected");
  return bytes_;
}

void Writer::varint(uint64_t value) {
  for (; value > 127; value >>= 7) bytes_.push_back(static_cast<char>(value | 128));
  bytes_.push_back(static_cast<char>(value));
}

void Writer::integer(uint32_t field, int64_t value) {
  varint(field << 3);
  varint(static_cast<uint64_t>(value));
}

void Writer::real(uint32_t field, float value) {
  varint(field << 3 | 5);
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes_.append(raw, sizeof value);
}

void Writer::bytes(uint32_t field, std::string_view value) {
  varint(field << 3 | 2);
  varint(value.size());
  bytes_.append(value);
}

}  // namespace qdqtool::protobuf
