#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace snug::data {

/// A folder that is taken away with all that is in it.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("snug_" + name + "_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

using Ids = std::vector<std::int64_t>;

/// What a corpus or a file of tokens has there.
template <class Tokens>
Ids ids_at(const Tokens& tokens, std::int64_t offset, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  tokens.copy(offset, ids);
  return ids;
}

/// A file beside the tests.
inline std::filesystem::path beside(const std::string& name) {
  return std::filesystem::path(SNUG_TESTS) / "data" / name;
}

/// The bytes of values, one behind the other.
template <class T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::span<const std::uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

/// A header of llm.c's and what follows it.
inline std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header) + tokens;
}

/// An index of Megatron's.
struct MegatronFields {
  std::uint8_t type = 8;
  std::vector<std::int32_t> lengths{3, 2, 1};
  std::vector<std::int64_t> pointers{0, 6, 10};
  std::vector<std::int64_t> documents{0, 2, 3};

  [[nodiscard]] std::string bytes() const {
    return std::string("MMIDIDX\0\0", 9) + raw<std::uint64_t>({1}) + raw<std::uint8_t>({type}) +
           raw<std::uint64_t>({lengths.size(), documents.size()}) + raw(lengths) + raw(pointers) + raw(documents);
  }
};

/// Calls with the bytes cut at every length, and with every bit flipped.
template <class Call>
void for_each_damage(const std::string& bytes, const Call& call) {
  for (std::size_t i = 0; i < bytes.size(); ++i) call(bytes.substr(0, i));
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string damaged = bytes;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    call(damaged);
  }
}

}  // namespace snug::data
