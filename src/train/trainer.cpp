#include "luna/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "config/json.h"
#include "data/counted.h"
#include "luna/convert/vit_folder.h"
#include "luna/data/tasks.h"
#include "luna/io/atomic.h"
#include "luna/io/safetensors.h"
#include "luna/io/text_file.h"
#include "luna/models/vit_classifier.h"
#include "luna/train/feature_use.h"
#include "luna/train/run_model.h"
#include "luna/train/schedule.h"
#include "ops/fixed_order.h"
#include "train/checkpoint.h"
#include "train/device_steps.h"
#include "train/metrics_log.h"
#include "train/non_finite.h"
#include "train/open_folder.h"
#include "train/packing.h"
#include "train/prefetch.h"
#include "train/recorded_steps.h"
#include "train/run_batches.h"
#include "train/samples.h"
#include "train/stopwatch.h"
#include "train/summary.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

using End = TrainResult::End;
using Json = nlohmann::ordered_json;
using Phase = Progress::Phase;

/// Keeps the weights' draws apart from others of the same seed.
constexpr uint64_t kWeightsStream = 0x77656967687473;  // "weights"

std::shared_ptr<models::Model> make_start(const TrainConfig& config,
                                          const Splits& splits,
                                          const TrainOptions& options) {
  at::manual_seed(data::counted_bits(config.seed, kWeightsStream, 0));
  std::shared_ptr<models::Model> model =
      options.make_model
          ? options.make_model()
          : make_run_model(config.model, splits.train->info(),
                           longest_sequence(splits, config.data.max_length));
  model->to(options.device);
  return model;
}

bool is_feature_map(const std::string& name) {
  static const char* const kEndings[] = {"projection",    "projection_bias",
                                         "hidden_weight", "hidden_bias",
                                         "output_weight", "output_bias"};
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::find(std::begin(kEndings), std::end(kEndings), last) !=
         std::end(kEndings);
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, const Splits& splits,
          const TrainOptions& options, const TrainHooks& hooks)
      : config_(config),
        splits_(splits),
        hooks_(hooks),
        folder_(config, options),
        model_(make_start(config, splits, options)),
        step_(model_, config, options.objective),
        tensors_{named_state(*model_), step_.state()} {
    if (!config.repeatable) any_order_.emplace();
    save_start();
    if (const auto* pairs = data::as_translation(*splits.train)) {
      keep_tokenizer(run(), *pairs, splits.source, options.resume);
    }
    if (options.resume) resume();
    state_.threads = at::get_num_threads();
    state_.device = options.device.str();
    state_.train_samples = splits.train->size();
    log_.emplace(run().metrics(), state_.metrics_bytes);
    form_ = model_->batch_options();
    form_.max_length = config.data.max_length;
    end_of_step_ = logged_ = state_;
    watch_ = Stopwatch(state_.seconds);
    choose_steps();
  }

  TrainResult run_to_end() {
    if (state_.step == 0) {
      note_features(0);
      end_of_step_ = state_;
    }
    TrainResult result{.end = loop()};
    result.step = state_.step;
    if (result.end != End::kInterrupted) result.end = finish(result);
    if (result.end == End::kInterrupted) save();
    if (last_saved_ > 0) result.checkpoint = run().checkpoint(last_saved_);
    result.best = state_.best;
    return result;
  }

 private:
  /// A line of metrics whose figures may still be on the device.
  struct Line {
    int64_t step = 0, tokens = 0;
    Reading reading;
  };

  const RunFolder& run() const { return folder_.run; }
  bool on_cpu() const { return step_.device().is_cpu(); }

  /// Where batches are made, how they are laid out, and whether their steps
  /// are recorded.
  void choose_steps() {
    NamedTensors changed = tensors_.model;
    changed.insert(changed.end(), tensors_.optimizer.begin(),
                   tensors_.optimizer.end());
    const auto tell = [this](const std::string& text) { warn(text); };
    if (data::as_translation(*splits_.train) != nullptr) {
      if (!on_cpu()) {
        layout_ = Layout::kFewShapes;
        recorded_.emplace(step_, changed, config_, tell);
      }
      // Padded, a quarter of a batch of short sentences is padding.
      if (packs(config_, step_.device(), model_->refuses_packed(),
                /*much_padding=*/true)) {
        layout_ = Layout::kPacked;
      }
    } else if (!on_cpu() || config_.pack == "on") {
      on_device_.emplace(step_, changed, *splits_.train, form_, config_, tell);
      on_device_->choose_packing(*model_);
    }
  }

  RunBatches run_batches() const {
    return RunBatches(*splits_.train, config_, form_, layout_);
  }

  void save_start() {
    NamedTensors chosen;
    for (const auto& [name, tensor] : tensors_.model) {
      if (is_feature_map(name)) chosen.emplace_back(name, tensor);
    }
    io::write_safetensors(run().start(), chosen);
  }

  void resume() {
    const auto found = load_latest(run(), tensors_, [&](const auto& why) {
      warn(why + "; going on from the checkpoint before");
    });
    if (!found) return;
    state_ = *found;
    // A checkpoint of an older release has no score.
    if (splits_.train->info().metric == "accuracy") {
      state_.best.score = state_.best.accuracy;
    }
    last_saved_ = state_.step;
    // Who was killed after the last save may not have come to it.
    remove_old_checkpoints();
    TORCH_CHECK_VALUE(state_.train_samples == splits_.train->size(),
                      run().path(), ": expected the training data it had, ",
                      state_.train_samples, " samples, got ",
                      splits_.train->size());
    if (state_.threads != at::get_num_threads()) {
      warn(
          fmt::format("threads: the run had {}, now it has {}: the same "
                      "numbers up to rounding, not the same bits",
                      state_.threads, at::get_num_threads()));
    }
  }

  End loop() {
    std::optional<Prefetch> prefetch;
    for (bool due = validation_due();; due = validation_due()) {
      if (due && !validate()) return End::kInterrupted;
      if (config_.patience > 0 &&
          state_.validations_without_better >= config_.patience) {
        save();
        return End::kStoppedEarly;
      }
      if (state_.step == config_.steps) return End::kFinished;
      if (stop()) {
        if (line_) {
          finish_line(Stopwatch(state_.training_seconds));
          end_of_step_ = state_;
        }
        return End::kInterrupted;
      }
      if (!on_device_ && !prefetch) start_prefetch(prefetch);
      train_one(prefetch);
      end_of_step_ = state_;
      if (state_.step % config_.checkpoint_every == 0 ||
          state_.step == config_.steps) {
        save();
      }
    }
  }

  void start_prefetch(std::optional<Prefetch>& prefetch) {
    prefetch.emplace(
        [batches = run_batches()](int64_t step) mutable {
          return batches.of_step(step);
        },
        state_.step, config_.steps);
  }

  void train_one(std::optional<Prefetch>& prefetch) {
    const Stopwatch watch(state_.training_seconds);
    if (on_device_) {
      state_.tokens += on_device_->run(state_.step);
    } else {
      run_prefetched(*prefetch);
    }
    ++state_.step;
    const bool log =
        state_.step % config_.log_every == 0 || state_.step == config_.steps;
    // On the CPU looking costs nothing; a device is left to run ahead, by two
    // lines at most.
    const bool look = on_cpu() || validation_due() ||
                      state_.step % config_.checkpoint_every == 0;
    if (line_ && (log || line_->reading.arrived())) finish_line(watch);
    if (log) line_.emplace(state_.step, state_.tokens, step_.take_means());
    if (look) {
      finish_line(watch);
      look_for_skips(state_.step, step_.read().skips());
    }
    note_time(watch);
    report(Phase::kTraining, last_.loss, last_.accuracy, state_.step);
  }

  void run_prefetched(Prefetch& prefetch) {
    const double waited = prefetch.waited();
    const std::vector<data::Batch> batches = prefetch.next();
    state_.waiting_seconds += prefetch.waited() - waited;
    for (const data::Batch& batch : batches) state_.tokens += tokens(batch);
    recorded_ ? recorded_->run(state_.step, batches)
              : step_.run(state_.step, batches);
  }

  void note_time(const Stopwatch& training) {
    state_.training_seconds = training.seconds();
    state_.seconds = watch_.seconds();
  }

  /// Waits for the figures of the line that is under way, if there is one.
  void finish_line(const Stopwatch& training) {
    if (!line_) return;
    const Skips skips = line_->reading.skips();
    note_time(training);
    look_for_skips(line_->step, skips);
    write_line(*line_);
    line_.reset();
  }

  int64_t tokens(const data::Batch& batch) const {
    if (!keeps_black(config_)) {
      return batch.first.ids.ne(0).sum().item<int64_t>();
    }
    int64_t count = batch.first.lengths.sum().item<int64_t>();
    if (batch.second) count += batch.second->lengths.sum().item<int64_t>();
    return count;
  }

  /// `skips` as they were after `step` steps.
  void look_for_skips(int64_t step, const Skips& skips) {
    if (skips.total > state_.skipped) {
      log_->write({{"kind", "skipped"},
                   {"step", step},
                   {"count", skips.total - state_.skipped},
                   {"why", describe(skips.why)}});
      state_.skipped = skips.total;
      state_.metrics_bytes = log_->bytes();
    }
    if (skips.in_row >= kSkipLimit) {
      give_up(step - skips.in_row + kSkipLimit, skips.why);
    }
  }

  /// `step` steps were done when the limit was reached; the weights are still
  /// those before the first that was skipped.
  [[noreturn]] void give_up(int64_t step, Skips::Why why) {
    const std::vector<data::Batch> bad = run_batches().of_step(step - 1);
    std::vector<int64_t> indices;
    for (const data::Batch& batch : bad) {
      indices.insert(indices.end(), batch.indices.begin(), batch.indices.end());
    }
    std::string module;
    for (size_t part = 0; part < bad.size() && module.empty(); ++part) {
      step_.drop_gradients();
      module = first_non_finite(*model_, [&] {
        step_.accumulate(step - 1, static_cast<int64_t>(part), bad[part]);
      });
    }
    log_->write({{"kind", "stopped"},
                 {"step", step},
                 {"why", describe(why)},
                 {"module", module},
                 {"batch", indices}});
    const size_t shown = std::min<size_t>(indices.size(), 16);
    TORCH_CHECK(
        false, "train: stopped at step ", step, ": ", describe(why), ", ",
        kSkipLimit, " steps in a row; first at ",
        module.empty() ? "an unknown place" : module, "; batch: samples ",
        fmt::format("{}",
                    fmt::join(indices.begin(), indices.begin() + shown, ", ")),
        shown < indices.size() ? ", ..." : "", " of the training data; ",
        last_saved_ > 0 ? run().checkpoint(last_saved_) + " is sound"
                        : "nothing was saved");
  }

  void write_line(const Line& line) {
    const Means means = line.reading.means();
    const double lr = learning_rate(config_.schedule, config_.optimizer.lr,
                                    config_.steps, line.step - 1);
    const double spent = state_.training_seconds - logged_.training_seconds;
    const double steps = static_cast<double>(line.step - logged_.step);
    const double tokens = static_cast<double>(line.tokens - logged_.tokens);
    last_ = {.loss = means.loss,
             .accuracy = means.accuracy,
             .lr = lr,
             .tokens_per_s = tokens / spent,
             .steps_per_s = steps / spent};
    Json json = {{"kind", "train"},
                 {"step", line.step},
                 {"loss", means.loss},
                 {"accuracy", means.accuracy},
                 {"lr", lr},
                 {"tokens_per_s", last_.tokens_per_s},
                 {"steps_per_s", last_.steps_per_s},
                 {"seconds", state_.seconds}};
    if (scores()) json.erase("accuracy");
    log_->write(json);
    state_.metrics_bytes = log_->bytes();
    logged_ = state_;
    logged_.step = line.step;
    logged_.tokens = line.tokens;
    report(Phase::kLogged, means.loss, means.accuracy, line.step);
  }

  /// How universal attention uses its features, if the model has it.
  void note_features(int64_t step) {
    const auto side = [](const FeatureUse::Side& of) {
      return Json{{"live", of.live}, {"silent", of.silent}};
    };
    // Four decimals: the report draws it.
    constexpr double kDigits = 1e4;
    for (FeatureUse& use : feature_use(*model_, *splits_.validation, form_)) {
      for (double& u : use.u) u = std::round(u * kDigits) / kDigits;
      log_->write({{"kind", "features"},
                   {"step", step},
                   {"map", use.map},
                   {"query", side(use.query)},
                   {"key", side(use.key)},
                   {"u", use.u}});
    }
    state_.metrics_bytes = log_->bytes();
  }

  bool validation_due() const {
    return state_.step > 0 && (state_.step % config_.eval_every == 0 ||
                               state_.step == config_.steps);
  }

  EvaluateOptions evaluation(int64_t samples) const {
    return {
        .batch = config_.eval_batch > 0 ? config_.eval_batch : config_.batch,
        .samples = samples,
        .seed = static_cast<uint64_t>(config_.seed),
        .max_length = config_.data.max_length,
        .autocast = config_.autocast,
        .stop = hooks_.stop};
  }

  /// False if it was interrupted; then nothing has changed.
  bool validate() {
    if (!validation_) {
      validation_.emplace(*model_, *splits_.validation,
                          evaluation(config_.eval_samples));
    }
    const auto result = validation_->run();
    if (!result) return false;
    const Best now{state_.step, result->accuracy, result->loss, result->score};
    if (state_.best.worse_than(now, config_.best_by == "loss")) {
      state_.best = now;
      state_.validations_without_better = 0;
      save_best(run(), tensors_.model, config_, state_.best);
    } else {
      ++state_.validations_without_better;
    }
    state_.seconds = watch_.seconds();
    Json line = judged("validation", state_.step, *result);
    line["seconds"] = state_.seconds;
    log_->write(line);
    state_.metrics_bytes = log_->bytes();
    report(Phase::kValidated, result->loss, result->accuracy, state_.step,
           &*result);
    return true;
  }

  /// The state at the end of the last step: a validation that followed is
  /// done again by who resumes, to the same result.
  void save() {
    if (last_saved_ == end_of_step_.step || end_of_step_.step == 0) return;
    log_->sync();
    save_checkpoint(run().checkpoint(end_of_step_.step), tensors_,
                    end_of_step_);
    last_saved_ = end_of_step_.step;
    remove_old_checkpoints();
    write_summary(std::nullopt);
    report(Phase::kSaved, last_.loss, last_.accuracy, state_.step);
  }

  /// Whether a mean of checkpoints takes it: what an interruption saves in
  /// between must not change the result.
  bool is_averaged(int64_t step) const {
    return step % config_.checkpoint_every == 0 || step == config_.steps;
  }

  void remove_old_checkpoints() const {
    train::remove_old_checkpoints(
        run(), last_saved_, config_.keep_checkpoints, [this](int64_t step) {
          return config_.average == 0 || is_averaged(step);
        });
  }

  std::vector<int64_t> averaged_steps() const {
    std::vector<int64_t> steps = run().steps();
    std::erase_if(steps, [this](int64_t step) { return !is_averaged(step); });
    if (steps.empty()) steps = {last_saved_};  // it ended before the first
    if (std::ssize(steps) > config_.average) steps.resize(config_.average);
    return steps;
  }

  /// Tests the averaged or else the best weights. The last step's, which they
  /// replace, are saved.
  End finish(TrainResult& result) {
    std::string tested = run().best();
    if (config_.average > 0) {
      save_average(run(), averaged_steps(), tensors_.model, config_);
      tested = run().averaged();
    }
    load_tensors(tested + "/model.safetensors", tensors_.model);
    state_.best = read_best(run());
    EvaluateOptions options = evaluation(0);
    options.beam = config_.translation.beam;
    options.length_penalty = config_.translation.length_penalty;
    result.test = evaluate(*model_, *splits_.test, options);
    if (!result.test) return End::kInterrupted;
    const int64_t step = config_.average > 0 ? state_.step : state_.best.step;
    log_->write(judged("test", step, *result.test));
    note_features(step);
    log_->sync();
    const auto* const pairs = data::as_translation(*splits_.test);
    io::write_text(run().samples(),
                   pairs != nullptr
                       ? translation_samples_text(*model_, *pairs)
                       : samples_text(*model_, *splits_.test, form_));
    if (config_.model.base.empty() && config_.model.patch > 0) {
      convert::write_vit_folder(
          run().hugging_face(),
          dynamic_cast<const models::VitClassifier&>(*model_).vit(),
          data::class_names(splits_.train->info()));
    }
    state_.seconds = watch_.seconds();
    write_summary(result.test);
    report(Phase::kTested, result.test->loss, result.test->accuracy,
           state_.step, &*result.test);
    return result.end;
  }

  void write_summary(const std::optional<Evaluation>& test) const {
    const Json json = summary_json(config_, state_, *model_, splits_, test);
    io::write_text(run().summary(), json.dump(2) + "\n");
  }

  bool stop() const { return hooks_.stop && hooks_.stop(); }

  void warn(const std::string& text) const {
    if (hooks_.warn) hooks_.warn(text);
  }

  bool scores() const { return splits_.train->info().classes == 1; }

  /// A line of metrics.
  static Json judged(const char* kind, int64_t step, const Evaluation& e) {
    Json line = {{"kind", kind}, {"step", step}, {"loss", e.loss}};
    if (e.classes != 1) line["accuracy"] = e.accuracy;
    if (e.metric != "accuracy") line[e.metric] = e.score;
    if (e.metric == "pearson") line["spearman"] = e.spearman;
    return line;
  }

  void report(Phase phase, double loss, double accuracy, int64_t step,
              const Evaluation* judged = nullptr) const {
    if (!hooks_.progress) return;
    Progress progress = last_;
    progress.phase = phase;
    progress.step = step;
    progress.steps = config_.steps;
    progress.loss = loss;
    progress.accuracy = accuracy;
    progress.metric = judged != nullptr ? judged->metric
                      : scores()        ? ""
                                        : "accuracy";
    progress.score = judged != nullptr ? judged->score : accuracy;
    progress.seconds = watch_.seconds();
    const double mean = state_.training_seconds /
                        static_cast<double>(std::max<int64_t>(1, state_.step));
    progress.seconds_left =
        mean * static_cast<double>(config_.steps - state_.step);
    hooks_.progress(progress);
  }

  TrainConfig config_;
  Splits splits_;
  TrainHooks hooks_;
  OpenFolder folder_;
  std::optional<ops::AnyOrder> any_order_{};
  std::shared_ptr<models::Model> model_;
  TrainStep step_;
  RunTensors tensors_;
  RunState state_{};        ///< now
  RunState end_of_step_{};  ///< what a checkpoint holds
  RunState logged_{};       ///< at the last line of metrics
  Progress last_{};
  int64_t last_saved_ = 0;
  data::BatchOptions form_{};
  Stopwatch watch_{};
  std::optional<MetricsLog> log_{};
  /// On a device one of them, the latter of translation; on the CPU neither,
  /// but the former where a classifier's sequences are packed.
  std::optional<DeviceSteps> on_device_{};
  std::optional<RecordedSteps> recorded_{};
  Layout layout_ = Layout::kPadded;
  std::optional<Evaluator> validation_{};
  std::optional<Line> line_{};
};

}  // namespace

int64_t longest_sequence(const Splits& splits, int64_t max_length) {
  int64_t longest = 0;
  for (const auto& split : splits.all()) {
    longest = std::max(longest, split->longest());
  }
  return max_length > 0 ? std::min(longest, max_length) : longest;
}

TrainResult train(const TrainConfig& config, const Splits& splits,
                  const TrainOptions& options, const TrainHooks& hooks) {
  const auto all = splits.all();
  for (size_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK_VALUE(all[i] && all[i]->size() > 0,
                      "train: ", data::kSplitNames[i],
                      ": expected at least one sample, got none");
  }
  TrainConfig resolved = config;
  // Stated, so that the weights can be used without the data.
  if (config.model.max_positions == 0 && config.model.base.empty() &&
      config.model.patch == 0) {
    resolved.model.max_positions =
        longest_sequence(splits, config.data.max_length) + 2;
  }
  return Trainer(resolved, splits, options, hooks).run_to_end();
}

std::shared_ptr<models::Model> load_best(const RunFolder& run,
                                         const TrainConfig& config,
                                         const data::TaskInfo& task) {
  auto model = make_run_model(config.model, task, 0);
  const std::string folder =
      std::filesystem::exists(run.averaged()) ? run.averaged() : run.best();
  load_tensors(folder + "/model.safetensors", named_state(*model));
  model->eval();
  return model;
}

}  // namespace luna::train
