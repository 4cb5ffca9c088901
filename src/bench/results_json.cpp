#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "bench/machine_json.h"
#include "luna/bench/results.h"

namespace luna::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "luna-bench/1";

Mode mode_from(const std::string& name) {
  for (const Mode mode : {Mode::kForward, Mode::kForwardBackward}) {
    if (name == mode_name(mode)) return mode;
  }
  throw std::invalid_argument("unknown mode \"" + name + "\"");
}

Json settings_json(const Settings& s) {
  std::vector<std::string> modes;
  for (const Mode mode : s.modes) modes.emplace_back(mode_name(mode));
  Json json = {{"tokens", s.tokens},         {"heads", s.heads},
               {"width", s.width},           {"lengths", s.lengths},
               {"attentions", s.attentions}, {"modes", modes},
               {"causal", s.causal},         {"packed_length", s.packed_length},
               {"dtype", s.dtype},           {"repeat", s.repeat},
               {"time_budget_s", s.budget},  {"plain", s.plain}};
  if (!s.model.empty()) json["model"] = s.model;
  return json;
}

Json measurement_json(const Results& results, const Measurement& m) {
  Json json = {{"attention", m.attention},
               {"mode", mode_name(m.mode)},
               {"length", m.length},
               {"batch", m.batch},
               {"seconds",
                {{"median", m.time.median},
                 {"low", m.time.low},
                 {"high", m.time.high},
                 {"fastest", m.time.fastest}}},
               {"runs", m.time.runs},
               {"spread", m.time.spread()},
               {"peak_bytes", m.peak}};
  if (const auto speed = results.speed_up(m)) {
    json["times_softmax_speed"] = *speed;
  }
  return json;
}

Json crossover_json(const Crossover& c) {
  const char* kind = c.kind == Crossover::Kind::kFromTheStart ? "at_or_below"
                     : c.kind == Crossover::Kind::kBetween    ? "at"
                                                              : "above";
  return {{"attention", c.attention},
          {"mode", mode_name(c.mode)},
          {"where", kind},
          {"length", c.length}};
}

void read_machine(const Json& json, Machine& m) {
  m.cpu = json.at("cpu");
  m.logical_cores = json.at("logical_cores");
  m.threads = json.at("threads");
  m.isa = json.at("isa");
  m.memory = json.at("memory_bytes");
  m.cuda_devices = json.at("cuda_devices");
}

void read_settings(const Json& json, Settings& s) {
  s.tokens = json.at("tokens");
  s.heads = json.at("heads");
  s.width = json.at("width");
  s.lengths = json.at("lengths").get<std::vector<std::int64_t>>();
  s.attentions = json.at("attentions").get<std::vector<std::string>>();
  s.modes.clear();
  for (const Json& mode : json.at("modes")) s.modes.push_back(mode_from(mode));
  s.causal = json.at("causal");
  s.packed_length = json.at("packed_length");
  s.dtype = json.at("dtype");
  s.repeat = json.at("repeat");
  s.budget = json.at("time_budget_s");
  s.plain = json.at("plain");
  s.model = json.value("model", "");
}

Measurement read_measurement(const Json& json) {
  Measurement m;
  m.attention = json.at("attention");
  m.mode = mode_from(json.at("mode"));
  m.length = json.at("length");
  m.batch = json.at("batch");
  const Json& seconds = json.at("seconds");
  m.time.median = seconds.at("median");
  m.time.low = seconds.at("low");
  m.time.high = seconds.at("high");
  m.time.fastest = seconds.at("fastest");
  m.time.runs = json.at("runs");
  m.peak = json.at("peak_bytes");
  return m;
}

}  // namespace

std::string to_json(const Results& results) {
  Json json = {{"format", kFormat},
               {"created", results.created},
               {"complete", results.complete},
               {"luna", results.machine.luna_version},
               {"torch", results.machine.torch_version},
               {"machine", machine_json(results.machine)},
               {"settings", settings_json(results.settings)},
               {"measurements", Json::array()},
               {"skipped", Json::array()},
               {"crossovers", Json::array()}};
  for (const Measurement& m : results.measurements) {
    json["measurements"].push_back(measurement_json(results, m));
  }
  for (const Skip& s : results.skipped) {
    json["skipped"].push_back({{"attention", s.attention},
                               {"mode", mode_name(s.mode)},
                               {"length", s.length},
                               {"reason", s.reason}});
  }
  for (const Crossover& c : crossovers(results)) {
    json["crossovers"].push_back(crossover_json(c));
  }
  return json.dump(2) + "\n";
}

Results results_from_json(const std::string& text, const std::string& source) {
  try {
    const Json json = Json::parse(text);
    const std::string format = json.at("format");
    TORCH_CHECK_VALUE(format == kFormat, source, ": expected format ", kFormat,
                      ", got ", format);
    Results results;
    results.created = json.at("created");
    results.complete = json.at("complete");
    results.machine.luna_version = json.at("luna");
    results.machine.torch_version = json.at("torch");
    read_machine(json.at("machine"), results.machine);
    read_settings(json.at("settings"), results.settings);
    for (const Json& m : json.at("measurements")) {
      results.measurements.push_back(read_measurement(m));
    }
    for (const Json& s : json.at("skipped")) {
      results.skipped.push_back({s.at("attention"), mode_from(s.at("mode")),
                                 s.at("length"), s.at("reason")});
    }
    return results;
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, source, ": expected what `luna bench --out` ",
                      "writes, got: ", error.what());
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, source, ": ", error.what());
  }
}

}  // namespace luna::bench
