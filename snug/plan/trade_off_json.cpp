#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/plan/trade_off.h"

namespace snug::plan {

nlohmann::ordered_json TradeOff::to_json() const {
  nlohmann::ordered_json json = {{"plans", nlohmann::ordered_json::array()},
                                 {"static_bytes", static_bytes_},
                                 {"others_held", others_held_},
                                 {"lowest", plan::to_json(lowest_)}};
  for (const MemoryPlan& plan : plans_) json["plans"].push_back(plan::to_json(plan));
  if (with_less_) json["with_less"] = with_less_->to_json();
  return json;
}

TradeOff TradeOff::from_json(const nlohmann::json& json) {
  try {
    TradeOff found;
    for (const nlohmann::json& plan : json.at("plans")) found.plans_.push_back(memory_plan_from_json(plan));
    if (found.plans_.empty()) throw Error("plans that were searched elsewhere: there are none");
    found.static_bytes_ = json.at("static_bytes").get<Bytes>();
    found.others_held_ = json.at("others_held").get<Bytes>();
    found.lowest_ = memory_plan_from_json(json.at("lowest"));
    if (const auto less = json.find("with_less"); less != json.end())
      found.with_less_ = std::make_shared<const TradeOff>(from_json(*less));
    return found;
  } catch (const nlohmann::json::exception& error) {
    throw Error(fmt::format("plans that were searched elsewhere: {}", error.what()));
  }
}

bool operator==(const TradeOff& a, const TradeOff& b) {
  const bool alike = a.plans_ == b.plans_ && a.static_bytes_ == b.static_bytes_ && a.others_held_ == b.others_held_ &&
                     a.lowest_ == b.lowest_ && (a.with_less_ == nullptr) == (b.with_less_ == nullptr);
  return alike && (a.with_less_ == nullptr || *a.with_less_ == *b.with_less_);
}

}  // namespace snug::plan
