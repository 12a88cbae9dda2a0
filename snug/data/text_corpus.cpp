#include "snug/data/text_corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/file_format.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

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

struct Under {
  std::vector<fs::path> files;  // in the order of their paths
  std::size_t hidden = 0;       // files whose names begin with a dot, and folders, such as .git
};

Under files_under(const fs::path& folder) {
  Under under;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    // A dangling link or one that points at itself has no status; it is no file.
    std::error_code no_status;
    const bool is_file = entry->is_regular_file(no_status);
    if (entry->path().filename().string().starts_with('.')) {
      if (entry->is_directory(no_status)) entry.disable_recursion_pending();
      under.hidden += is_file || entry->is_directory(no_status) ? 1 : 0;
    } else if (is_file) {
      under.files.push_back(entry->path());
    }
  }
  if (error) refuse_text(folder, error.value());
  std::ranges::sort(under.files);
  return under;
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
    MappedFile file = mapped_text(path);
    if (const auto format = format_of_no_text(file.bytes())) {
      refuse_text(path, fmt::format("the file is {}", *format),
                  "set data.path to text in UTF-8, which you get by unpacking or converting it");
    }
    corpus.add(std::move(file));
    if (corpus.size() == 0) refuse_text(path, "the file is empty", "set data.path to a file with text in it");
    return corpus;
  }
  if (!fs::is_directory(status)) {
    refuse_text(path, "neither a file nor a folder", "set data.path to a text file or a folder of text files");
  }
  const Under under = files_under(path);
  std::size_t no_text = 0;
  std::string first;
  for (const fs::path& file_path : under.files) {
    MappedFile file = mapped_text(file_path);
    const auto format = format_of_no_text(file.bytes());
    file.let_go();
    if (!format) {
      corpus.add(std::move(file));
    } else if (++no_text == 1) {
      first = fmt::format("{}, {}", file_path.lexically_relative(path).string(), *format);
    }
  }
  std::vector<std::string> left_out;
  if (no_text > 0) {
    left_out.push_back(fmt::format("{} of {} file{}: not text (first: {})", no_text, under.files.size(),
                                   under.files.size() == 1 ? "" : "s", first));
  }
  if (under.hidden > 0)
    left_out.push_back(
        fmt::format("{} whose name{} with a dot", under.hidden, under.hidden == 1 ? " begins" : "s begin"));
  corpus.left_out_ = fmt::format("{}", fmt::join(left_out, "; "));
  if (corpus.size() == 0) {
    refuse_text(path,
                corpus.left_out_.empty()
                    ? fmt::format("none of the {} files under this folder has text in it", under.files.size())
                    : fmt::format("no text is left; left out: {}", corpus.left_out_),
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
    const std::size_t count = std::min(files_[file].bytes().size() - inside, out.size());
    if (!files_[file].copy(inside, out.first(count)))
      throw Error(
          fmt::format("reading text: {}: it has become shorter since it was opened; do not change data.path "
                      "while a run reads it",
                      files_[file].path()));
    files_[file].let_go();
    out = out.subspan(count);
    ++file;
    inside = 0;
  }
}

}  // namespace snug::data
