#include "luna/bench/decode_bench.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <luna/bench/dtype.h>
#include <luna/models/translator.h>
#include <luna/nn/attention_registry.h>

#include <algorithm>
#include <chrono>

#include "bench/machine_json.h"
#include "nn/decoding.h"
#include "ops/device_graph.h"

namespace luna::bench {
namespace {

using Json = nlohmann::ordered_json;

models::ModelConfig model_of(const DecodeSettings& s,
                             const std::string& attention) {
  return {.attention = attention,
          .layers = s.layers,
          .width = s.width,
          .ffn = s.ffn,
          .heads = s.heads,
          .memory_length = s.memory_length,
          .norm = "pre",
          .positions = "sinusoidal",
          .activation = "relu",
          .dropout = 0};
}

std::vector<std::string> all_that_decode() {
  std::vector<std::string> names;
  for (const auto& info : nn::attentions()) {
    if (info.traits.causal && info.traits.cross) names.push_back(info.name);
  }
  return names;
}

/// A decoder in the middle of its sentences.
class Stream {
 public:
  Stream(models::Translator& model, const DecodeSettings& settings,
         int64_t batch, int64_t position)
      : model_(model), position_(position) {
    const auto where = at::device(c10::Device(settings.device));
    const auto long_ids = where.dtype(at::kLong);
    state_ =
        model.start({.ids = at::randint(settings.vocabulary,
                                        {batch, settings.source}, long_ids),
                     .lengths = at::full({batch}, settings.source, long_ids),
                     .full = true});
    ids_ = at::randint(settings.vocabulary, {batch}, long_ids);
    model.step(ids_, state_);
    for (models::DecoderLayerState& layer : state_.layers) {
      if (!layer.cache) continue;
      auto sizes = layer.cache->keys.sizes().vec();
      sizes[2] = position + 1;
      layer.cache->keys = at::randn(sizes, layer.cache->keys.options());
      layer.cache->values = at::randn(sizes, layer.cache->keys.options());
    }
  }

  /// The token at the position, as often as it is called.
  void step() {
    state_.length = position_;
    for (models::DecoderLayerState& layer : state_.layers) {
      if (layer.cache) layer.cache->length = position_;
    }
    logits_ = model_.step(ids_, state_);
  }

  int64_t bytes() const { return state_.bytes() / ids_.size(0); }

 private:
  models::Translator& model_;
  int64_t position_;
  models::DecoderState state_{};
  at::Tensor ids_, logits_;
};

void wait_for(const c10::Device& device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

void measure(models::Translator& model, const DecodeSettings& settings,
             DecodeRow& row) {
  const c10::Device device(settings.device);
  Stream stream(model, settings, row.batch, row.position);
  stream.step();
  row.state_bytes = stream.bytes();
  std::unique_ptr<ops::DeviceGraph> graph;
  if (!device.is_cpu()) {
    graph = ops::capture_graph(device, [&] { stream.step(); });
  }
  row.graph = graph != nullptr;
  std::vector<double> samples;
  for (int sample = -1; sample < settings.repeat; ++sample) {
    wait_for(device);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < settings.steps; ++i) {
      graph ? graph->replay() : stream.step();
    }
    wait_for(device);
    const std::chrono::duration<double> spent =
        std::chrono::steady_clock::now() - start;
    if (sample >= 0) {  // the first warms up
      samples.push_back(spent.count() / static_cast<double>(settings.steps));
    }
  }
  row.time = summarize(samples);
}

}  // namespace

DecodeResults decode_bench(
    const DecodeSettings& settings_,
    const std::function<void(const std::string&)>& progress,
    const std::function<bool()>& stop) {
  const at::NoGradGuard no_grad;
  DecodeSettings settings = settings_;
  if (settings.attentions.empty()) settings.attentions = all_that_decode();
  const c10::Device device(settings.device);
  const auto dtype = parse_dtype(settings.dtype);
  DecodeResults results{.settings = settings, .machine = this_machine()};
  for (const std::string& attention : settings.attentions) {
    models::Translator model(model_of(settings, attention),
                             settings.vocabulary);
    model.to(device, dtype);
    model.eval();
    const bool caches = !nn::find_attention(attention).traits.streams;
    for (const int64_t batch : settings.batches) {
      for (const int64_t position : settings.positions) {
        if (stop && stop()) return results;
        DecodeRow row{
            .attention = attention, .batch = batch, .position = position};
        if (progress) {
          progress(fmt::format("{}, batch {}, position {}", attention, batch,
                               position));
        }
        const double cache =
            2.0 * static_cast<double>(settings.layers * batch * position) *
            static_cast<double>(settings.width) *
            static_cast<double>(c10::elementSize(dtype)) / (1 << 30);
        if (caches && cache > settings.cache_gib) {
          row.skipped = fmt::format("a cache of {:.1f} GiB", cache);
        } else {
          measure(model, settings, row);
        }
        results.rows.push_back(row);
      }
    }
  }
  return results;
}

std::string to_json(const DecodeResults& results) {
  const DecodeSettings& s = results.settings;
  Json rows = Json::array();
  for (const DecodeRow& row : results.rows) {
    Json json = {{"attention", row.attention},
                 {"batch", row.batch},
                 {"position", row.position}};
    if (!row.skipped.empty()) {
      json["skipped"] = row.skipped;
    } else {
      json["seconds"] = row.time.median;
      json["seconds_low"] = row.time.low;
      json["seconds_high"] = row.time.high;
      json["state_bytes"] = row.state_bytes;
      json["graph"] = row.graph;
    }
    rows.push_back(std::move(json));
  }
  const Json all = {{"kind", "decode"},
                    {"layers", s.layers},
                    {"width", s.width},
                    {"ffn", s.ffn},
                    {"heads", s.heads},
                    {"memory_length", s.memory_length},
                    {"vocabulary", s.vocabulary},
                    {"source", s.source},
                    {"device", s.device},
                    {"dtype", s.dtype},
                    {"machine", machine_json(results.machine)},
                    {"luna", results.machine.luna_version},
                    {"torch", results.machine.torch_version},
                    {"rows", rows}};
  return all.dump(2) + "\n";
}

DecodeResults decode_results_from_json(const std::string& text,
                                       const std::string& where) {
  DecodeResults results;
  try {
    const Json json = Json::parse(text);
    TORCH_CHECK_VALUE(json.at("kind") == "decode", where,
                      ": expected results of luna bench decode, got others");
    DecodeSettings& s = results.settings;
    for (const auto& [name, field] :
         std::initializer_list<std::pair<const char*, int64_t*>>{
             {"layers", &s.layers},
             {"width", &s.width},
             {"ffn", &s.ffn},
             {"heads", &s.heads},
             {"memory_length", &s.memory_length},
             {"vocabulary", &s.vocabulary},
             {"source", &s.source}}) {
      json.at(name).get_to(*field);
    }
    json.at("device").get_to(s.device);
    json.at("dtype").get_to(s.dtype);
    json.at("luna").get_to(results.machine.luna_version);
    json.at("torch").get_to(results.machine.torch_version);
    const Json& machine = json.at("machine");
    machine.at("cpu").get_to(results.machine.cpu);
    machine.at("logical_cores").get_to(results.machine.logical_cores);
    machine.at("threads").get_to(results.machine.threads);
    machine.at("isa").get_to(results.machine.isa);
    machine.at("memory_bytes").get_to(results.machine.memory);
    machine.at("cuda_devices").get_to(results.machine.cuda_devices);
    s.batches.clear();
    s.positions.clear();
    const auto note = [](auto& values, const auto& value) {
      if (std::ranges::find(values, value) == values.end()) {
        values.push_back(value);
      }
    };
    for (const Json& entry : json.at("rows")) {
      DecodeRow row{.attention = entry.at("attention"),
                    .batch = entry.at("batch"),
                    .position = entry.at("position"),
                    .skipped = entry.value("skipped", "")};
      if (row.skipped.empty()) {
        row.time = {.median = entry.at("seconds"),
                    .low = entry.at("seconds_low"),
                    .high = entry.at("seconds_high")};
        entry.at("state_bytes").get_to(row.state_bytes);
        entry.at("graph").get_to(row.graph);
      }
      note(s.attentions, row.attention);
      note(s.batches, row.batch);
      note(s.positions, row.position);
      results.rows.push_back(std::move(row));
    }
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(
        false, where,
        ": expected results of luna bench decode, got: ", error.what());
  }
  return results;
}

}  // namespace luna::bench
