#include "luna/train/evaluate.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "train/prefetch.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

std::vector<int64_t> chosen(const data::Dataset& data,
                            const EvaluateOptions& options) {
  std::vector<int64_t> indices(data.size());
  std::iota(indices.begin(), indices.end(), int64_t{0});
  if (options.samples > 0 && options.samples < data.size()) {
    indices =
        data::DataOrder(data.size(), options.samples, options.seed).batch(0);
  }
  const auto length = [&](int64_t index) {
    const data::Sample sample = data[index];
    return std::max(sample.ids.size(), sample.second.size());
  };
  std::stable_sort(indices.begin(), indices.end(),
                   [&](int64_t a, int64_t b) { return length(a) < length(b); });
  return indices;
}

}  // namespace

std::optional<Evaluation> evaluate(models::Model& model,
                                   const data::Dataset& data,
                                   const EvaluateOptions& options) {
  TORCH_CHECK_VALUE(data.size() > 0,
                    "evaluate: expected at least one sample, got none");
  TORCH_CHECK_VALUE(options.batch > 0,
                    "evaluate: batch: expected at least 1, "
                    "got ",
                    options.batch);
  const std::vector<int64_t> indices = chosen(data, options);
  const int64_t count = std::ssize(indices);
  const int64_t batches = (count + options.batch - 1) / options.batch;
  data::BatchOptions form = model.batch_options();
  form.max_length = options.max_length;
  Prefetch prefetch(
      [&](int64_t i) {
        const int64_t begin = i * options.batch;
        const int64_t size = std::min(options.batch, count - begin);
        return std::vector<data::Batch>{
            make_batch(data, std::span(indices).subspan(begin, size), form)};
      },
      0, batches);

  const c10::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const int64_t classes = data.info().classes;
  const c10::Device device = model.parameters().front().device();
  at::Tensor loss = at::zeros({}, at::device(device).dtype(at::kDouble));
  at::Tensor confusion =
      at::zeros({classes * classes}, at::device(device).dtype(at::kLong));
  bool stopped = false;
  for (int64_t i = 0; i < batches && !stopped; ++i) {
    if (options.stop && options.stop()) {
      stopped = true;
      break;
    }
    const data::Batch batch = to_device(prefetch.next().front(), device);
    at::Tensor logits;
    {
      const Autocast autocast(options.autocast, device.type());
      logits = model.forward(batch);
    }
    loss.add_(cross_entropy(logits, batch.labels), batch.labels.size(0));
    confusion.add_(at::bincount(batch.labels * classes + logits.argmax(-1), {},
                                classes * classes));
  }
  model.train(was_training);
  if (stopped) return std::nullopt;

  const at::Tensor counts = confusion.cpu();
  Evaluation result{.samples = count,
                    .loss = loss.item<double>() / static_cast<double>(count),
                    .classes = classes};
  const int64_t* const entry = counts.const_data_ptr<int64_t>();
  result.confusion.assign(entry, entry + classes * classes);
  int64_t correct = 0;
  for (int64_t c = 0; c < classes; ++c) correct += entry[c * (classes + 1)];
  result.accuracy = static_cast<double>(correct) / static_cast<double>(count);
  return result;
}

}  // namespace luna::train
