#include "luna/train/translate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "config/json.h"
#include "luna/io/text_file.h"
#include "luna/train/read_config.h"
#include "luna/train/trainer.h"
#include "text/unicode.h"
#include "train/train_step.h"

namespace luna::train {

std::optional<std::vector<Hypotheses>> translate(
    models::Translator& model, const data::TranslationSpecials& specials,
    const std::vector<std::vector<int32_t>>& sentences,
    const TranslateOptions& options, models::SearchCost* cost) {
  TORCH_CHECK_VALUE(options.batch >= 1,
                    "translate: batch: expected at least 1, got ",
                    options.batch);
  models::BeamOptions search = options.search;
  search.start = specials.start;
  search.end = specials.end;
  std::vector<int64_t> order(sentences.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, std::greater{},
                           [&](int64_t i) { return sentences[i].size(); });
  const c10::Device device = model.parameters().front().device();
  std::vector<Hypotheses> results(sentences.size());
  const int64_t count = std::ssize(order);
  for (int64_t first = 0; first < count; first += options.batch) {
    const auto chosen =
        std::span(order).subspan(first, std::min(options.batch, count - first));
    std::vector<std::vector<int32_t>> sources;
    for (const int64_t i : chosen) sources.push_back(sentences[i]);
    const auto source =
        to_device(data::Batch{.first = data::make_sources(sources, specials),
                              .labels = at::empty({0}, at::kLong)},
                  device)
            .first;
    models::SearchCost spent;
    auto found =
        models::beam_search(model, source, search, &spent, options.stop);
    if (found.empty()) return std::nullopt;
    if (cost != nullptr) {
      cost->steps += spent.steps;
      cost->state_bytes = std::max(cost->state_bytes, spent.state_bytes);
    }
    for (size_t i = 0; i < found.size(); ++i) {
      results[chosen[i]] = std::move(found[i]);
    }
  }
  return results;
}

std::string line_of(const text::Bpe& tokenizer,
                    const models::Hypothesis& hypothesis) {
  const std::vector<int32_t> ids(hypothesis.ids.begin(), hypothesis.ids.end());
  const std::string bytes = tokenizer.decode(ids);
  std::string line;
  for (size_t at = 0; at < bytes.size();) {
    const char32_t c = text::next_character(bytes, at);
    text::append_utf8(c == U'\n' || c == U'\r' ? U' ' : c, line);
  }
  return line;
}

namespace {

/// Of translation.json, if the run has one; else as luna data translation does
/// it by default.
data::ParallelOptions read_text_options(const RunFolder& run) {
  data::ParallelOptions options;
  if (!std::filesystem::exists(run.translation())) return options;
  const auto json =
      config::parse_json(io::read_text(run.translation()), run.translation());
  const auto text = json.find("text");
  if (text == json.end()) return options;
  options.nfc = text->value("nfc", options.nfc);
  options.squeeze_space = text->value("squeeze_space", options.squeeze_space);
  options.plain_punctuation =
      text->value("plain_punctuation", options.plain_punctuation);
  return options;
}

}  // namespace

OpenTranslator open_translator(const std::string& folder) {
  check_run_folder(folder);
  const RunFolder run(folder);
  const TrainConfig config = read_train_config(run.config());
  TORCH_CHECK_VALUE(config.data.task == data::kTranslationTask, run.config(),
                    ": expected a run of the task translation, got ",
                    config.data.task);
  text::Bpe tokenizer = text::Bpe::open(run.tokenizer());
  const auto specials = data::translation_specials(run.tokenizer(), tokenizer);
  auto model = std::dynamic_pointer_cast<models::Translator>(
      load_best(run, config, data::translation_info(tokenizer.size())));
  return {std::move(model), std::move(tokenizer), specials,
          read_text_options(run)};
}

}  // namespace luna::train
