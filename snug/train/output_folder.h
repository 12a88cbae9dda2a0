#pragma once

#include <filesystem>
#include <optional>

#include "snug/base/folder_lock.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"

namespace snug::train {

/// Throws UsageError where the run would read what it writes: data.path is a folder with output.folder in it, or
/// model.path or lora.adapter is what output.folder gets in the end.
void check_output_folder(const Config& config);

/// For the whole run, as two in one folder would remove each other's states; makes the folder. nullopt for an empty
/// path. Throws UsageError when another run has it, Error when it cannot be made.
std::optional<FolderLock> lock_output_folder(const std::filesystem::path& folder);

/// Moves what an earlier run left (state, metrics, the adapter or model) into a folder of its own in there, "earlier-1"
/// or the next number that is free, which is that run's output.folder from then on. Nothing where it left nothing.
/// Throws Error when something cannot be moved.
void put_earlier_run_aside(const std::filesystem::path& folder, report::Progress& progress);

}  // namespace snug::train
