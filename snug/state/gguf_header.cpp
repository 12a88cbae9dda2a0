#include "snug/state/gguf_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>

#include "snug/state/damaged_file.h"

namespace snug::state {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMostDimensions = 4, kLongestName = 63;
constexpr std::uint64_t kLongestString = std::uint64_t{1} << 30, kLongestArray = std::uint64_t{1} << 30;

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 60;

enum class ValueType : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

/// The bytes of a file from the front on. Every failure names the file, the place and what is read there.
class Cursor {
 public:
  Cursor(std::span<const std::uint8_t> file, std::string_view name) : file_(file), name_(name) {}

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw DamagedFile(name_, fmt::format("at byte {}: {}", at_, fmt::format(format, std::forward<Args>(args)...)));
  }

  template <class T>
  T take(const std::string& what) {
    need(sizeof(T), what);
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string take_string(const std::string& what) {
    const auto length = take<std::uint64_t>(what);
    if (length > kLongestString) fail("{}: a string of {} bytes; the format allows {}", what, length, kLongestString);
    need(length, what);
    std::string text(reinterpret_cast<const char*>(file_.data() + at_), static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return text;
  }

  /// Fails unless so many bytes are left. Keeps a count in the file from asking for more memory than the file has.
  void need(std::uint64_t bytes, const std::string& what) const {
    if (bytes > file_.size() - at_) {
      fail("{}: needs {} bytes, and the file has {} more; it is cut off or damaged", what, bytes, file_.size() - at_);
    }
  }

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] std::size_t size() const { return file_.size(); }

 private:
  std::span<const std::uint8_t> file_;
  std::string_view name_;
  std::size_t at_ = 0;
};

template <class T>
using Widened =
    std::conditional_t<std::is_same_v<T, bool>, bool,
                       std::conditional_t<std::is_floating_point_v<T>, double,
                                          std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

template <class T>
Widened<T> take_scalar(Cursor& from, const std::string& what) {
  if constexpr (std::is_same_v<T, bool>) {
    return from.take<std::uint8_t>(what) != 0;
  } else {
    return static_cast<Widened<T>>(from.take<T>(what));
  }
}

/// Calls with a value of the C++ type that a number in the file stands for.
template <class Call>
GgufValue with_scalar_type(Cursor& from, ValueType type, const std::string& what, Call&& call) {
  switch (type) {
    case ValueType::U8:
      return call(std::uint8_t{});
    case ValueType::I8:
      return call(std::int8_t{});
    case ValueType::U16:
      return call(std::uint16_t{});
    case ValueType::I16:
      return call(std::int16_t{});
    case ValueType::U32:
      return call(std::uint32_t{});
    case ValueType::I32:
      return call(std::int32_t{});
    case ValueType::U64:
      return call(std::uint64_t{});
    case ValueType::I64:
      return call(std::int64_t{});
    case ValueType::F32:
      return call(float{});
    case ValueType::F64:
      return call(double{});
    case ValueType::Bool:
      return call(bool{});
    case ValueType::String:
    case ValueType::Array:
      break;
  }
  from.fail("{}: {} is no type of value", what, static_cast<std::uint32_t>(type));
}

GgufValue take_array(Cursor& from, const std::string& what) {
  const auto type = static_cast<ValueType>(from.take<std::uint32_t>(what));
  const auto length = from.take<std::uint64_t>(what);
  if (length > kLongestArray) from.fail("{}: an array of {}; the format allows {}", what, length, kLongestArray);
  if (type == ValueType::Array) from.fail("{}: an array of arrays, which no model has", what);
  if (type == ValueType::String) {
    from.need(length * sizeof(std::uint64_t), what);
    std::vector<std::string> all;
    all.reserve(static_cast<std::size_t>(length));
    for (std::uint64_t i = 0; i < length; ++i) all.push_back(from.take_string(what));
    return all;
  }
  return with_scalar_type(from, type, what, [&]<class T>(T) -> GgufValue {
    from.need(length * (std::is_same_v<T, bool> ? 1 : sizeof(T)), what);
    std::vector<Widened<T>> all;
    all.reserve(static_cast<std::size_t>(length));
    for (std::uint64_t i = 0; i < length; ++i) all.push_back(take_scalar<T>(from, what));
    return all;
  });
}

GgufValue take_value(Cursor& from, const std::string& what) {
  const auto type = static_cast<ValueType>(from.take<std::uint32_t>(what));
  if (type == ValueType::String) return from.take_string(what);
  if (type == ValueType::Array) return take_array(from, what);
  return with_scalar_type(from, type, what, [&]<class T>(T) -> GgufValue { return take_scalar<T>(from, what); });
}

/// One tensor's description; its begin is relative to the data still.
GgufEntry take_entry(Cursor& from, std::uint64_t number) {
  std::string what = fmt::format("tensor {}", number);
  GgufEntry e{from.take_string(what), {}, {}, 0, 0};
  if (e.name.size() > kLongestName)
    from.fail("{}: a name of {} bytes; the format allows {}", what, e.name.size(), kLongestName);
  what = "tensor " + e.name;
  const auto dimensions = from.take<std::uint32_t>(what);
  if (dimensions > kMostDimensions)
    from.fail("{}: {} dimensions; the format allows {}", what, dimensions, kMostDimensions);
  std::uint64_t elements = 1, product = 1;  // where a size of 0 counts as 1: LibTorch multiplies the others for strides
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = from.take<std::int64_t>(what);
    const std::uint64_t factor = std::max<std::uint64_t>(static_cast<std::uint64_t>(size), 1);
    if (size < 0 || __builtin_mul_overflow(product, factor, &product) || product > kMostElements) {
      from.fail("{}: its sizes cannot be counted", what);
    }
    elements *= static_cast<std::uint64_t>(size);
    e.shape.insert(e.shape.begin(), size);
  }
  const auto number_of_format = from.take<std::uint32_t>(what);
  const ops::BlockLayout* const layout = ops::find_block_layout(number_of_format);
  if (layout == nullptr) {
    from.fail("{}: its elements are in ggml's format {}, which snug does not read; convert the file to Q8_0 or F16",
              what, number_of_format);
  }
  e.format = layout->format;
  const std::uint64_t row = e.shape.empty() ? 1 : static_cast<std::uint64_t>(e.shape.back());
  if (row % layout->elements != 0) {
    from.fail("{}: rows of {} elements are no whole blocks of {} ({})", what, row, layout->elements, layout->name);
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / layout->elements, layout->bytes, &bytes) || bytes > from.size()) {
    from.fail("{}: {} of shape {} is longer than the file", what, layout->name, fmt::join(e.shape, "x"));
  }
  e.begin = static_cast<std::size_t>(from.take<std::uint64_t>(what));
  e.end = static_cast<std::size_t>(bytes);  // its length, until where the data begins is known
  return e;
}

std::uint64_t alignment_of(const Cursor& from, const GgufHeader& header) {
  const auto* const set = header.find<std::uint64_t>("general.alignment");
  if (set == nullptr) return kDefaultAlignment;
  if (!std::has_single_bit(*set) || *set > kLongestString) {
    from.fail("general.alignment is {}, which is no power of two", *set);
  }
  return *set;
}

std::uint64_t padded(std::uint64_t size, std::uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

/// The format has each tensor begin where the one before it ended, padded.
void place(const Cursor& from, GgufHeader& header) {
  const std::uint64_t alignment = alignment_of(from, header);
  const std::uint64_t start = padded(from.at(), alignment);
  std::uint64_t reached = 0;
  for (GgufEntry& e : header.tensors) {
    if (e.begin != reached) {
      from.fail("tensor {}: begins at byte {} of the data, and what stands before it ends at {}", e.name, e.begin,
                reached);
    }
    const std::uint64_t bytes = e.end;
    if (start + reached > from.size() || bytes > from.size() - start - reached) {
      from.fail("tensor {}: {} bytes from {} on, and the file has {}; it is cut off", e.name, bytes, start + reached,
                from.size());
    }
    e.begin = static_cast<std::size_t>(start + reached);
    e.end = e.begin + static_cast<std::size_t>(bytes);
    reached = padded(reached + bytes, alignment);
  }
}

}  // namespace

GgufHeader parse_gguf_header(std::span<const std::uint8_t> file, std::string_view name) {
  Cursor from(file, name);
  if (from.take<std::uint32_t>("the mark of the format") != kMagic)
    from.fail("no GGUF file: it does not begin with \"GGUF\"");
  GgufHeader header;
  header.version = from.take<std::uint32_t>("the version");
  if ((header.version & 0xFFFFU) == 0) from.fail("the file is big-endian; convert it");
  if (header.version != 2 && header.version != 3) {
    from.fail("version {} of the format; snug reads 2 and 3: convert the file again", header.version);
  }
  const auto tensors = from.take<std::uint64_t>("the number of tensors");
  const auto values = from.take<std::uint64_t>("the number of values");
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string key = from.take_string(fmt::format("value {}", i));
    if (!header.metadata.emplace(key, take_value(from, key)).second) from.fail("the key {} is there twice", key);
  }
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    header.tensors.push_back(take_entry(from, i));
    if (!names.insert(header.tensors.back().name).second)
      from.fail("two tensors have the name {}", header.tensors.back().name);
  }
  place(from, header);
  return header;
}

}  // namespace snug::state
