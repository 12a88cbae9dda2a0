// A tokenizer.json; and where it makes a tokenizer, that this gives back what it encodes.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "snug/base/errors.h"
#include "snug/data/byte_pair.h"
#include "snug/data/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    snug::data::BytePairModel model = snug::data::parse_tokenizer_json(text, "f");
    const bool whole = std::ranges::none_of(model.pre_tokenizer, [](const auto& step) {
      const auto* const split = std::get_if<snug::data::SplitAtMatches>(&step);
      return split != nullptr && split->match == snug::data::SplitAtMatches::Match::Removed;
    });
    model.before.clear();
    model.after.clear();
    const snug::data::BytePairTokenizer tokenizer(std::move(model));
    const std::string_view sample = text.substr(0, 200);
    if (tokenizer.decode(tokenizer.encode(sample)) != sample && whole) std::abort();
  } catch (const snug::Error&) {
  }
  return 0;
}
