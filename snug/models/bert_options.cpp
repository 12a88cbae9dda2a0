#include <array>

#include "snug/models/bert.h"
#include "snug/models/released.h"

namespace snug::models {
namespace {

BertOptions base(std::int64_t vocabulary) { return {.vocabulary = vocabulary}; }

BertOptions large(std::int64_t vocabulary) {
  return {.layers = 24, .width = 1024, .inner_width = 4096, .heads = 16, .vocabulary = vocabulary};
}

/// As their config.json files have them.
const std::array<Released<BertOptions>, 6>& released_bert() {
  static const std::array<Released<BertOptions>, 6> all{{
      {"bert-base-uncased", base(30522)},
      {"bert-base-cased", base(28996)},
      {"bert-base-chinese", base(21128)},
      {"bert-base-multilingual-cased", base(119547)},
      {"bert-large-uncased", large(30522)},
      {"bert-large-cased", large(28996)},
  }};
  return all;
}

}  // namespace

std::vector<std::string> bert_names() { return released_names(released_bert()); }

BertOptions bert_options(std::string_view name) { return released_options("bert", released_bert(), name); }

}  // namespace snug::models
