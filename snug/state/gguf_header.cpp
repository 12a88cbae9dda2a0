#include "snug/state/gguf_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "snug/base/byte_cursor.h"

namespace snug::state {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMostDimensions = 4, kLongestName = 63;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 60;

/// One tensor's description; its begin is relative to the data still.
GgufEntry take_entry(ByteCursor& from, std::uint64_t number) {
  std::string what = fmt::format("tensor {}", number);
  GgufEntry e{from.take_string(what, kLongestGguf), {}, {}, 0, 0};
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

std::uint64_t alignment_of(const ByteCursor& from, const GgufHeader& header) {
  const auto* const set = header.find<std::uint64_t>("general.alignment");
  if (set == nullptr) return kDefaultAlignment;
  if (!std::has_single_bit(*set) || *set > kLongestGguf) {
    from.fail("general.alignment is {}, which is no power of two", *set);
  }
  return *set;
}

std::uint64_t padded(std::uint64_t size, std::uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

/// The format has each tensor begin where the one before it ended, padded.
void place(const ByteCursor& from, GgufHeader& header) {
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
  ByteCursor from(file, name);
  GgufPreamble preamble = take_gguf_preamble(from);
  GgufHeader header{preamble.version, std::move(preamble.metadata), {}};
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < preamble.tensors; ++i) {
    header.tensors.push_back(take_entry(from, i));
    if (!names.insert(header.tensors.back().name).second)
      from.fail("two tensors have the name {}", header.tensors.back().name);
  }
  place(from, header);
  return header;
}

}  // namespace snug::state
