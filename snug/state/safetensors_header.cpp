#include "snug/state/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "snug/state/damaged_file.h"

namespace snug::state {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;

struct Type {
  const char* name;
  at::ScalarType dtype;
  int order;  ///< among all that the format has, those LibTorch lacks counted
};

constexpr std::array kTypes{
    Type{"BOOL", at::kBool, 0},
    Type{"U8", at::kByte, 4},
    Type{"I8", at::kChar, 5},
    Type{"F8_E5M2", at::kFloat8_e5m2, 6},
    Type{"F8_E4M3", at::kFloat8_e4m3fn, 7},
    Type{"F8_E8M0", at::kFloat8_e8m0fnu, 8},
    Type{"I16", at::kShort, 9},
    Type{"U16", at::kUInt16, 10},
    Type{"F16", at::kHalf, 11},
    Type{"BF16", at::kBFloat16, 12},
    Type{"I32", at::kInt, 13},
    Type{"U32", at::kUInt32, 14},
    Type{"F32", at::kFloat, 15},
    Type{"C64", at::kComplexFloat, 16},
    Type{"F64", at::kDouble, 17},
    Type{"I64", at::kLong, 18},
    Type{"U64", at::kUInt64, 19},
};

const Type& type_of(at::ScalarType dtype) {
  const auto* const found = std::ranges::find(kTypes, dtype, &Type::dtype);
  if (found == kTypes.end()) {
    throw UsageError(fmt::format("safetensors: the format has no element type for {}", c10::toString(dtype)));
  }
  return *found;
}

/// Fails with the file's name in front.
class Reader {
 public:
  Reader(std::span<const std::uint8_t> file, std::string_view name) : file_(file), name_(name) {}

  SafetensorsHeader read() {
    const std::size_t length = header_length();
    const Json json = parse(length);
    SafetensorsHeader header;
    for (const auto& [key, value] : json.items()) {
      if (key == "__metadata__") {
        header.metadata = metadata(value);
      } else {
        header.tensors.push_back(entry(key, value, kLengthBytes + length));
      }
    }
    std::ranges::sort(header.tensors, {}, [](const SafetensorsEntry& e) { return std::tuple(e.begin, e.end); });
    check_coverage(header.tensors, kLengthBytes + length);
    return header;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DamagedFile(name_, fmt::format(format, std::forward<Args>(args)...));
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

  [[nodiscard]] Json parse(std::size_t length) const {
    const auto text = file_.subspan(kLengthBytes, length);
    if (text.empty() || text.front() != '{') fail("invalid header: it does not begin with {{");
    std::set<std::string> names;
    std::string twice;
    const auto note_names = [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
        twice = parsed.get<std::string>();
      }
      return true;
    };
    Json json;
    try {
      json = Json::parse(text.begin(), text.end(), note_names);
    } catch (const nlohmann::json::exception& error) {
      fail("invalid header: no JSON, {}", error.what());
    }
    if (!twice.empty()) fail("invalid header: two tensors have the name {}", twice);
    if (!json.is_object()) fail("invalid header: it is no JSON object");
    return json;
  }

  [[nodiscard]] std::map<std::string, std::string> metadata(const Json& json) const {
    if (!json.is_object()) fail("invalid header: __metadata__ is no object");
    std::map<std::string, std::string> all;
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string()) fail("invalid header: __metadata__.{} is no string", key);
      all.emplace(key, value.get<std::string>());
    }
    return all;
  }

  /// A count that fits in 63 bits, as no JSON number but an unsigned one is.
  [[nodiscard]] std::uint64_t count(const Json& json, const std::string& tensor, const char* what) const {
    if (!json.is_number_unsigned() ||
        json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail("tensor {}: {} holds {}, which is no count", tensor, what, json.dump());
    }
    return json.get<std::uint64_t>();
  }

  [[nodiscard]] SafetensorsEntry entry(const std::string& tensor, const Json& json, std::size_t start) const {
    if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json["dtype"].is_string() ||
        !json.contains("shape") || !json["shape"].is_array() || !json.contains("data_offsets") ||
        !json["data_offsets"].is_array() || json["data_offsets"].size() != 2) {
      fail("tensor {}: its entry must have dtype, shape and two data_offsets, and has {}", tensor, json.dump());
    }
    const std::string type_name = json["dtype"].get<std::string>();
    const auto* const type = std::ranges::find_if(kTypes, [&](const Type& t) { return type_name == t.name; });
    if (type == kTypes.end()) fail("tensor {}: LibTorch has no element type {}", tensor, type_name);
    SafetensorsEntry e{tensor, type->dtype, {}, 0, 0};
    std::uint64_t bytes = c10::elementSize(type->dtype);
    for (const Json& size : json["shape"]) {
      e.shape.push_back(static_cast<std::int64_t>(count(size, tensor, "shape")));
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(e.shape.back()), &bytes)) {
        fail("tensor {}: a shape of {} has more elements than can be counted", tensor, fmt::join(e.shape, "x"));
      }
    }
    const std::uint64_t begin = count(json["data_offsets"][0], tensor, "data_offsets");
    const std::uint64_t end = count(json["data_offsets"][1], tensor, "data_offsets");
    const std::uint64_t there = file_.size() - start;
    if (begin > end || end > there) {
      fail("tensor {}: invalid offset: bytes {} to {} of {}", tensor, begin, end, there);
    }
    if (end - begin != bytes) {
      fail("tensor {}: {} of shape {} takes {} bytes, and its offsets {} to {} hold {}", tensor, type_name,
           fmt::join(e.shape, "x"), bytes, begin, end, end - begin);
    }
    e.begin = start + static_cast<std::size_t>(begin);
    e.end = start + static_cast<std::size_t>(end);
    return e;
  }

  void check_coverage(const std::vector<SafetensorsEntry>& tensors, std::size_t start) const {
    std::size_t reached = start;
    for (const SafetensorsEntry& e : tensors) {
      if (e.begin != reached) {
        fail("tensor {}: invalid offset: it begins at byte {}, and what stands before it ends at {}", e.name,
             e.begin - start, reached - start);
      }
      reached = e.end;
    }
    if (reached != file_.size()) {
      fail("incomplete metadata: the tensors end at byte {} of the file, which has {}", reached, file_.size());
    }
  }

  std::span<const std::uint8_t> file_;
  std::string_view name_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::uint8_t> file, std::string_view name) {
  return Reader(file, name).read();
}

std::string format_safetensors_header(std::span<const SafetensorsEntry> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t begin = 0;
  for (const SafetensorsEntry& e : tensors) {
    std::uint64_t bytes = c10::elementSize(e.dtype);
    for (const std::int64_t size : e.shape) bytes *= static_cast<std::uint64_t>(size);
    json[e.name] = {{"dtype", type_of(e.dtype).name}, {"shape", e.shape}, {"data_offsets", {begin, begin + bytes}}};
    begin += bytes;
  }
  std::string text = json.dump();
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
