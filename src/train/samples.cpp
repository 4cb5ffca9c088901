#include "train/samples.h"

#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/base64.h"
#include "luna/data/show.h"
#include "luna/data/tasks.h"
#include "luna/train/translate.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

using Bytes = std::span<const uint8_t>;
using Json = nlohmann::ordered_json;

constexpr int64_t kSamples = 8;
constexpr size_t kLongestText = 600;

std::string cut(std::string text) {
  if (text.size() <= kLongestText) return text;
  return text.substr(0, kLongestText) + " ...";
}

std::string readable(const data::TaskInfo& info, Bytes ids) {
  return cut(data::sequence_text(info, ids));
}

Json input_json(const data::TaskInfo& info, const data::Sample& sample) {
  if (!sample.tokens.empty()) {
    return {{"kind", "text"}, {"text", cut(std::string(sample.text))}};
  }
  if (info.height > 0) {
    return {
        {"kind", "picture"},
        {"height", info.height},
        {"width", info.width},
        {"channels", info.channels},
        {"pixels", io::base64({reinterpret_cast<const char*>(sample.ids.data()),
                               sample.ids.size()})}};
  }
  if (info.pairs) {
    return {{"kind", "pair"},
            {"text", readable(info, sample.ids)},
            {"second", readable(info, sample.second)}};
  }
  return {{"kind", info.task.starts_with("listops") ? "symbols" : "text"},
          {"text", readable(info, sample.ids)}};
}

/// Text is cut at a byte, perhaps within a letter.
std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string samples_text(models::Model& model, const data::Dataset& data,
                         const data::BatchOptions& form) {
  const c10::NoGradGuard no_grad;
  const data::TaskInfo& info = data.info();
  const c10::Device device = model.parameters().front().device();
  model.eval();
  Json samples = Json::array();
  // Scores have no classes to be shown by.
  const int64_t count = info.classes == 1 ? 0 : std::min(kSamples, data.size());
  for (int64_t i = 0; i < count; ++i) {
    // Spread out: data sets may be sorted by class.
    const int64_t index = i * data.size() / count;
    const data::Batch batch =
        to_device(make_batch(data, std::span(&index, 1), form), device);
    const at::Tensor shares =
        at::softmax(model.forward(batch), -1, at::kFloat).cpu();
    const float* const share = shares.const_data_ptr<float>();
    const std::vector<float> probabilities(share, share + shares.numel());
    Json json = input_json(info, data[index]);
    json["label"] = data[index].label;
    json["predicted"] =
        std::max_element(probabilities.begin(), probabilities.end()) -
        probabilities.begin();
    json["probabilities"] = probabilities;
    samples.push_back(std::move(json));
  }
  const Json all = {{"task", info.task},
                    {"classes", data::class_names(info)},
                    {"samples", samples}};
  return text_of(all);
}

std::string translation_samples_text(models::Model& model,
                                     const data::TranslationDataset& data) {
  std::vector<std::vector<int32_t>> sources;
  Json samples = Json::array();
  const int64_t count = std::min(kSamples, data.size());
  const auto line = [&](std::span<const int32_t> ids) {
    return cut(line_of(data.tokenizer(), {.ids = {ids.begin(), ids.end()}}));
  };
  for (int64_t i = 0; i < count; ++i) {
    const auto [source, target] = data.pairs()[i * data.size() / count];
    sources.emplace_back(source.begin(), source.end());
    samples.push_back({{"kind", "translation"},
                       {"text", line(source)},
                       {"second", line(target)}});
  }
  const auto found =
      translate(dynamic_cast<models::Translator&>(model), data.specials(),
                sources, {.search = {.beam = 1}, .batch = count});
  for (int64_t i = 0; i < count; ++i) {
    samples[i]["translation"] =
        cut(line_of(data.tokenizer(), found->at(i).front()));
  }
  return text_of({{"task", data.info().task}, {"samples", samples}});
}

}  // namespace luna::train
