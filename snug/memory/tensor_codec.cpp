#include "snug/memory/tensor_codec.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "snug/memory/tensor_pieces.h"
#include "snug/memory/tensor_rounding.h"

namespace snug::memory {
namespace {

// --- bits: eight bytes are one number, whose products have each of them where it has to go ------------------------

constexpr std::int64_t kWord = 8;

/// Whole words: [words * 8] to [words].
void pack(const at::Tensor& bytes, const at::Tensor& to) {
  const at::Tensor packed = bytes.view(at::kLong).mul(0x0102040810204080);
  to.copy_(packed.bitwise_right_shift_(56).bitwise_and_(0xFF));
}
void unpack(const at::Tensor& from, const at::Tensor& bytes) {
  at::Tensor spread = from.to(at::kLong).mul_(0x0101010101010101);
  spread.bitwise_and_(std::int64_t{-0x7FBFDFEFF7FBFDFF});  // 0x8040201008040201: of byte i bit i
  at::Tensor truth = bytes.view(at::kBool);
  at::ne_out(truth, spread.view(at::kByte), 0);
}

/// words(bytes, where their bits go) of what is whole; the rest with zeros behind it, which `rest` gets back.
template <class Words, class Rest>
void for_words(const at::Tensor& contents, const at::Tensor& code, const Words& words, const Rest& rest) {
  const std::int64_t whole = contents.numel() / kWord * kWord;
  for_pieces(whole, [&](std::int64_t first, std::int64_t count) {
    words(contents.narrow(0, first, count), code.narrow(0, first / kWord, count / kWord));
  });
  if (whole == contents.numel()) return;
  rest(contents.narrow(0, whole, contents.numel() - whole), code.narrow(0, whole / kWord, 1));
}

void encode_bits(const at::Tensor& contents, const at::Tensor& to, Fits& fits) {
  fits.only_if(contents.amax().le(1));
  for_words(contents, to, pack, [](const at::Tensor& few, const at::Tensor& code) {
    const at::Tensor word = at::zeros({kWord}, few.options());
    word.narrow(0, 0, few.numel()).copy_(few);
    pack(word, code);
  });
}

void decode_bits(const at::Tensor& from, const at::Tensor& contents) {
  for_words(
      contents, from, [](const at::Tensor& bytes, const at::Tensor& code) { unpack(code, bytes); },
      [](const at::Tensor& few, const at::Tensor& code) {
        const at::Tensor word = at::zeros({kWord}, few.options());
        unpack(code, word);
        few.copy_(word.narrow(0, 0, few.numel()));
      });
}

// --- narrow ---------------------------------------------------------------------------------------------------------

c10::ScalarType integers_of(std::int64_t width) {
  switch (width) {
    case 1:
      return at::kChar;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

/// Above those of so many bytes, and its negative is the lowest of them.
std::int64_t limit_of(std::int64_t width) { return std::int64_t{1} << (8 * width - 1); }

at::Tensor wide_numbers(std::size_t element, const at::Tensor& contents) {
  return contents.view(integers_of(static_cast<std::int64_t>(element)));
}

/// Numbers of the code that so many have in a tensor of bytes: as wide as there is room for.
std::optional<at::Tensor> narrow_numbers(const at::Tensor& code, std::int64_t count) {
  const auto room = static_cast<std::uint64_t>(code.numel() / count);
  const auto width = static_cast<std::int64_t>(std::bit_floor(std::min<std::uint64_t>(room, sizeof(std::int32_t))));
  if (width == 0) return std::nullopt;
  return numbers_of(code, integers_of(width), 0, count);
}

bool encode_narrow(std::size_t element, const at::Tensor& contents, const at::Tensor& to, Fits& fits) {
  const at::Tensor wide = wide_numbers(element, contents);
  const auto narrow = narrow_numbers(to, wide.numel());
  if (!narrow) return false;
  const std::int64_t limit = limit_of(narrow->element_size());
  fits.only_if(wide.amin().ge(-limit));
  fits.only_if(wide.amax().lt(limit));
  narrow->copy_(wide);
  return true;
}

void decode_narrow(std::size_t element, const at::Tensor& from, const at::Tensor& contents) {
  const at::Tensor wide = wide_numbers(element, contents);
  wide.copy_(*narrow_numbers(from, wide.numel()));
}

/// Whether Narrow can be asked for.
bool are_integers(std::size_t element, const at::Tensor& contents) {
  const auto size = static_cast<std::int64_t>(element);
  return (size == 4 || size == 8) && contents.numel() > 0 && contents.numel() % size == 0;
}

}  // namespace

Bytes narrowed_bytes(std::size_t element, const at::Tensor& contents) {
  if (!are_integers(element, contents)) return contents.numel();
  const at::Tensor wide = wide_numbers(element, contents);
  const auto least = wide.amin().item<std::int64_t>(), most = wide.amax().item<std::int64_t>();
  std::int64_t width = 1;
  while (width < wide.element_size() && (least < -limit_of(width) || most >= limit_of(width))) width *= 2;
  return wide.numel() * width;
}

bool encode(Codec codec, std::size_t element, const at::Tensor& contents, const at::Tensor& to) {
  Fits fits;
  if (codec == Codec::Narrow) {
    const bool possible = are_integers(element, contents) && encode_narrow(element, contents, to, fits);
    return possible && fits.told();
  }
  const std::optional<Bytes> bytes = code_bytes(codec, element, contents.numel());
  if (!bytes || *bytes > to.numel()) return false;
  const at::Tensor code = to.narrow(0, 0, *bytes);
  codec == Codec::Bits ? encode_bits(contents, code, fits) : encode_rounded(codec, element, contents, code, fits);
  return fits.told();
}

void decode(Codec codec, std::size_t element, const at::Tensor& from, const at::Tensor& contents) {
  switch (codec) {
    case Codec::Bits:
      return decode_bits(from, contents);
    case Codec::Narrow:
      return decode_narrow(element, from, contents);
    case Codec::BFloat16:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return decode_rounded(codec, element, from, contents);
    case Codec::Zeros:
    case Codec::Exponents:
      break;
  }
}

}  // namespace snug::memory
