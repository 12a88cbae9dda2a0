#pragma once

#include <filesystem>
#include <string>

#include "snug/base/bytes.h"

namespace snug::train {

class Experiment;

/// Throws UsageError when save_trained() could not write what the experiment trains: a whole model whose configuration
/// has no form in config.json, or whose folder has files that carried_files() refuses.
void check_can_save(const Experiment& experiment);

struct SaveOptions {
  Bytes shard = 5_GiB;  ///< A larger model is written in files of at most so much; see write_sharded_safetensors.
};

/// Writes what was trained into a folder, in place of what was there: the adapter as PEFT does ("adapter"), or the
/// model as transformers does ("model": config.json, model.safetensors or its shards, and unchanged what its folder had
/// of tokenizer, chat templates and settings of generation). Other files that are there stay. Returns the path. Of a
/// team the first process writes, and all call it: it asks them for their parts, where layers are in parts. Throws
/// Error with the system's reason when something cannot be written.
std::string save_trained(const Experiment& experiment, const std::filesystem::path& folder,
                         const SaveOptions& options = {});

}  // namespace snug::train
