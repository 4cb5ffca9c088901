#include "luna/distill/conversion.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "convert/weight_names.h"
#include "data/counted.h"
#include "luna/distill/stage_one.h"
#include "luna/distill/stage_two.h"
#include "luna/io/atomic.h"
#include "luna/io/safetensors.h"
#include "luna/nn/attention_registry.h"
#include "luna/nn/feature_map.h"
#include "luna/train/run_model.h"
#include "luna/train/trainer.h"
#include "train/stopwatch.h"

namespace luna::distill {
namespace {

namespace fs = std::filesystem;
using convert::HuggingFaceModel;
using models::LayeredModel;

/// Keeps phi's draws apart from others of the same seed.
constexpr uint64_t kStartStream = 0x7068690a;
/// Samples over which heads are compared.
constexpr int64_t kComparedSamples = 256;
/// Samples by which bases are balanced.
constexpr int64_t kBalancedSamples = 512;

/// Of the fit: sharp heads (one token each) lose whole rows without it, and in
/// the end all of them (docs/results/conversion.md).
constexpr double kFitFloor = 1e-4;
constexpr double kLeastBias = 1e-3;

/// Everything that the stages share.
class Pipeline {
 public:
  explicit Pipeline(const ConversionOptions& options)
      : options_(options), work_(options.out) {
    result_.options = options;
    result_.task = options.task;
    result_.attention = options.attention;
  }

  Conversion run() {
    open_teacher();
    judge("original", *teacher_);
    if (stopped()) return result_;
    swap();
    if (stopped()) return result_;
    stage_one();
    if (stopped()) return result_;
    stage_two();
    if (stopped()) return result_;
    write();
    return result_;
  }

 private:
  bool stopped() {
    result_.interrupted = options_.stop && options_.stop();
    return result_.interrupted;
  }

  void say(const std::string& text) const {
    if (options_.say) options_.say(text);
  }

  void open_teacher() {
    original_ =
        std::make_unique<HuggingFaceModel>(train::open_trained(options_.model));
    result_.architecture = original_->architecture();
    check_softmax();
    splits_ = train::open_task(*original_, options_.task,
                               {.data = options_.data,
                                .max_length = options_.max_length,
                                .samples = options_.samples});
    // A run's weights as a folder: the student is opened from it.
    original_->write(source());
    result_.metric = splits_.train->info().metric;
    teacher_ = train::as_classifier(*original_);
    teacher_->to(options_.device);
    const auto& shape =
        attention_of(teacher_->layers().front()).options().shape;
    settle_options(shape.embed_dim / shape.num_heads);
  }

  /// There is nothing to make linear, and no softmax row to learn from, in a
  /// model that is linear already.
  void check_softmax() const {
    const std::string& attention =
        original_->bert().is_empty()
            ? original_->vit()->config().layer.attention
            : original_->bert()->config().layer.attention;
    const train::RunFolder run(options_.model);
    TORCH_CHECK_VALUE(
        attention == "softmax", run.config(),
        run.holds_run() ? ": model.attention" : ": luna: attention",
        ": expected softmax, got ", attention);
  }

  static nn::MultiHeadAttentionImpl& attention_of(
      const models::EncoderLayer& layer) {
    return dynamic_cast<nn::MultiHeadAttentionImpl&>(*layer->attention());
  }

  /// What the start from softmax does best with: many projections of each
  /// head's own, one psi (docs/results/conversion.md has the figures). A random
  /// one has the mechanism's own sizes: one psi may be 0 everywhere.
  void settle_options(int64_t head_width) {
    if (options_.attention != "universal" || options_.start != "softmax") {
      return;
    }
    // Narrow heads lose what few projections cannot tell apart: with 128 of
    // them MiniLM's heads of 32 keep 97 % of SICK and MRPC, with 256 98.5 %.
    options_.attention_options.try_emplace(
        "M", std::max<int64_t>(256, 4 * head_width));
    options_.attention_options.try_emplace("L", int64_t{1});
    options_.attention_options.try_emplace("per_head", true);
    options_.attention_options.try_emplace("hidden", int64_t{32});
    result_.options = options_;
  }

  std::string source() const { return work_.file("original"); }

  void judge(const std::string& name, LayeredModel& model) {
    const auto test = train::evaluate(model, *splits_.test,
                                      {.batch = options_.batch,
                                       .autocast = options_.autocast,
                                       .stop = options_.stop});
    if (!test) return;
    result_.milestones.push_back({name, *test, watch_.seconds()});
    watch_ = train::Stopwatch();
    say(fmt::format("{}: {} {:.4f}", name, result_.metric, test->score));
  }

  void swap() {
    at::manual_seed(data::counted_bits(options_.seed, kStartStream, 0));
    converted_ = std::make_unique<HuggingFaceModel>(HuggingFaceModel::open(
        source(), {.attention = options_.attention,
                   .attention_options = options_.attention_options}));
    learner_ = train::as_classifier(*converted_);
    const bool from_softmax = starts_from_softmax();
    if (from_softmax) {
      for (const models::EncoderLayer& layer : learner_->layers()) {
        nn::start_from_softmax(
            dynamic_cast<nn::FeatureMapImpl&>(*attention_of(layer).heads()));
      }
    }
    learner_->to(options_.device);
    if (options_.attention == "softmax") return judge("swapped", *learner_);
    student_.emplace(teacher_, *learner_, options_.bases);
    for (const auto& [name, tensor] : student_->parameters()) {
      result_.stage_one_parameters += tensor.numel();
    }
    if (from_softmax && options_.bases) {
      student_->balance(first_batches(
          *student_, *splits_.train, kBalancedSamples, options_.batch, seed()));
      student_->fold();
    }
    check_alive();
    judge("swapped", *learner_);
    result_.before = divergence();
    save_start();
    if (!from_softmax || options_.fit_steps == 0) return;
    train_student(*student_, *splits_.train,
                  {.steps = options_.fit_steps,
                   .batch = options_.batch,
                   .lr = options_.fit_lr,
                   .gradient_floor = kFitFloor},
                  stage_one_options("start"));
    student_->fold();
    judge("fitted", *learner_);
  }

  bool starts_from_softmax() const {
    return options_.start == "softmax" && options_.attention == "universal";
  }

  void check_alive() {
    const auto batch = first_batches(*student_, *splits_.train, options_.batch,
                                     options_.batch, seed());
    const at::Tensor dead = student_->alive(batch.front()).logical_not();
    const auto count = dead.sum().item<int64_t>();
    TORCH_CHECK_VALUE(
        count == 0,
        "convert: expected a start in which every head has "
        "features other than 0, got ",
        count, " of ", dead.numel(),
        " heads without one, which could never learn; try --start softmax, "
        "more psi (--set L=8) or another --seed");
  }

  uint64_t seed() const { return static_cast<uint64_t>(options_.seed); }

  std::vector<std::vector<double>> divergence() {
    return head_divergence(*student_, *splits_.validation, kComparedSamples,
                           options_.batch);
  }

  convert::Family family() const {
    return converted_->bert().is_empty() ? convert::Family::kVit
                                         : convert::Family::kBert;
  }

  void save_start() const {
    io::NamedTensors maps;
    for (const auto& item : learner_->named_parameters()) {
      if (item.key().find(".feature_map.") != std::string::npos) {
        maps.emplace_back(
            convert::with_prefix(family(), converted_->architecture(),
                                 convert::their_name(family(), item.key())),
            item.value().detach().cpu());
      }
    }
    if (!maps.empty())
      io::write_safetensors(work_.file("start.safetensors"), maps);
  }

  StageOneOptions stage_one_options(const std::string& name) const {
    return {.loss = options_.stage_one_loss == "outputs"
                        ? StageOneLoss::kOutputs
                        : StageOneLoss::kRows,
            .seed = seed(),
            .autocast = options_.autocast,
            .least_bias = starts_from_softmax() ? kLeastBias : 0.0,
            .validation = splits_.validation.get(),
            .stop = options_.stop,
            .progress = [this, name](int64_t step, int64_t steps, double loss) {
              say(fmt::format("{}: step {}/{}  loss {:.4f}", name, step, steps,
                              loss));
            }};
  }

  void stage_one() {
    if (!student_) return;
    const int64_t size = splits_.train->size();
    result_.stage_one_losses =
        train_student(*student_, *splits_.train,
                      {.steps = options_.stage_one_epochs *
                                ((size + options_.batch - 1) / options_.batch),
                       .batch = options_.batch,
                       .lr = options_.stage_one_lr},
                      stage_one_options("stage 1"));
    student_->fold();
    result_.after = divergence();
    judge("stage 1", *learner_);
  }

  train::TrainConfig stage_two_config() const {
    train::TrainConfig config;
    config.name = options_.task + "-" + options_.attention;
    const bool pictures = splits_.train->info().height > 0;
    config.data = {.task = options_.task,
                   .path = options_.data,
                   .samples = options_.samples,
                   .max_length = pictures ? 0 : options_.max_length,
                   .augment = pictures};
    config.model.base = source();
    config.model.attention = options_.attention;
    config.model.attention_options = options_.attention_options;
    config.optimizer = {
        .lr = options_.stage_two_lr, .beta2 = 0.999, .weight_decay = 0.01};
    const int64_t epoch =
        (splits_.train->size() + options_.batch - 1) / options_.batch;
    config.steps = options_.stage_two_epochs * epoch;
    config.schedule = {.name = "polynomial", .warmup = config.steps / 10};
    config.batch = options_.batch;
    config.clip = 1.0;
    config.autocast = options_.autocast;
    config.seed = options_.seed;
    config.eval_every = std::max<int64_t>(1, epoch / 4);
    config.checkpoint_every = config.steps;
    config.keep_checkpoints = 1;
    config.patience = options_.patience;
    return config;
  }

  void stage_two() {
    if (options_.stage_two_epochs == 0) return;
    student_.reset();
    const auto done = train::train(
        stage_two_config(), splits_,
        {.folder = work_.file("stage2"),
         .device = options_.device,
         .make_model = [this] { return learner_; },
         .objective =
             stage_two_objective(learner_, teacher_,
                                 {.teacher_weight = options_.teacher_weight,
                                  .temperature = options_.temperature,
                                  .states_weight = options_.states_weight})},
        {.progress =
             [this](const train::Progress& p) {
               if (p.phase != train::Progress::Phase::kValidated) return;
               say(fmt::format("stage 2: step {}/{}  validation {} {:.4f}",
                               p.step, p.steps, p.metric, p.score));
             },
         .stop = options_.stop});
    if (done.end == train::TrainResult::End::kInterrupted) return;
    result_.stage_two_step = done.best.step;
    result_.milestones.push_back({"stage 2", *done.test, watch_.seconds()});
    say(fmt::format("stage 2: {} {:.4f}", result_.metric, done.test->score));
  }

  void write() {
    converted_->module().to(c10::Device(c10::kCPU));
    converted_->module().eval();
    converted_->write(options_.out);
    const std::string start = work_.file("start.safetensors");
    if (fs::exists(start)) fs::copy(start, options_.out);
  }

  ConversionOptions options_;
  /// What the stages write on the way; gone with the pipeline.
  io::AtomicFolder work_;
  Conversion result_{};
  train::Stopwatch watch_{};
  data::Splits splits_{};
  std::unique_ptr<HuggingFaceModel> original_{}, converted_{};
  std::shared_ptr<LayeredModel> teacher_{}, learner_{};
  std::optional<Student> student_{};
};

}  // namespace

const Milestone* Conversion::find(const std::string& name) const {
  for (const Milestone& milestone : milestones) {
    if (milestone.name == name) return &milestone;
  }
  return nullptr;
}

double Conversion::kept(const std::string& name) const {
  const Milestone *now = find(name), *original = find("original");
  if (now == nullptr || original == nullptr) return 0;
  return now->test.score / original->test.score;
}

Conversion convert_model(const ConversionOptions& options) {
  io::make_folders_above(options.out);
  return Pipeline(options).run();
}

}  // namespace luna::distill
