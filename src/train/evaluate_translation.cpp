#include "train/evaluate_translation.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <luna/text/bleu.h>
#include <luna/train/translate.h>

#include <algorithm>

#include "train/train_step.h"

namespace luna::train {
namespace {

struct Sums {
  at::Tensor loss, correct;  ///< float64, int64 scalars on the device
  int64_t tokens = 0;
};

bool add_losses(models::Model& model, const data::TranslationDataset& data,
                std::span<const int64_t> indices,
                const EvaluateOptions& options, Sums& sums) {
  const c10::Device device = sums.loss.device();
  const int64_t count = std::ssize(indices);
  for (int64_t first = 0; first < count; first += options.batch) {
    if (options.stop && options.stop()) return false;
    const auto chosen =
        indices.subspan(first, std::min(options.batch, count - first));
    const data::Batch batch = to_device(
        data::make_translation_batch(data.pairs(), chosen, data.specials()),
        device);
    const Autocast autocast(options.autocast, device.type());
    const at::Tensor logits = model.forward(batch);
    const int64_t tokens = batch.labels.size(0);
    sums.loss.add_(task_loss(logits, batch), tokens);
    sums.correct.add_(logits.argmax(-1).eq(batch.labels).sum());
    sums.tokens += tokens;
  }
  return true;
}

}  // namespace

std::optional<Evaluation> evaluate_translation(
    models::Model& model, const data::TranslationDataset& data,
    std::span<const int64_t> indices, const EvaluateOptions& options) {
  auto* const translator = dynamic_cast<models::Translator*>(&model);
  TORCH_CHECK_TYPE(translator != nullptr,
                   "evaluate: expected a Translator for a task of translation, "
                   "got another model");
  const c10::Device device = model.parameters().front().device();
  Sums sums{at::zeros({}, at::device(device).dtype(at::kDouble)),
            at::zeros({}, at::device(device).dtype(at::kLong))};
  if (!add_losses(model, data, indices, options, sums)) return std::nullopt;

  std::vector<std::vector<int32_t>> sources;
  text::Lines references, lines;
  for (const int64_t i : indices) {
    const auto [source, target] = data.pairs()[i];
    sources.emplace_back(source.begin(), source.end());
    references.push_back(
        line_of(data.tokenizer(), {.ids = {target.begin(), target.end()}}));
  }
  const auto found =
      translate(*translator, data.specials(), sources,
                {.search = {.beam = options.beam,
                            .length_penalty = options.length_penalty},
                 .batch = options.batch,
                 .stop = options.stop});
  if (!found) return std::nullopt;
  for (const Hypotheses& best : *found) {
    lines.push_back(line_of(data.tokenizer(), best.front()));
  }
  const double tokens = static_cast<double>(sums.tokens);
  return Evaluation{
      .samples = std::ssize(indices),
      .loss = sums.loss.item<double>() / tokens,
      .accuracy = static_cast<double>(sums.correct.item<int64_t>()) / tokens,
      .metric = data.info().metric,
      .score = text::bleu(lines, std::span(&references, 1)).score};
}

}  // namespace luna::train
