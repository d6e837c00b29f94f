#include "provider/platform.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <utility>
#ifndef _WIN32
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "program/kernel.hpp"

namespace qdqtool {

namespace fs = std::filesystem;

#ifndef _WIN32
namespace {

// An open file, closed where it goes out of scope.
struct Handle {
  explicit Handle(int opened) : number(opened) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  Handle& operator=(Handle&& other) noexcept {
    std::swap(number, other.number);
    return *this;
  }
  ~Handle() {
    const int error = errno;
    if (number >= 0) close(number);
    errno = error;
  }
  int number;
};

}  // namespace
#endif

fs::path path_of(const std::string& utf8) { return fs::u8path(utf8); }

std::string utf8_of(const fs::path& path) { return path.u8string(); }

std::string as_utf8(const std::string& text) {
  // Smallest character of each length: a longer form of a smaller one is no UTF-8, nor are surrogates.
  constexpr uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
    uint32_t character = length < 2 ? first : first & (0x7Fu >> length);
    bool is_valid = length > 0 && text.size() - at >= length;
    for (size_t i = 1; is_valid && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      is_valid = next >> 6 == 2;
      character = character << 6 | (next & 0x3F);
    }
    is_valid = is_valid && character >= smallest[length] && character < 0x110000 && character >> 11 != 0x1B;
    valid += is_valid ? text.substr(at, length) : "?";
    at += is_valid ? length : 1;
  }
  return valid;
}

std::string read_below(const fs::path& folder, const fs::path& name) {
  const fs::path path = folder / name;
#ifdef _WIN32
  fs::path way = folder;
  for (const fs::path& part : name) {
    way /= part;
    if (fs::is_symlink(fs::symlink_status(way))) throw Error(utf8_of(way) + " is a link");
  }
  if (!fs::is_regular_file(path)) throw Error("cannot open " + utf8_of(path));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot open " + utf8_of(path));
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw Error("cannot read " + utf8_of(path));
#else
  // Folder after folder, each relative to the one that is open, so that no name is resolved twice; the open file is looked at.
  Handle at(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (auto part = name.begin(); at.number >= 0 && part != name.end(); ++part) {
    const int kind = std::next(part) == name.end() ? O_NONBLOCK : O_DIRECTORY;  // a named pipe must not wait for its writer
    at = Handle(openat(at.number, part->c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind));
  }
  struct stat status;
  if (at.number < 0 && (errno == ELOOP || errno == ENOTDIR)) throw Error(utf8_of(path) + " is behind a link");
  if (at.number < 0 || fstat(at.number, &status) != 0) throw Error("cannot open " + utf8_of(path));
  if (!S_ISREG(status.st_mode)) throw Error(utf8_of(path) + " is no regular file");
  if (status.st_nlink > 1) throw Error(utf8_of(path) + " has several hard links");
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = read(at.number, &bytes[done], bytes.size() - done);
    if (count <= 0) throw Error("cannot read " + utf8_of(path));
    done += static_cast<size_t>(count);
  }
#endif
  return bytes;
}

void write_file(const fs::path& path, const std::string& bytes) {
  fs::path partial = path;
  partial += ".partial";
  std::error_code ignored;
  fs::remove(partial, ignored);  // a link of that name would be written through
  {
    std::ofstream file(partial, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) throw Error("cannot write " + utf8_of(partial));
  }
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) throw Error("cannot write " + utf8_of(path) + ": " + error.message());
}

uint32_t crc32(const char* data, size_t size) {
  // Eight tables, eight bytes a step: a checksum of 100 MB in 0.1 s.
  static const auto tables = [] {
    std::array<std::array<uint32_t, 256>, 8> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
      made[0][i] = value;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (size_t i = 0; i < 256; ++i) made[k][i] = made[k - 1][i] >> 8 ^ made[0][made[k - 1][i] & 255];
    }
    return made;
  }();
  const auto* bytes = reinterpret_cast<const unsigned char*>(data);
  uint32_t crc = ~0u;
  for (; size >= 8; size -= 8, bytes += 8) {
    crc ^= bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
    crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^ tables[4][crc >> 24] ^ tables[3][bytes[4]] ^
          tables[2][bytes[5]] ^ tables[1][bytes[6]] ^ tables[0][bytes[7]];
  }
  for (; size; --size, ++bytes) crc = crc >> 8 ^ tables[0][(crc ^ *bytes) & 255];
  return ~crc;
}

}  // namespace qdqtool
