#include "snug/train/continuations.h"

#include <fmt/format.h>

#include "snug/data/bos_eos.h"
#include "snug/data/tokenizer.h"
#include "snug/memory/out_of_budget.h"
#include "snug/models/generation.h"
#include "snug/train/experiment.h"

namespace snug::train {

std::vector<std::optional<std::string>> continuations(const Experiment& experiment, const Prompts& prompts,
                                                      report::Progress& progress) {
  if (!experiment.parameter_parts().empty()) return std::vector<std::optional<std::string>>(prompts.texts.size());
  const data::Tokenizer& tokenizer = experiment.tokenizer();
  const models::GenerationOptions options{
      .tokens = prompts.tokens, .below = tokenizer.size(), .ends = experiment.ends()};
  std::vector<std::optional<std::string>> texts;
  for (const std::string& prompt : prompts.texts) {
    const std::vector<data::TokenId> given = data::encode_prompt(tokenizer, prompt);
    std::optional<std::string>& text = texts.emplace_back();
    try {
      text = data::decode_after(tokenizer, given, experiment.language_model().generate(given, options));
    } catch (const OutOfBudget& error) {
      progress.note(fmt::format("\"{}\" is not continued: {}", prompt, error.what()));
    }
  }
  return texts;
}

}  // namespace snug::train
