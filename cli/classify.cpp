#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "luna/data/show.h"
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

/// For a row of a table: at most 60 characters, the last one whole.
std::string shortened(const std::string& text) {
  const std::string shown = data::printable_text(
      {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  size_t end = 0;
  for (int64_t left = 60; end < shown.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(shown[end]) & 0xc0) != 0x80;
    if (begins && left-- == 0) break;
  }
  return shown.substr(0, end);
}

int run(const Options& options) {
  const auto model = open_model(options.input);
  const auto& labels = model.labels();
  // One class is a score: a regression such as STS-B's.
  const bool score = labels.size() == 1;
  const auto logits = logits_of(options, model).to(at::kDouble);
  const auto values = score ? logits : logits.softmax(1);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const bool paired = !options.input.pairs.empty();
  std::vector<report::Column> columns = {{"input", false}};
  if (paired) columns.push_back({"pair", false});
  if (!score) columns.push_back({"label", false});
  columns.push_back({score ? "score" : "probability", true});
  report::Table table(columns);
  const auto& inputs =
      options.input.texts.empty() ? options.input.images : options.input.texts;
  for (int64_t i = 0; i < values.size(0); ++i) {
    const auto best = values[i].argmax().item<int64_t>();
    const auto value = values[i][best].item<double>();
    nlohmann::ordered_json row = {{"input", inputs[i]}};
    std::vector<std::string> cells = {shortened(inputs[i])};
    if (paired) {
      row["pair"] = options.input.pairs[i];
      cells.push_back(shortened(options.input.pairs[i]));
    }
    if (score) {
      row["score"] = value;
    } else {
      row["label"] = labels[best];
      cells.push_back(labels[best]);
      for (size_t c = 0; c < labels.size(); ++c) {
        row["probabilities"][labels[c]] =
            values[i][static_cast<int64_t>(c)].item<double>();
      }
    }
    rows.push_back(row);
    cells.push_back(fmt::format("{:.4f}", value));
    table.add_row(std::move(cells));
  }
  using Json = nlohmann::ordered_json;
  // What is no UTF-8 becomes U+FFFD.
  fmt::print("{}\n", options.json ? rows.dump(2, ' ', /*ensure_ascii=*/false,
                                              Json::error_handler_t::replace)
                                  : table.text());
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
