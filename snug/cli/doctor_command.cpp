#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/clock.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/data/libtorch_headers.h"
#include "snug/data/text_corpus.h"
#include "snug/memory/cuda_memory.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/process_memory.h"
#include "snug/parallel/launch.h"
#include "snug/parallel/link_text.h"
#include "snug/parallel/measured_links.h"
#include "snug/replay/checkpoint.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"

namespace snug::cli {
namespace {

struct Check {
  std::string name;
  bool works = false;
  std::string detail;
};

Check check(const std::string& name, const std::function<std::string()>& run) {
  try {
    return {name, true, run()};
  } catch (const std::exception& error) {
    return {name, false, std::string(error.what()).substr(0, 100)};
  }
}

/// Records a small net, drops everything, and compares the gradients with those of plain autograd.
std::string check_replay(c10::Device device) {
  torch::manual_seed(1);
  const at::Tensor w = torch::randn({64, 64}, torch::requires_grad().device(device));
  const at::Tensor x = torch::randn({32, 64}, device);
  const auto gradient = [&](bool replays) {
    torch::manual_seed(2);
    w.mutable_grad() = at::Tensor();
    const auto block = [&](const at::Tensor& y) {
      return at::dropout(at::gelu(y.matmul(w)), 0.5, true).matmul(w).tanh();
    };
    (replays ? checkpoint(block, x) : block(x)).sum().backward();
    return w.grad().clone();
  };
  const at::Tensor plain = gradient(false);
  if (!at::equal(plain, gradient(true))) throw std::runtime_error("replayed gradients differ from plain ones");
  return "gradients bitwise equal";
}

std::string check_cap(c10::Device device) {
  auto& memory = memory::device_memory(device);
  const memory::HeldLimit held(memory, memory.stats().allocated + 1_MiB);
  try {
    const at::Tensor too_large = at::empty({8 << 20}, at::TensorOptions(device).dtype(at::kByte));
  } catch (const OutOfBudget&) {
    return "8 MiB refused at 1 MiB over, nothing lost";
  }
  throw std::runtime_error("an allocation passed the limit");
}

std::string check_bf16(c10::Device device) {
  const at::Tensor a = at::ones({64, 64}, at::TensorOptions(device).dtype(at::kBFloat16));
  if (at::matmul(a, a)[0][0].item<float>() != 64) throw std::runtime_error("matmul gives a wrong result");
  return "matmul works";
}

/// What the processes that a launcher has started with this one send each other; nothing for one alone.
struct Reached {
  std::optional<parallel::Links> links;
  std::optional<Check> failed{};  ///< where there are others, and no links
  bool is_first = true;
  int processes = 1;
  /// Which leaves one of the links unmeasured.
  [[nodiscard]] bool on_one_machine() const { return links->per_machine == processes; }
  [[nodiscard]] bool one_on_each() const { return links->per_machine == 1; }
  [[nodiscard]] std::string text() const {
    if (on_one_machine()) return parallel::to_text(links->within);
    return parallel::to_text(links->between) + (one_on_each() ? "" : "," + parallel::to_text(links->within));
  }
};
Reached measure_links() {
  const auto launched = parallel::launched();
  if (!launched || launched->size == 1) return {};
  Reached reached{.links = {}, .is_first = launched->rank == 0, .processes = launched->size};
  const Check met = check("links", [&] {
    const auto world = parallel::World::meet(*launched, {.timeout = std::chrono::minutes(1)});
    reached.links = parallel::measured_links(*world);
    return std::string();
  });
  if (!met.works) reached.failed = met;
  return reached;
}

/// All that is checked, of each device.
std::vector<Check> run_checks(const std::vector<c10::Device>& devices) {
  std::vector<Check> checks;
  for (const c10::Device device : devices) {
    const std::string where = device.is_cpu() ? "" : " on " + device.str();
    checks.push_back(check("record and replay" + where, [device] { return check_replay(device); }));
    checks.push_back(check("memory cap" + where, [device] { return check_cap(device); }));
    checks.push_back(check("bf16" + where, [device] { return check_bf16(device); }));
  }
  checks.push_back(check(
      "demo text", [] { return fmt::format("{} headers", data::TextCorpus::open(data::libtorch_headers()).files()); }));
  return checks;
}

std::string memory_of(const memory::MachineMemory& memory) {
  return fmt::format("{}, {} available", format_bytes(memory.total), format_bytes(memory.available));
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "Tell what snug runs on here, and what works");
  command->add_flag("--json", *json, "Print one JSON object on standard output and nothing else there");
  command->callback([json, &action] {
    action = [json] {
      const Reached reached = measure_links();
      if (!reached.is_first) return reached.failed ? 1 : 0;
      const std::vector<c10::Device> devices = memory::devices();
      std::vector<Check> checks = run_checks(devices);
      if (reached.failed) checks.push_back(*reached.failed);
      bool all = true;
      for (const Check& c : checks) all = all && c.works;
      const memory::MachineMemory machine = memory::machine_memory();
      if (*json) {
        nlohmann::ordered_json found = nlohmann::ordered_json::object();
        for (const Check& c : checks) found[c.name] = {{"works", c.works}, {"detail", c.detail}};
        nlohmann::ordered_json listed = nlohmann::ordered_json::array();
        for (const c10::Device device : devices) {
          const memory::MachineMemory memory = memory::device_memory(device).capacity();
          listed.push_back({{"device", device.str()},
                            {"model", memory::device_memory(device).model()},
                            {"memory_bytes", memory.total},
                            {"available_bytes", memory.available}});
        }
        const nlohmann::ordered_json report = {
            {"snug", SNUG_VERSION},
            {"libtorch", TORCH_VERSION},
            {"cuda", memory::built_for_cuda()},
            {"devices", listed},
            {"cpu_capability", at::get_cpu_capability()},
            {"threads", at::get_num_threads()},
            {"memory_bytes", machine.total},
            {"available_bytes", machine.available},
            {"link", reached.links ? nlohmann::ordered_json(reached.text()) : nlohmann::ordered_json()},
            {"checks", found}};
        print(report.dump() + "\n");
      } else {
        std::vector<report::TableRow> rows = {
            {"snug", SNUG_VERSION},
            {"LibTorch", fmt::format("{}, {}", TORCH_VERSION, memory::built_for_cuda() ? "CPU and CUDA" : "CPU alone")},
            {"kernels for", at::get_cpu_capability()},
            {"threads", std::to_string(at::get_num_threads())},
            {"memory", memory_of(machine)},
        };
        for (const c10::Device device : devices) {
          if (device.is_cpu()) continue;
          const memory::DeviceMemory& memory = memory::device_memory(device);
          const std::string model = memory.model();
          rows.push_back({device.str(), (model.empty() ? "" : model + ", ") + memory_of(memory.capacity())});
        }
        if (reached.links) {
          rows.push_back({"within a machine", reached.one_on_each() ? "not measured: each has one"
                                                                    : parallel::in_words(reached.links->within)});
          rows.push_back({"between machines", reached.on_one_machine() ? "not measured: all are on this one"
                                                                       : parallel::in_words(reached.links->between)});
          rows.push_back({"for snug plan", "--link " + reached.text()});
        }
        for (const Check& c : checks) rows.push_back({c.name, (c.works ? "✓ " : "✗ ") + c.detail});
        print(report::render_table("snug doctor", rows, report::terminal_columns(stdout)));
      }
      return all ? 0 : 1;
    };
  });
}

}  // namespace snug::cli
