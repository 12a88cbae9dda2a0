#pragma once

#include <filesystem>
#include <vector>

namespace snug::train {

/// Files of a pretrained model's folder that training does not change and that belong beside the model that is made of
/// it: of tokenizers, chat templates and settings of generation, as transformers reads them. Paths in the folder; empty
/// for a GGUF file and without a model. Throws UsageError for a link that leads out of the folder (of Hugging Face's
/// cache: out of the model's repository, which holds the contents of its snapshots), for what is no regular file, and
/// for a file of more than 64 MiB: what is saved is handed on, and a downloaded folder must not choose files of this
/// machine for that.
std::vector<std::filesystem::path> carried_files(const std::filesystem::path& model);

}  // namespace snug::train
