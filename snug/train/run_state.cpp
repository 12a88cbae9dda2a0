#include "snug/train/run_state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/record/random_state.h"
#include "snug/train/tensor_parts.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

std::string hexadecimal(const at::Tensor& bytes) {
  std::string text;
  for (std::int64_t i = 0; i < bytes.numel(); ++i)
    text += fmt::format("{:02x}", bytes.const_data_ptr<std::uint8_t>()[i]);
  return text;
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size() / 2)}, at::kByte);
  for (std::int64_t i = 0; i < bytes.numel(); ++i) {
    const char* const digits = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, bytes.mutable_data_ptr<std::uint8_t>()[i], 16);
    if (error != std::errc{} || end != digits + 2)
      throw UsageError("resuming: the state of the random generator is no hexadecimal text");
  }
  return bytes;
}

/// Processes that have their micro-batches together may be more or fewer, with as many in all: there were `drawers`
/// (see Team), and there are `is` replicas.
void check_same_run(json before, const Config& now, std::size_t drawers, int is, report::Progress& progress) {
  std::int64_t was = static_cast<std::int64_t>(drawers);
  const json parallel = before.value("parallel", json::object());
  for (const char* const key : {"context", "pipeline"}) {
    const json size = parallel.is_object() ? parallel.value(key, json(1)) : json();
    if (size.is_number_integer()) was /= std::max<std::int64_t>(size.get<std::int64_t>(), 1);
  }
  const json train = before.value("train", json::object());
  const json accumulate = train.is_object() ? train.value("accumulate", json(1)) : json();
  std::string as_before, becomes;
  if (accumulate.is_number_integer()) {
    const std::int64_t had = accumulate.get<std::int64_t>() * was, has = now.train.accumulate * is;
    if (had == has) before["train"]["accumulate"] = now.train.accumulate;
    if (had != has && had % is == 0) as_before = fmt::format("; train.accumulate = {} would go on as before", had / is);
    if (had != has && was != is) {
      becomes = fmt::format(
          "batches are {} micro-batches from here on, and were {}: sums have another order, and dropout other numbers",
          has, had);
    }
  }
  if (const std::vector<std::string> different = changed_when_resumed(before, now); !different.empty()) {
    throw UsageError(
        fmt::format("resuming: the state is of another run: {}; use another output.folder, or the settings "
                    "of that run{}",
                    fmt::join(different, ", "), as_before));
  }
  if (!becomes.empty()) progress.note(becomes + as_before);
}

}  // namespace

RunState::RunState(Experiment& experiment, std::filesystem::path folder)
    : experiment_(experiment), folder_(std::move(folder)) {
  if (!has_part_of_weights()) state_.add_tensors("weights", weights());
  if (!experiment.has_part_of_state())
    state_.add_tensors("optimizer", experiment.optimizer().named_state(experiment.trained_names()));
  state_.add_value(
      "random", [this] { return json(hexadecimal(record::save_random_state(experiment_.generator()).state)); },
      [this](const json& value) {
        const JsonFile file = JsonFile::parsed(value, {.name = "resuming: the state of the random generator"});
        record::restore({experiment_.generator(), bytes_of(file.root().as<std::string>())});
      });
  if (experiment.team().size() > 1) {
    const auto of_all = [this] {
      json all = json::array();
      for (const std::string& one : random_of_team) {
        const at::Tensor bytes = at::empty({static_cast<std::int64_t>(one.size())}, at::kByte);
        std::memcpy(bytes.mutable_data_ptr(), one.data(), one.size());
        all.push_back(hexadecimal(bytes));
      }
      return all;
    };
    state_.add_value(
        "random_of_team", of_all, [](const json&) {}, [] {});
  }
  if (experiment.scaler().options().enabled) {
    state_.add_value(
        "scaler", [this] { return experiment_.scaler().state_dict(); },
        [this](const json& value) {
          json state = value;
          // What the configuration says of it may have been changed.
          const json now = experiment_.scaler().state_dict();
          for (const char* key : {"growth_factor", "backoff_factor", "growth_interval"}) state[key] = now[key];
          experiment_.scaler().load_state_dict(state);
        });
    state_.add_value(
        "skipped", [this] { return json(skipped); },
        [this](const json& value) {
          const JsonFile file = JsonFile::parsed(value, {.name = "resuming: the number of skipped steps"});
          skipped = file.root().as<std::int64_t>(kNotNegative);
        });
  }
  add_loss("loss_first", loss_first);
  add_loss("loss_last", loss_last);
  // find() compares them.
  state_.add_value(
      "files", [this] { return json(experiment_.fingerprint()); }, [](const json&) {}, [] {});
  state_.add_value(
      "config", [this] { return json(to_json(experiment_.config())); }, [](const json&) {}, [] {});
}

bool RunState::has_part_of_weights() const {
  return experiment_.has_sharded_weights() || !experiment_.parameter_parts().empty();
}

void RunState::share() {
  if (!experiment_.has_part_of_state()) return;
  std::map<std::string, std::vector<state::TensorPart>> files{{"optimizer", parts_of_optimizer(experiment_)}};
  if (has_part_of_weights()) files.emplace("weights", parts_of(experiment_, weights()));
  in_shards_.emplace(experiment_.team(), std::move(files));
  for (auto& [file, tensors] : in_shards_->divided()) state_.add_divided(file, std::move(tensors));
}

/// What trains, and buffers.
state::NamedTensors RunState::weights() const {
  state::NamedTensors weights;
  for (const auto& p : experiment_.model().named_parameters()) {
    if (p.value().requires_grad()) weights.emplace_back(p.key(), p.value());
  }
  for (const auto& b : experiment_.model().named_buffers()) weights.emplace_back(b.key(), b.value());
  return weights;
}

void RunState::add_loss(const char* name, std::optional<double>& loss) {
  state_.add_value(
      name, [&loss] { return loss ? json(*loss) : json(); },
      [&loss](const json& value) {
        if (value.is_number()) loss = value.get<double>();
      },
      [] {});
}

std::optional<Config> RunState::config_in(const std::filesystem::path& folder) {
  const auto found = state::newest_state(folder, [](const fs::path&, const std::string&) {});  // find() tells of them
  if (!found) return std::nullopt;
  return known_part(state::values_in(*found).value("config", json::object()), "the training state",
                    [](const std::string&) {});
}

std::optional<std::int64_t> RunState::find(report::Progress& progress) {
  found_ = state::newest_state(folder_, [&](const fs::path& path, const std::string& why) {
    progress.note("passing over a damaged training state: " + why);
    damaged_.push_back(path);
  });
  if (!found_ && !damaged_.empty()) {
    throw Error(fmt::format("resuming: none of the {} states in {} is whole; run without --resume to begin anew",
                            damaged_.size(), folder_.string()));
  }
  if (!found_) return std::nullopt;
  const json values = state::values_in(*found_);
  (void)known_part(values.value("config", json::object()), "the training state",
                   [&](const std::string& why) { progress.note(why + ": left out"); });
  const std::size_t drawers = std::max<std::size_t>(values.value("random_of_team", json::array()).size(), 1);
  check_same_run(values.value("config", json::object()), experiment_.config(), drawers, experiment_.team().replicas(),
                 progress);
  if (const json files = values.value("files", json()); !files.is_null() && files != json(experiment_.fingerprint())) {
    throw UsageError(
        "resuming: what data.path, model.path or lora.adapter names is not what it was when the state was saved; put "
        "it back, or use another output.folder");
  }
  return found_->manifest.step;
}

std::int64_t RunState::find_for(std::int64_t steps, report::Progress& progress) {
  const auto found = find(progress);
  const std::int64_t done = found.value_or(0);
  if (done > steps) {
    throw UsageError(
        fmt::format("train: the state in {} is of {} steps, and train.steps = {} are to be done in all; set "
                    "it to {} or more, or use another output.folder",
                    folder_.string(), done, steps, done));
  }
  progress.note(found ? fmt::format("resuming after {} steps", done)
                      : fmt::format("no training state in {}; beginning at the first step", folder_.string()));
  return done;
}

void RunState::restore() {
  if (!found_) return;
  state_.restore(found_->path);
  if (experiment_.has_sharded_weights()) {
    experiment_.streamed()->forget_copies();
    experiment_.team().group().run(parallel::Barrier{});  // nobody fetches what another has yet to restore
  }
  restore_own_random();
  if (!experiment_.team().is_first()) return;
  // They would pass for states newer than those that follow.
  std::error_code ignored;
  for (const fs::path& path : damaged_) fs::rename(path, path.string() + ".damaged", ignored);
}

/// Of another drawer than the first, whose random state is that of a process alone.
void RunState::restore_own_random() {
  const auto drawer = static_cast<std::size_t>(experiment_.team().drawer());
  if (drawer == 0) return;
  const json of_team = state::values_in(*found_).value("random_of_team", json::array());
  if (drawer >= of_team.size()) return experiment_.draw_apart(found_->manifest.step);  // saved by fewer of them
  const JsonFile file = JsonFile::parsed(of_team[drawer], {.name = "resuming: the state of a random generator"});
  record::restore({experiment_.generator(), bytes_of(file.root().as<std::string>())});
}

void RunState::save(std::int64_t step, const std::string& plan, Bytes room, report::Progress& progress, Others others) {
  const auto by_first = [&] {
    wait();
    if (failure_) progress.note(*failure_);  // of the state before; this one may be luckier
    try {
      write(step, plan, room);
      failure_.reset();
      ++saved_;
    } catch (const parallel::GroupFailed&) {
      throw;
    } catch (const Error& error) {
      failure_ = error.what();  // told when the run goes on without it, or by finish()
    }
  };
  if (in_shards_) {
    in_shards_->write_together(by_first);
  } else if (others == Others::MayBeGone) {
    by_first();
  } else {
    StateOfTeam(experiment_.team(), {}).write_together(by_first);
  }
}

std::optional<double> RunState::metric_found() const { return found_ ? found_->manifest.metric : std::nullopt; }

state::StateWriter& RunState::writer() {
  const StateConfig& c = experiment_.config().state;
  return writer_ ? *writer_ : writer_.emplace(folder_, state::Retention{.last = c.last, .best = c.best});
}

void RunState::write(std::int64_t step, const std::string& plan, Bytes room) {
  writer().write(state_, step, {{"plan.json", plan}},
                 experiment_.config().state.write == StateWrite::Background ? room : 0);
  most_copied_ = std::max(most_copied_, writer_->copied());
}

void RunState::wait() {
  const auto metric = std::exchange(metric_, std::nullopt);
  try {
    if (writer_) writer_->wait();
  } catch (const Error& error) {
    failure_ = error.what();
    --saved_;
  }
  if (!metric || failure_) return;  // there is no such state
  try {
    writer().set_metric(metric->first, metric->second);
  } catch (const Error& error) {
    failure_ = error.what();
  }
}

void RunState::finish() {
  wait();
  if (failure_) throw Error(*failure_);
}

}  // namespace snug::train
