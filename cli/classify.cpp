#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "luna/report/table.h"
#include "model_input.h"

namespace luna::cli {
namespace {

struct Options {
  ModelInput input{};
  bool json = false;
};

/// [B,classes]
at::Tensor logits_of(const Options& options,
                     const convert::HuggingFaceModel& model) {
  at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(!model.labels().empty(), options.input.model,
                    ": expected a model with a classifier, got ",
                    model.architecture());
  if (!model.bert().is_empty()) {
    auto bert = model.bert();
    return bert(make_tokens(options.input, model)).logits;
  }
  auto vit = model.vit();
  return vit(make_pixels(options.input, model)).logits;
}

int run(const Options& options) {
  const auto model = open_model(options.input);
  const auto& labels = model.labels();
  // One class is a score: a regression such as STS-B's.
  const bool score = labels.size() == 1;
  const auto logits = logits_of(options, model).to(at::kDouble);
  const auto values = score ? logits : logits.softmax(1);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  report::Table table({{"input", false},
                       {score ? "" : "label", false},
                       {score ? "score" : "probability", true}});
  const auto& inputs =
      options.input.texts.empty() ? options.input.images : options.input.texts;
  for (int64_t i = 0; i < values.size(0); ++i) {
    const auto best = values[i].argmax().item<int64_t>();
    const auto value = values[i][best].item<double>();
    nlohmann::ordered_json row = {{"input", inputs[i]}};
    if (score) {
      row["score"] = value;
    } else {
      row["label"] = labels[best];
      for (size_t c = 0; c < labels.size(); ++c) {
        row["probabilities"][labels[c]] =
            values[i][static_cast<int64_t>(c)].item<double>();
      }
    }
    rows.push_back(row);
    table.add_row({inputs[i].substr(0, 60), score ? "" : labels[best],
                   fmt::format("{:.4f}", value)});
  }
  fmt::print("{}\n", options.json ? rows.dump(2) : table.text());
  return kOk;
}

}  // namespace

Command add_classify(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "classify", "Classify text or pictures with a BERT or a ViT");
  app->allow_extras();
  app->footer(
      "Example:\n"
      "  luna classify path/to/bert-sst2 --text 'A film to remember.'");
  const auto options = std::make_shared<Options>();
  add_model_input(*app, options->input);
  app->add_flag("--json", options->json, "JSON instead of text");
  return {app, [options] { return run(*options); }};
}

}  // namespace luna::cli
