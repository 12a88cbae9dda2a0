#include "snug/state/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "snug/base/damaged_file.h"

namespace snug::state {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;

struct ElementType {
  const char* name;
  at::ScalarType dtype;
  int order;  ///< among all that the format has, those LibTorch lacks counted
};

constexpr std::array kTypes{
    ElementType{"BOOL", at::kBool, 0},
    ElementType{"U8", at::kByte, 4},
    ElementType{"I8", at::kChar, 5},
    ElementType{"F8_E5M2", at::kFloat8_e5m2, 6},
    ElementType{"F8_E4M3", at::kFloat8_e4m3fn, 7},
    ElementType{"F8_E8M0", at::kFloat8_e8m0fnu, 8},
    ElementType{"I16", at::kShort, 9},
    ElementType{"U16", at::kUInt16, 10},
    ElementType{"F16", at::kHalf, 11},
    ElementType{"BF16", at::kBFloat16, 12},
    ElementType{"I32", at::kInt, 13},
    ElementType{"U32", at::kUInt32, 14},
    ElementType{"F32", at::kFloat, 15},
    ElementType{"C64", at::kComplexFloat, 16},
    ElementType{"F64", at::kDouble, 17},
    ElementType{"I64", at::kLong, 18},
    ElementType{"U64", at::kUInt64, 19},
};

const ElementType& type_of(at::ScalarType dtype) {
  const auto* const found = std::ranges::find(kTypes, dtype, &ElementType::dtype);
  if (found == kTypes.end()) {
    throw UsageError(fmt::format("safetensors: the format has no element type for {}", c10::toString(dtype)));
  }
  return *found;
}

/// One entry of the header, as it is written.
struct Written {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape, offsets;
};

/// Takes the header's JSON as it comes: nothing is kept of what the format does not have, however deep it is nested.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::uint8_t> file, std::string_view name) : file_(file), name_(name) {}

  SafetensorsHeader read() {
    const std::size_t length = header_length();
    start_ = kLengthBytes + length;
    const auto text = file_.subspan(kLengthBytes, length);
    if (text.empty() || text.front() != '{') fail("invalid header: it does not begin with {{");
    // The parser would take it for the end.
    if (std::ranges::find(text, 0) != text.end()) fail("invalid header: a byte of 0 in its JSON");
    nlohmann::json::sax_parse(text.begin(), text.end(), this);
    std::ranges::sort(header_.tensors, {}, [](const SafetensorsEntry& e) { return std::tuple(e.begin, e.end); });
    check_coverage();
    return std::move(header_);
  }

  // What nlohmann::json's parser calls.
  bool null() { return value("null"); }
  bool boolean(bool) { return value("a truth value"); }
  bool number_integer(std::int64_t) { return value("a negative number"); }
  bool number_unsigned(std::uint64_t number) {
    if (list_ == nullptr) return value("a number");
    list_->push_back(number);
    return true;
  }
  bool number_float(double, const std::string&) { return value("a fraction"); }
  bool string(const std::string& text) {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[key_] = text;
    } else if (depth_ == 2 && key_ == "dtype") {
      entry_.dtype = text;
    } else {
      return value("a text");
    }
    return true;
  }
  bool binary(std::vector<std::uint8_t>&) { return value("bytes"); }
  bool start_object(std::size_t) {
    if (depth_ == 1 && !in_metadata_) entry_ = {key_, {}, {}, {}};
    return ++depth_ <= 2 || value("an object");
  }
  bool end_object() {
    if (depth_-- == 2 && !std::exchange(in_metadata_, false)) add_entry();
    return true;
  }
  bool start_array(std::size_t) {
    auto* const list = depth_ != 2 || in_metadata_ ? nullptr
                       : key_ == "shape"           ? &entry_.shape
                       : key_ == "data_offsets"    ? &entry_.offsets
                                                   : nullptr;
    if (list == nullptr || list_ != nullptr) return value("an array");
    list_ = &list->emplace();
    return true;
  }
  bool end_array() {
    list_ = nullptr;
    return true;
  }
  bool key(const std::string& key) {
    if (depth_ == 1) {
      if (!names_.insert(key).second) fail("invalid header: two tensors have the name {}", key);
      in_metadata_ = key == "__metadata__";
      keys_.clear();
    } else if (!keys_.insert(key).second) {
      fail("invalid header: {} is there twice in {}", key, in_metadata_ ? "__metadata__" : entry_.name);
    }
    key_ = key;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) {
    fail("invalid header: no JSON from byte {} of it on", at);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DamagedFile(name_, fmt::format(format, std::forward<Args>(args)...));
  }

  /// Something that is not what the format has there. What it does not know of inside an entry is passed over.
  bool value(std::string_view what) const {
    if (depth_ == 1 && in_metadata_ && what == "null") return true;
    if (depth_ == 1) fail("invalid header: {} is {}, and no entry of a tensor", key_, what);
    if (in_metadata_) fail("invalid header: __metadata__.{} is {}, and no text", key_, what);
    if (key_ == "dtype" || key_ == "shape" || key_ == "data_offsets") {
      fail("tensor {}: {} holds {}, which is {}", entry_.name, key_, what, key_ == "dtype" ? "no type" : "no count");
    }
    if (what == "an array" || what == "an object") fail("tensor {}: {} holds {}", entry_.name, key_, what);
    return true;
  }

  [[nodiscard]] std::size_t header_length() const {
    if (file_.size() < kLengthBytes) {
      fail("header too small: a safetensors file begins with 8 bytes of length, and this has {}", file_.size());
    }
    std::uint64_t length = 0;
    std::memcpy(&length, file_.data(), kLengthBytes);
    if (length > kLongestHeader) {
      fail("header too large: {} bytes, the format allows {}; is it a safetensors file?", length, kLongestHeader);
    }
    if (length > file_.size() - kLengthBytes) {
      fail("invalid header length: {} bytes, and {} follow; the file is cut off or of another format", length,
           file_.size() - kLengthBytes);
    }
    return static_cast<std::size_t>(length);
  }

  void add_entry() {
    const std::string& tensor = entry_.name;
    if (!entry_.dtype || !entry_.shape || !entry_.offsets || entry_.offsets->size() != 2) {
      fail("tensor {}: its entry must have dtype, shape and two data_offsets", tensor);
    }
    const auto* const type =
        std::ranges::find_if(kTypes, [&](const ElementType& t) { return *entry_.dtype == t.name; });
    if (type == kTypes.end()) fail("tensor {}: LibTorch has no element type {}", tensor, *entry_.dtype);
    SafetensorsEntry e{tensor, type->dtype, {}, 0, 0};
    // A size of 0 counts as 1 here: LibTorch multiplies the others for strides.
    std::uint64_t bytes = c10::elementSize(type->dtype), product = bytes;
    for (const std::uint64_t size : *entry_.shape) {
      e.shape.push_back(static_cast<std::int64_t>(size));
      bytes *= size;
      if (__builtin_mul_overflow(product, std::max<std::uint64_t>(size, 1), &product) ||
          product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail("tensor {}: a shape of {} has more elements than can be counted", tensor, fmt::join(*entry_.shape, "x"));
      }
    }
    const std::uint64_t begin = entry_.offsets->front(), end = entry_.offsets->back(), there = file_.size() - start_;
    if (begin > end || end > there) fail("tensor {}: invalid offset: bytes {} to {} of {}", tensor, begin, end, there);
    if (end - begin != bytes) {
      fail("tensor {}: {} of shape {} takes {} bytes, and its offsets {} to {} hold {}", tensor, *entry_.dtype,
           fmt::join(e.shape, "x"), bytes, begin, end, end - begin);
    }
    e.begin = start_ + static_cast<std::size_t>(begin);
    e.end = start_ + static_cast<std::size_t>(end);
    header_.tensors.push_back(std::move(e));
  }

  void check_coverage() const {
    std::size_t reached = start_;
    for (const SafetensorsEntry& e : header_.tensors) {
      if (e.begin != reached) {
        fail("tensor {}: invalid offset: it begins at byte {}, and what stands before it ends at {}", e.name,
             e.begin - start_, reached - start_);
      }
      reached = e.end;
    }
    if (reached != file_.size()) {
      fail("incomplete metadata: the tensors end at byte {} of the file, which has {}", reached, file_.size());
    }
  }

  std::span<const std::uint8_t> file_;
  std::string_view name_;
  std::size_t start_ = 0;  // of the data
  SafetensorsHeader header_;
  int depth_ = 0;  // of objects
  bool in_metadata_ = false;
  std::string key_;
  Written entry_;
  std::vector<std::uint64_t>* list_ = nullptr;  // that is being read
  std::unordered_set<std::string> names_, keys_;
};

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw UsageError("safetensors: a name or a text of the metadata is no UTF-8, which the format asks for");
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::uint8_t> file, std::string_view name) {
  return HeaderReader(file, name).read();
}

std::string format_safetensors_header(std::span<const SafetensorsEntry> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, text] : metadata) texts.push_back(quoted(key) + ":" + quoted(text));
    members.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(texts, ",")));
  }
  std::uint64_t begin = 0;
  for (const SafetensorsEntry& e : tensors) {
    if (e.name == "__metadata__") throw UsageError("safetensors: no tensor can have the name __metadata__");
    std::uint64_t bytes = c10::elementSize(e.dtype);
    for (const std::int64_t size : e.shape) bytes *= static_cast<std::uint64_t>(size);
    members.push_back(fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(e.name),
                                  type_of(e.dtype).name, fmt::join(e.shape, ","), begin, begin + bytes));
    begin += bytes;
  }
  std::string text = fmt::format("{{{}}}", fmt::join(members, ","));
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string out(kLengthBytes, '\0');
  std::memcpy(out.data(), &length, kLengthBytes);
  return out + text;
}

bool safetensors_order(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  const int first = type_of(a.dtype).order, second = type_of(b.dtype).order;
  return first != second ? first > second : a.name < b.name;
}

}  // namespace snug::state
