// A plan's file and a recorded step's.
#include <nlohmann/json.hpp>
#include <string_view>

#include "snug/base/errors.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/step_graph.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = nlohmann::ordered_json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  try {
    (void)snug::plan::plan_file_from_json(json);
  } catch (const snug::Error&) {
  }
  try {
    (void)snug::plan::step_graph_from_json(json);
  } catch (const snug::Error&) {
  }
  return 0;
}
