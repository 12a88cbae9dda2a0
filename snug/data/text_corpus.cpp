#include "snug/data/text_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytesLookedAtForNul = 4096;

[[noreturn]] void refuse_text(const fs::path& path, std::string_view reason, std::string_view advice) {
  throw UsageError(fmt::format("opening text: {}: {}; {}", path.string(), reason, advice));
}

[[noreturn]] void refuse_text(const fs::path& path, int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == ENOENT) refuse_text(path, reason, "set data.path to a text file or a folder of text files");
  if (error == ENOMEM) refuse_text(path, reason, "the system maps no more files: join them into fewer");
  refuse_text(path, reason, "make it readable or take it out of the folder");
}

MappedFile mapped_text(const fs::path& path) {
  try {
    return MappedFile(path);
  } catch (const std::system_error& error) {
    refuse_text(path, error.code().value());
  }
}

std::vector<fs::path> files_under(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    // A dangling link or one that points at itself has no status; it is no file.
    std::error_code no_status;
    if (entry->is_regular_file(no_status)) paths.push_back(entry->path());
  }
  if (error) refuse_text(folder, error.value());
  std::ranges::sort(paths);
  return paths;
}

bool looks_binary(std::span<const std::uint8_t> bytes) {
  return std::ranges::count(bytes.first(std::min(bytes.size(), kBytesLookedAtForNul)), 0) > 0;
}

}  // namespace

TextCorpus TextCorpus::open(const fs::path& path) {
  if (path.empty()) {
    throw UsageError("opening text: no path is given; set data.path to a text file or a folder of text files");
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) refuse_text(path, error ? error.value() : ENOENT);
  TextCorpus corpus;
  if (fs::is_regular_file(status)) {
    corpus.add(mapped_text(path));
    if (corpus.size() == 0) refuse_text(path, "the file is empty", "set data.path to a file with text in it");
    return corpus;
  }
  if (!fs::is_directory(status)) {
    refuse_text(path, "neither a file nor a folder", "set data.path to a text file or a folder of text files");
  }
  const std::vector<fs::path> paths = files_under(path);
  for (const fs::path& file_path : paths) {
    MappedFile file = mapped_text(file_path);
    const bool is_text = !looks_binary(file.bytes());
    file.let_go();
    if (is_text) corpus.add(std::move(file));
  }
  if (corpus.size() == 0) {
    refuse_text(path, fmt::format("none of the {} files under this folder has text in it", paths.size()),
                "set data.path to a folder of text files");
  }
  return corpus;
}

void TextCorpus::add(MappedFile file) {
  if (file.bytes().empty()) return;
  starts_.push_back(size() + static_cast<Bytes>(file.bytes().size()));
  files_.push_back(std::move(file));
}

void TextCorpus::copy(Bytes offset, std::span<std::uint8_t> out) const {
  if (offset < 0 || offset > size() || static_cast<Bytes>(out.size()) > size() - offset) {
    throw Error(fmt::format("reading text: {} bytes at offset {} are not inside the {} bytes there are", out.size(),
                            offset, size()));
  }
  if (out.empty()) return;
  auto file = static_cast<std::size_t>(std::ranges::upper_bound(starts_, offset) - starts_.begin()) - 1;
  auto inside = static_cast<std::size_t>(offset - starts_[file]);
  while (!out.empty()) {
    const std::span<const std::uint8_t> rest = files_[file].bytes().subspan(inside);
    const std::size_t count = std::min(rest.size(), out.size());
    std::ranges::copy(rest.first(count), out.begin());
    files_[file].let_go();
    out = out.subspan(count);
    ++file;
    inside = 0;
  }
}

}  // namespace snug::data
