#include "luna/train/evaluate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

#include "luna/train/metrics.h"
#include "ops/device_graph.h"
#include "train/device_data.h"
#include "train/evaluate_translation.h"
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
    return std::max(
        {sample.ids.size(), sample.second.size(), sample.tokens.size()});
  };
  std::stable_sort(indices.begin(), indices.end(),
                   [&](int64_t a, int64_t b) { return length(a) < length(b); });
  return indices;
}

/// A metric of what the confusion counts.
double score_of(const std::string& metric, const Evaluation& result) {
  if (metric == "accuracy") return result.accuracy;
  std::vector<int64_t> labels, predictions;
  for (int64_t cell = 0; cell < std::ssize(result.confusion); ++cell) {
    const int64_t count = result.confusion[cell];
    labels.insert(labels.end(), count, cell / result.classes);
    predictions.insert(predictions.end(), count, cell % result.classes);
  }
  TORCH_CHECK_VALUE(metric == "f1" || metric == "matthews",
                    "evaluate: metric: expected accuracy, f1 or matthews, got ",
                    metric);
  return metric == "f1" ? f1(labels, predictions)
                        : matthews(labels, predictions);
}

/// Batches, one after the other in the order of `chosen`, that are padded to
/// one length.
struct Group {
  int64_t first = 0, batches = 0, samples = 0, length = 0;
  std::unique_ptr<ops::DeviceGraph> graph{};
  bool tried = false;
};

/// Lengths to which a device's batches are padded: few, so that there are few
/// graphs.
constexpr int64_t kLengths = 8;

std::vector<Group> group_batches(const std::vector<int64_t>& indices,
                                 const DeviceData& data, int64_t batch) {
  const int64_t count = std::ssize(indices);
  const int64_t unit =
      std::max<int64_t>(64, (data.longest() + kLengths - 1) / kLengths);
  std::vector<Group> groups;
  for (int64_t first = 0; first < count; first += batch) {
    const int64_t samples = std::min(batch, count - first);
    int64_t longest = 1;
    for (int64_t i = first; i < first + samples; ++i) {
      longest = std::max(longest, data.length(indices[i]));
    }
    const int64_t length =
        std::min(data.longest(), (longest + unit - 1) / unit * unit);
    if (groups.empty() || groups.back().length != length ||
        groups.back().samples != samples) {
      groups.push_back({.first = first, .samples = samples, .length = length});
    }
    ++groups.back().batches;
  }
  return groups;
}

}  // namespace

struct Evaluator::Parts {
  Parts(models::Model& model_, const data::Dataset& data_,
        const EvaluateOptions& options_)
      : model(model_),
        data(data_),
        translation(data::as_translation(data_)),
        options(options_),
        indices(chosen(data_, options_)),
        device(model_.parameters().front().device()),
        form(model_.batch_options()) {
    form.max_length = options.max_length;
    if (translation != nullptr) return;
    const int64_t classes = data.info().classes;
    loss = at::zeros({}, at::device(device).dtype(at::kDouble));
    if (classes == 1) {
      scores = at::zeros({2, std::ssize(indices)}, loss.options());
    } else {
      confusion =
          at::zeros({classes * classes}, at::device(device).dtype(at::kLong));
    }
    first = at::zeros({1}, at::device(device).dtype(at::kLong));
    within = at::arange(options.batch, first.options());
    if (device.is_cpu()) return;
    there.emplace(data, form, device);
    groups = group_batches(indices, *there, options.batch);
    order = at::tensor(indices, at::kLong).to(device);
  }

  bool stop() const { return options.stop && options.stop(); }

  void add(const data::Batch& batch) {
    at::Tensor logits;
    {
      const Autocast autocast(options.autocast, device.type());
      logits = model.forward(batch);
    }
    const int64_t samples = batch.labels.size(0);
    loss.add_(task_loss(logits, batch), samples);
    if (scores.defined()) {
      scores.index_copy_(
          1, within.narrow(0, 0, samples) + first,
          at::stack({batch.labels, logits.squeeze(-1).to(at::kFloat)})
              .to(at::kDouble));
    } else {
      const at::Tensor cell =
          batch.labels * data.info().classes + logits.argmax(-1);
      confusion.scatter_add_(0, cell, at::ones_like(cell));
    }
    first.add_(samples);
  }

  bool run_on_host() {
    const int64_t count = std::ssize(indices);
    const int64_t batches = (count + options.batch - 1) / options.batch;
    Prefetch prefetch(
        [&](int64_t i) {
          const int64_t begin = i * options.batch;
          const int64_t size = std::min(options.batch, count - begin);
          return std::vector<data::Batch>{
              make_batch(data, std::span(indices).subspan(begin, size), form)};
        },
        0, batches);
    for (int64_t i = 0; i < batches; ++i) {
      if (stop()) return false;
      add(prefetch.next().front());
    }
    return true;
  }

  /// The batch that starts at sample `first`, a number on the device.
  void add_next(const Group& group) {
    const at::Tensor samples =
        order.index_select(0, within.narrow(0, 0, group.samples) + first);
    add(there->gather(samples, group.length));
  }

  void record(Group& group) {
    group.tried = true;
    if (group.batches == 1) return;
    const at::Tensor losses = loss.clone(), place = first.clone(),
                     counts = counted().clone();
    add_next(group);  // sets up what a recording must find
    loss.copy_(losses);
    counted().copy_(counts);
    first.copy_(place);
    try {
      group.graph = ops::capture_graph(device, [&] { add_next(group); });
    } catch (const c10::Error& error) {
      TORCH_WARN_ONCE(
          "evaluate: batches are not recorded as a CUDA graph, which makes "
          "them slower: ",
          error.what_without_backtrace());
    }
  }

  /// What becomes the metrics.
  at::Tensor& counted() { return scores.defined() ? scores : confusion; }

  bool run_on_device() {
    for (Group& group : groups) {
      if (!group.tried) record(group);
      for (int64_t i = 0; i < group.batches; ++i) {
        if (stop()) return false;
        group.graph ? group.graph->replay() : add_next(group);
      }
    }
    return true;
  }

  models::Model& model;
  const data::Dataset& data;
  const data::TranslationDataset* translation;  ///< the same, or none
  EvaluateOptions options;
  std::vector<int64_t> indices;
  c10::Device device;
  data::BatchOptions form;
  at::Tensor loss, confusion;  ///< sums
  at::Tensor scores;           ///< float64 [2,samples]: labels, predictions
  at::Tensor first, within;    ///< place of the next batch; of its samples
  // On a device alone:
  std::optional<DeviceData> there{};
  std::vector<Group> groups{};
  at::Tensor order;
};

Evaluator::Evaluator(models::Model& model, const data::Dataset& data,
                     const EvaluateOptions& options) {
  TORCH_CHECK_VALUE(data.size() > 0,
                    "evaluate: expected at least one sample, got none");
  TORCH_CHECK_VALUE(options.batch > 0,
                    "evaluate: batch: expected at least 1, got ",
                    options.batch);
  parts_ = std::make_unique<Parts>(model, data, options);
}

Evaluator::~Evaluator() = default;
Evaluator::Evaluator(Evaluator&&) noexcept = default;

std::optional<Evaluation> Evaluator::run() {
  Parts& p = *parts_;
  const c10::NoGradGuard no_grad;
  const bool was_training = p.model.is_training();
  p.model.eval();
  if (p.translation != nullptr) {
    auto result =
        evaluate_translation(p.model, *p.translation, p.indices, p.options);
    p.model.train(was_training);
    return result;
  }
  p.loss.zero_();
  p.counted().zero_();
  p.first.zero_();
  const bool done = p.there ? p.run_on_device() : p.run_on_host();
  p.model.train(was_training);
  if (!done) return std::nullopt;

  const int64_t classes = p.data.info().classes;
  const double count = static_cast<double>(p.indices.size());
  const at::Tensor counts = p.counted().cpu();
  Evaluation result{.samples = std::ssize(p.indices),
                    .loss = p.loss.item<double>() / count,
                    .classes = classes,
                    .metric = p.data.info().metric};
  if (classes == 1) {
    const double* const labels = counts.const_data_ptr<double>();
    const std::span given(labels, p.indices.size());
    const std::span predicted(labels + p.indices.size(), p.indices.size());
    TORCH_CHECK_VALUE(result.metric == "pearson",
                      "evaluate: metric: expected pearson of scores, got ",
                      result.metric);
    result.score = pearson(given, predicted);
    result.spearman = spearman(given, predicted);
    return result;
  }
  const int64_t* const entry = counts.const_data_ptr<int64_t>();
  result.confusion.assign(entry, entry + classes * classes);
  int64_t correct = 0;
  for (int64_t c = 0; c < classes; ++c) correct += entry[c * (classes + 1)];
  result.accuracy = static_cast<double>(correct) / count;
  result.score = score_of(result.metric, result);
  return result;
}

std::optional<Evaluation> evaluate(models::Model& model,
                                   const data::Dataset& data,
                                   const EvaluateOptions& options) {
  return Evaluator(model, data, options).run();
}

}  // namespace luna::train
