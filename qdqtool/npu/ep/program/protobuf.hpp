// The wire format of protobuf, both ways: enough for ModelProto. Reading trusts nothing; it copies nothing either.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace qdqtool::protobuf {

// Fields of one message, in order:  for (Reader r(bytes); r.next();) switch (r.field()) { case 1: r.integer(); … }
// Every function throws Error when the bytes end too early or the field has another wire type. A field not asked for is skipped.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  // Goes to the next field; false at the end.
  bool next();
  uint32_t field() const { return field_; }
  int64_t integer() const;            // int32, int64, enum, bool
  float real() const;                 // float
  std::string_view bytes() const;     // string, bytes, message
  std::string text() const { return std::string(bytes()); }

  // A repeated number, one to a field or packed: calls take(int64_t), take(float), take(double).
  template <class Take>
  void integers(Take take) const {
    if (wire_ == varint) return take(integer());
    for (std::string_view packed = bytes(); !packed.empty();) take(static_cast<int64_t>(read_varint(packed)));
  }
  template <class Take>
  void reals(Take take) const { fixed<float>(fixed32, take); }
  template <class Take>
  void doubles(Take take) const { fixed<double>(fixed64, take); }

 private:
  enum Wire { varint = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5 };
  static uint64_t read_varint(std::string_view& bytes);
  static void need(bool fine, const char* what);
  template <class Number, class Take>
  void fixed(Wire wire, Take take) const {
    std::string_view packed = wire_ == wire ? bytes_ : bytes();
    need(packed.size() % sizeof(Number) == 0, "a list of numbers is cut");
    for (; !packed.empty(); packed.remove_prefix(sizeof(Number))) {
      Number value;
      packed.copy(reinterpret_cast<char*>(&value), sizeof value);
      take(value);
    }
  }

  std::string_view rest_;
  std::string_view bytes_;  // of the present field, unless it is a varint
  uint64_t number_ = 0;     // of the present field, when it is
  uint32_t field_ = 0;
  int wire_ = -1;
};

// A message being written.
class Writer {
 public:
  const std::string& bytes() const { return bytes_; }
  void integer(uint32_t field, int64_t value);
  void real(uint32_t field, float value);
  void bytes(uint32_t field, std::string_view value);
  void message(uint32_t field, const Writer& value) { bytes(field, value.bytes_); }

 private:
  void varint(uint64_t value);
  std::string bytes_;
};

}  // namespace qdqtool::protobuf
