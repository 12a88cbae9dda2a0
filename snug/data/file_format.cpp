#include "snug/data/file_format.h"

#include <algorithm>
#include <cstddef>

namespace snug::data {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kBytesLookedAtForNul = 4096;

struct Magic {
  std::size_t offset;
  std::string_view bytes, format;
};

// As the specification of each format has them, the longer ones first where one begins with another.
constexpr Magic kMagics[] = {
    {0, "\x1F\x8B"sv, "gzip"},
    {0, "\x28\xB5\x2F\xFD"sv, "Zstandard"},
    {0, "\xFD\x37zXZ\0"sv, "xz"},
    {0, "BZh"sv, "bzip2"},
    {0, "\x04\x22\x4D\x18"sv, "LZ4"},
    {0, "PK\x03\x04"sv, "a ZIP archive, as PyTorch's files are"},
    {0, "7z\xBC\xAF\x27\x1C"sv, "7-Zip"},
    {257, "ustar"sv, "tar"},
    {0, "PAR1"sv, "Parquet"},
    {0, "ARROW1"sv, "Arrow"},
    {0, "Obj\x01"sv, "Avro"},
    {0, "ORC"sv, "ORC"},
    {0, "\x93NUMPY"sv, "NumPy"},
    {0, "\x89HDF\r\n\x1A\n"sv, "HDF5"},
    {0, "GGUF"sv, "GGUF"},
    {8, "{\""sv, "safetensors"},
    {0, "SQLite format 3\0"sv, "SQLite"},
    {0, "%PDF-"sv, "PDF"},
    {0, "\x89PNG\r\n\x1A\n"sv, "PNG"},
    {0, "\xFF\xD8\xFF"sv, "JPEG"},
    {0, "\xFF\xFE\0\0"sv, "UTF-32 text"},
    {0, "\0\0\xFE\xFF"sv, "UTF-32 text"},
    {0, "\xFF\xFE"sv, "UTF-16 text"},
    {0, "\xFE\xFF"sv, "UTF-16 text"},
};

/// Its first bytes are as long as a header of JSON may be: the length stands in front, in 8 bytes.
bool may_be_safetensors(std::span<const std::uint8_t> file) {
  return std::ranges::count(file.subspan(4, 4), std::uint8_t{0}) == 4;
}

/// Latin letters have every second byte zero.
bool looks_like_utf16(std::span<const std::uint8_t> bytes) {
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < bytes.size(); ++i) zeros[i % 2] += bytes[i] == 0 ? 1 : 0;
  const std::size_t half = bytes.size() / 2;
  return half >= 8 && std::max(zeros[0], zeros[1]) >= half * 8 / 10 && std::min(zeros[0], zeros[1]) <= half / 10;
}

}  // namespace

std::optional<std::string_view> format_of_no_text(std::span<const std::uint8_t> file) {
  for (const auto& [offset, bytes, format] : kMagics) {
    if (file.size() < offset + bytes.size()) continue;
    const auto there = file.subspan(offset, bytes.size());
    if (!std::ranges::equal(there, bytes, {}, {}, [](char c) { return static_cast<std::uint8_t>(c); })) continue;
    if (format == "safetensors" && !may_be_safetensors(file)) continue;
    return format;
  }
  const auto begin = file.first(std::min(file.size(), kBytesLookedAtForNul));
  if (std::ranges::count(begin, std::uint8_t{0}) == 0) return std::nullopt;
  return looks_like_utf16(begin) ? "UTF-16 text" : "binary";
}

}  // namespace snug::data
