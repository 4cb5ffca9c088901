#include "luna/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "config/json.h"
#include "data/counted.h"
#include "luna/convert/vit_folder.h"
#include "luna/data/tasks.h"
#include "luna/io/text_file.h"
#include "luna/models/vit_classifier.h"
#include "luna/train/feature_use.h"
#include "luna/train/run_model.h"
#include "ops/fixed_order.h"
#include "train/checkpoint.h"
#include "train/non_finite.h"
#include "train/open_folder.h"
#include "train/run_log.h"
#include "train/run_steps.h"
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
    save_start(run(), tensors_.model);
    if (const auto* pairs = data::as_translation(*splits.train)) {
      keep_tokenizer(run(), *pairs, splits.source, options.resume);
    }
    if (options.resume) resume();
    state_.threads = at::get_num_threads();
    state_.device = options.device.str();
    state_.train_samples = splits.train->size();
    if (state_.step == 0 || state_.side_by_side > 0) {
      state_.side_by_side = std::max(state_.side_by_side, options.side_by_side);
    }
    log_.emplace(run().metrics(), config, splits.train->info(), state_,
                 hooks.progress);
    form_ = model_->batch_options();
    form_.max_length = config.data.max_length;
    end_of_step_ = state_;
    steps_.emplace(step_, *model_, *splits.train, form_, config_,
                   [this](const std::string& text) { warn(text); });
  }

  TrainResult run_to_end() {
    if (state_.step == 0) {
      note_features(0);
      end_step();
    }
    TrainResult result{.end = loop()};
    steps_->stop_making();
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
    remove_old_checkpoints(run(), last_saved_, config_);
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
          end_step();
        }
        return End::kInterrupted;
      }
      steps_->make_ahead(state_.step);
      train_one();
      end_step();
      if (state_.step % config_.checkpoint_every == 0 ||
          state_.step == config_.steps) {
        save();
      }
    }
  }

  void train_one() {
    const Stopwatch watch(state_.training_seconds);
    const double waited = steps_->waited();
    state_.tokens += steps_->run(state_.step);
    state_.waiting_seconds += steps_->waited() - waited;
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
    log_->report(Phase::kTraining);
  }

  /// A checkpoint's metrics end here: a validation that follows is done again.
  void end_step() {
    state_.metrics_bytes = log_->bytes();
    end_of_step_ = state_;
  }

  void note_time(const Stopwatch& training) {
    state_.training_seconds = training.seconds();
    state_.seconds = log_->seconds();
  }

  /// Waits for the figures of the line that is under way, if there is one.
  void finish_line(const Stopwatch& training) {
    if (!line_) return;
    const Skips skips = line_->reading.skips();
    note_time(training);
    look_for_skips(line_->step, skips);
    log_->trained(line_->step, line_->tokens, line_->reading.means());
    line_.reset();
  }

  /// `skips` as they were after `step` steps.
  void look_for_skips(int64_t step, const Skips& skips) {
    if (skips.total > state_.skipped) {
      log_->skipped(step, skips.total - state_.skipped, skips.why);
      state_.skipped = skips.total;
    }
    if (skips.in_row >= kSkipLimit) {
      give_up(step - skips.in_row + kSkipLimit, skips.why);
    }
  }

  /// `step` steps were done when the limit was reached; the weights are still
  /// those before the first that was skipped.
  [[noreturn]] void give_up(int64_t step, Skips::Why why) {
    const std::vector<data::Batch> bad = steps_->batches_of(step - 1);
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
    log_->stopped(step, why, module, indices);
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

  /// How universal attention uses its features, if the model has it.
  void note_features(int64_t step) {
    log_->features(step, feature_use(*model_, *splits_.validation, form_));
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
    state_.seconds = log_->seconds();
    log_->validated(*result);
    log_->report(Phase::kValidated, &*result);
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
    remove_old_checkpoints(run(), last_saved_, config_);
    write_summary(std::nullopt);
    log_->report(Phase::kSaved);
  }

  /// Tests the averaged or else the best weights. The last step's, which they
  /// replace, are saved.
  End finish(TrainResult& result) {
    std::string tested = run().best();
    if (config_.average > 0) {
      save_average(run(), averaged_steps(run(), last_saved_, config_),
                   tensors_.model, config_);
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
    log_->tested(step, *result.test);
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
    state_.seconds = log_->seconds();
    write_summary(result.test);
    log_->report(Phase::kTested, &*result.test);
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
  int64_t last_saved_ = 0;
  data::BatchOptions form_{};
  std::optional<RunLog> log_{};
  std::optional<RunSteps> steps_{};
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
