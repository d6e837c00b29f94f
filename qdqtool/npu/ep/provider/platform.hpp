// What differs between operating systems: paths and files. And what files and messages need: a checksum, valid text.
#pragma once
#include <filesystem>
#include <string>

namespace qdqtool {

std::filesystem::path path_of(const std::string& utf8);
std::string utf8_of(const std::filesystem::path& path);

// `text` with '?' for every byte that is not part of a character in UTF-8.
std::string as_utf8(const std::string& text);

// All bytes of the file `name` in `folder` or below: a regular file of one name, reached through no link, as io/models/external.py
// reads it. Throws Error that names it.
std::string read_below(const std::filesystem::path& folder, const std::filesystem::path& name);
// Writes a file; one that is there is replaced only when all is written. Throws Error that names it.
void write_file(const std::filesystem::path& path, const std::string& bytes);

// CRC-32 of zlib and PNG (polynomial 0xEDB88320, reflected).
uint32_t crc32(const char* data, size_t size);

}  // namespace qdqtool
