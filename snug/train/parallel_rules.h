#pragma once

#include <string>
#include <vector>

#include "snug/train/team_layout.h"

namespace snug::train {

struct Config;
class Team;

// What goes together of several processes, and of what each has of the model.

/// Throws UsageError for keys of [parallel] that do not go together, or with others.
void validate_parallel(const Config& config);

/// Whether each process has a part of the training state.
[[nodiscard]] bool saves_together(const Config& config);

/// What of [parallel] does nothing among these processes, as another number of them may have it, and what to know
/// before a run.
[[nodiscard]] std::vector<std::string> notes_for_team(const Config& config, const Team& team);

/// Throws UsageError for what several processes cannot do yet, or not together, and where they have other settings
/// (check_same_settings()), in all of them.
void check_for_team(const Config& config, const Team& team);
/// The same for a plan from a file.
void check_plan_for_team(const Team& team);

/// "parallel.tensor = 2, parallel.pipeline = 4": those above 1.
std::string parts_in_words(const TeamLayout& layout);

}  // namespace snug::train
