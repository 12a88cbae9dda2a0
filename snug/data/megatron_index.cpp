#include "snug/data/megatron_index.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kHeader = 9 + 8 + 1 + 8 + 8;
constexpr std::size_t kPerSequence = sizeof(std::int32_t) + sizeof(std::int64_t);

class MegatronReader {
 public:
  MegatronReader(std::span<const std::uint8_t> index, std::uint64_t bin_bytes, std::string_view name)
      : index_(index), bin_bytes_(bin_bytes), name_(name) {}

  TokenLayout read() {
    if (index_.size() < kHeader) {
      fail("it has {} bytes, and the header alone takes {}; write it anew", index_.size(), kHeader);
    }
    if (std::memcmp(index_.data(), kMagic.data(), kMagic.size()) != 0) {
      fail("it does not begin with MMIDIDX: no index of Megatron's; take it away when the .bin is something else");
    }
    if (const auto version = at<std::uint64_t>(9); version != 1) fail("version {} at byte 9 is not 1", version);
    layout_.type = type(index_[17]);
    const auto sequences = at<std::uint64_t>(18), documents = at<std::uint64_t>(26);
    std::uint64_t rest = index_.size() - kHeader;
    if (sequences > rest / kPerSequence) {
      fail("{} sequences at byte 18 take {} bytes each, and {} follow the header", sequences, kPerSequence, rest);
    }
    rest -= sequences * kPerSequence;
    if (rest % sizeof(std::int64_t) != 0 || documents != rest / sizeof(std::int64_t)) {
      fail("{} documents at byte 26 take 8 bytes each, and {} follow the sequences", documents, rest);
    }
    read_sequences(sequences, documents);
    return std::move(layout_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(fmt::format("token file: {}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  /// The caller has checked that it is inside.
  template <class T>
  [[nodiscard]] T at(std::uint64_t byte) const {
    T value;
    std::memcpy(&value, index_.data() + byte, sizeof(T));
    return value;
  }

  [[nodiscard]] TokenType type(std::uint8_t code) const {
    switch (code) {
      case 1:
        return TokenType::U8;
      case 2:
        return TokenType::I8;
      case 3:
        return TokenType::I16;
      case 4:
        return TokenType::I32;
      case 5:
        return TokenType::I64;
      case 6:
      case 7:
        fail("element type {} at byte 17 is a floating-point one; tokens are integers", code);
      case 8:
        return TokenType::U16;
      default:
        fail("element type {} at byte 17 is none of 1 to 8", code);
    }
  }

  /// Sequences and documents at once: a document begins with a sequence.
  void read_sequences(std::uint64_t sequences, std::uint64_t documents) {
    const std::uint64_t pointers = kHeader + sequences * sizeof(std::int32_t);
    const std::uint64_t starts = pointers + sequences * sizeof(std::int64_t);
    const std::uint64_t width = width_of(layout_.type);
    std::uint64_t end = 0;  // of the run so far, in bytes of the .bin
    std::uint64_t document = 0;
    std::int64_t before = 0;
    const auto begin_documents = [&](std::uint64_t sequence) {
      for (; document < documents; ++document) {
        const auto first = at<std::int64_t>(starts + document * sizeof(std::int64_t));
        if (first < before || std::cmp_greater(first, sequences) || (document == 0 && first != 0)) {
          fail("document {} begins with sequence {}; the first must be 0, and they must rise to at most {}", document,
               first, sequences);
        }
        if (std::cmp_greater(first, sequence)) return;
        before = first;
        // The last number is where the last document ends.
        if (sequence < sequences || document + 1 < documents) layout_.documents.push_back(layout_.size);
      }
    };
    for (std::uint64_t i = 0; i < sequences; ++i) {
      begin_documents(i);
      const auto length = at<std::int32_t>(kHeader + i * sizeof(std::int32_t));
      const auto pointer = at<std::int64_t>(pointers + i * sizeof(std::int64_t));
      if (length < 0 || pointer < 0 || std::cmp_greater(pointer, bin_bytes_) ||
          static_cast<std::uint64_t>(length) > (bin_bytes_ - static_cast<std::uint64_t>(pointer)) / width) {
        fail("sequence {} has {} tokens of {} bytes from byte {} on, which are not inside the {} bytes of the .bin", i,
             length, width, pointer, bin_bytes_);
      }
      if (length == 0) continue;
      if (length > std::numeric_limits<std::int64_t>::max() - layout_.size) fail("it has more tokens than can be");
      const auto begin = static_cast<std::uint64_t>(pointer);
      if (layout_.runs.empty() || begin != end) layout_.runs.push_back({layout_.size, begin});
      end = begin + static_cast<std::uint64_t>(length) * width;
      layout_.size += length;
    }
    begin_documents(sequences);
    if (layout_.documents.empty()) layout_.documents.push_back(0);
  }

  std::span<const std::uint8_t> index_;
  std::uint64_t bin_bytes_;
  std::string_view name_;
  TokenLayout layout_;
};

}  // namespace

TokenLayout parse_megatron_index(std::span<const std::uint8_t> index, std::uint64_t bin_bytes, std::string_view name) {
  return MegatronReader(index, bin_bytes, name).read();
}

}  // namespace snug::data
