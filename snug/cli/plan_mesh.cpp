#include "snug/cli/plan_mesh.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/read_at.h"
#include "snug/cli/output.h"
#include "snug/memory/process_memory.h"
#include "snug/parallel/link_text.h"
#include "snug/report/progress.h"
#include "snug/report/terminal.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/mesh/choose_layout.h"
#include "snug/train/mesh/next_layouts.h"

namespace snug::cli {
namespace {

// Of networks in machine rooms, and of processes that talk to each other inside of one machine.
constexpr const char* kBetween = "10Gbps/50us";
constexpr const char* kWithin = "2GBps/50us";
constexpr double kLatency = 50e-6;        // where only the rate is given
constexpr double kServerLatency = 10e-6;  // of the links of a maker's servers
constexpr Bytes kLeast = 64_KiB;          // of a device, or of a machine's processes: less is a unit that was left out

/// Parses "BETWEEN,WITHIN", or one link for both. Default for a described device: the links of its vendor's servers, or
/// its host link if it is sold as a card.
void read_links(const MeshOptions& mesh, parallel::Links& links) {
  std::string between = kBetween, within = kWithin;
  if (mesh.on && mesh.on->server) {
    const auto& server = *mesh.on->server;
    between = parallel::to_text({server.network_bytes_per_second, kServerLatency});
    within = parallel::to_text({server.link_bytes_per_second, kServerLatency});
  } else if (mesh.on) {
    within = parallel::to_text({mesh.on->host_bytes_per_second, kLatency});
  }
  const std::string both = mesh.link.value_or(fmt::format("{},{}", between, within));
  const std::size_t comma = both.find(',');
  links.between = parallel::parse_link(both.substr(0, comma), kLatency);
  const std::size_t second = comma == std::string::npos ? comma : both.find_first_not_of(' ', comma + 1);
  links.within = second == std::string::npos ? links.between : parallel::parse_link(both.substr(second), kLatency);
}

train::Devices devices_of(const MeshOptions& mesh) {
  if (!mesh.devices) {
    throw UsageError(
        "plan: --nodes, --device-memory, --host-memory and --link say more of --devices, which is not there");
  }
  const int count = *mesh.devices;
  const int of_server = mesh.on && mesh.on->server ? mesh.on->server->devices : count;
  const int nodes = mesh.nodes.value_or(of_server > 0 ? (count + of_server - 1) / of_server : 1);
  if (count < 1 || nodes < 1 || count % nodes != 0) {
    throw UsageError(
        fmt::format("plan: --devices {} and --nodes {}: there must be one of each at least, and as many devices in "
                    "each node: give a number of devices that {} divides",
                    count, nodes, std::max(nodes, 1)));
  }
  train::Devices devices{.count = count, .links = {}};
  devices.links.per_machine = count / nodes;
  read_links(mesh, devices.links);
  return devices;
}

/// What is set of any layout, with what each process has; unchecked, as what a layout needs is set for each.
train::Config configured(const ConfigOptions& options, const MeshOptions& mesh, const train::Devices& devices) {
  for (const train::KeyHelp& key : train::config_keys()) {
    if (key.commands != train::Commands::Runs || (key.key.starts_with("parallel.") && key.key != "parallel.timeout"))
      continue;
    refuse_setting(options, key.key, "it is for train and finetune");
  }
  train::Config config = unchecked_configuration(options);
  config.state = {};  // as nothing is saved
  config.output = {};
  // What is rehearsed here takes no more than there is, but what is not here takes nothing.
  const Bytes here = mesh.on ? std::numeric_limits<Bytes>::max() : memory::machine_memory().total;
  if (mesh.device_memory) config.memory.budget = plan::BudgetRequest(std::min(*mesh.device_memory, here));
  if (mesh.host_memory)
    config.memory.host_budget = plan::BudgetRequest(std::min(*mesh.host_memory / devices.links.per_machine, here));
  if (config.train.threads == 0) {  // as many for each as there would be
    config.train.threads = std::max(at::get_num_threads() / devices.links.per_machine, 1);
  }
  return config;
}

/// As a shell reads it.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+%@";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string how_to_run(const ConfigOptions& options, const MeshOptions& mesh, const train::Config& asked,
                       const train::Config& found, const train::Devices& devices) {
  std::vector<std::string> words = {"torchrun", "--no-python"};
  const int nodes = devices.count / devices.links.per_machine;
  if (nodes > 1) {
    words.insert(words.end(), {"--nnodes", std::to_string(nodes), "--node-rank", "NODE", "--master-addr", "HOST"});
  }
  words.insert(words.end(), {"--nproc-per-node", std::to_string(devices.links.per_machine), "snug",
                             found.model.path.empty() ? "train" : "finetune", quoted(options.file)});
  const auto add = [&](const std::string& option, const std::string& value) {
    words.push_back(option);
    words.push_back(quoted(value));
  };
  for (const std::string& setting : options.settings) add("--set", setting);
  train::Config there = found;
  if (mesh.on) there.train.threads = asked.train.threads;  // as many as that machine has
  for (const std::string& setting : train::settings_between(asked, there)) add("--set", setting);
  if (mesh.host_memory)
    add("--set", fmt::format("memory.host_budget={}B", *mesh.host_memory / devices.links.per_machine));
  if (mesh.device_memory) add("--budget", fmt::format("{}B", *mesh.device_memory));
  if (options.budget) add("--budget", plan::to_text(options.budget));
  if (options.device) add("--device", mesh.on ? "cuda" : *options.device);
  return fmt::format("{}", fmt::join(words, " "));
}

nlohmann::ordered_json to_json(const parallel::Link& link) {
  return {{"bytes_per_second", link.bytes_per_second}, {"seconds_per_message", link.seconds_per_message}};
}

/// Where no layout fits, or can be.
[[noreturn]] void refuse(const std::vector<train::LayoutTrial>& trials, const train::Config& config, int devices) {
  if (trials.empty()) {
    throw UsageError(
        fmt::format("plan: {} processes cannot train this: parallel.tensor, context and pipeline, where they are set, "
                    "must divide that number, and train.batch = {} must be a multiple of the replicas times "
                    "train.accumulate; parallel.sequence_parallel, where it is set, is of layers in parts, and "
                    "parallel.schedule of stages",
                    devices, config.train.batch));
  }
  Bytes least = 0;
  for (const train::LayoutTrial& one : trials) {
    if (one.floor && (least == 0 || *one.floor < least)) least = *one.floor;
  }
  if (least == 0) throw UsageError(trials.front().why_not);
  throw UsageError(fmt::format(
      "plan: no layout fits; the one that takes least takes {} ({} bytes), or a little more while it is recorded; "
      "give that, or more devices",
      format_bytes(least), least));
}

}  // namespace

void add_mesh_options(CLI::App& command, MeshOptions& options) {
  command
      .add_option("--devices", options.devices,
                  "Look for the fastest layout of so many processes, each with a device: see docs/parallel.md")
      ->type_name("N");
  command.add_option("--nodes", options.nodes, "Machines that have them, each as many (1)")->type_name("N");
  const auto read_bytes = [](std::string_view name, std::optional<Bytes>& to) {
    return [name, &to](const std::string& text) {
      read_at(std::string(name), [&] {
        to = parse_bytes(text);
        if (*to < kLeast)
          throw UsageError(fmt::format("\"{}\" is too little to train in; write a unit, as in 8GiB", text));
      });
    };
  };
  command
      .add_option_function<std::string>("--device-memory", read_bytes("--device-memory", options.device_memory),
                                        "What each device has: the budget of its process")
      ->type_name("BYTES");
  command
      .add_option_function<std::string>("--host-memory", read_bytes("--host-memory", options.host_memory),
                                        "What each node has for what plans move there, divided among its processes")
      ->type_name("BYTES");
  command
      .add_option(
          "--link", options.link,
          fmt::format("What processes send in a second, and how long a message is under way: between nodes, and "
                      "within one ({},{})",
                      kBetween, kWithin))
      ->type_name("RATE[/TIME][,RATE[/TIME]]");
}

int plan_mesh(const ConfigOptions& options, const MeshOptions& mesh) {
  const train::Devices devices = devices_of(mesh);
  if (options.file.empty()) throw UsageError("plan: --devices needs a configuration");
  if (mesh.device_memory && options.budget)
    throw UsageError("plan: --device-memory is the budget of each process, and so is --budget; leave one of them out");
  const train::Config config = configured(options, mesh, devices);
  if (!config.memory.allow.empty()) {
    throw UsageError(fmt::format(
        "plan: memory.allow = \"{}\" may change the step, and --devices rehearses it as it is; leave one of them out",
        config.memory.allow));
  }
  if (mesh.host_memory && !config.memory.budget) {
    throw UsageError(
        "plan: --host-memory is for what leaves a device's memory, and there is no budget for that; give "
        "--device-memory, or leave it out");
  }
  train::Config plain = config;
  plain.parallel = {};
  plain.train.accumulate = 1;
  std::erase_if(plain.given, [](const std::string& key) { return key.starts_with("parallel."); });
  train::validate(plain);
  train::warm_up(plain);
  report::Progress progress = report::Progress::for_terminal();
  const std::vector<train::LayoutTrial> trials = train::try_layouts(config, devices, progress);
  const bool fits = !trials.empty() && trials.front().made.has_value();
  std::string line;
  if (fits) line = how_to_run(options, mesh, unchecked_configuration(options), trials.front().config, devices);
  if (options.json) {
    if (!fits) refuse(trials, config, devices.count);
    nlohmann::ordered_json json = {
        {"devices", devices.count},
        {"nodes", devices.count / devices.links.per_machine},
        {"between", to_json(devices.links.between)},
        {"within", to_json(devices.links.within)},
        {"device", mesh.on ? nlohmann::ordered_json(mesh.on->name) : nlohmann::ordered_json()},
        {"threads", config.train.threads},
        {"layouts", nlohmann::ordered_json::array()},
        {"command", line}};
    for (const train::LayoutTrial& trial : trials) {
      json["layouts"].push_back(to_json(trial, devices));
      json["layouts"].back()["settings"] = train::settings_between(unchecked_configuration(options), trial.config);
    }
    print(json.dump() + "\n");
    return train::interrupted() ? kInterrupted : 0;
  }
  if (!trials.empty()) print(train::render(trials, devices, report::terminal_columns(stdout)));
  if (!fits) refuse(trials, config, devices.count);
  const bool is_one_machine = devices.count == devices.links.per_machine;
  std::string about = mesh.on ? fmt::format("each on {}, which is not here: times by its data sheet", mesh.on->name)
                              : fmt::format("each computes with {} thread{}", config.train.threads,
                                            config.train.threads == 1 ? "" : "s");
  if (devices.links.per_machine > 1) about += "; within a node " + parallel::in_words(devices.links.within);
  if (!is_one_machine) about += "; between nodes " + parallel::in_words(devices.links.between);
  if (!mesh.link && devices.count > 1) about += " (assumed: snug doctor measures, where a launcher starts it)";
  print(about + "\n\n" + line + "\n");
  if (!is_one_machine) print("on each node, with its NODE from 0 on, and the HOST of NODE 0\n");
  if (mesh.on && devices.count > 1)
    print(
        "these links are direct ones of the devices; snug itself sends through the host's memory so far, which takes "
        "longer\n");
  return train::interrupted() ? kInterrupted : 0;
}

}  // namespace snug::cli
