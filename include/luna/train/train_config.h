#pragma once

#include <luna/models/model_config.h>

namespace luna::train {

struct DataConfig {
  std::string task = "listops";
  std::string path{};
  int64_t samples = 0;
  config::OptionMap settings{};
  int64_t max_length = 0;
  bool augment = false;
  double mixup = 0.0;
  double cutmix = 0.0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.task, {.name = "task", .help = "a task of luna data"});
    visit(self.path,
          {.name = "path",
           .help = "folder with the packed splits or the task's own files; "
                   "--data overrides"});
    visit(self.samples, {.name = "samples",
                         .help = "at most this many in each split; 0: all",
                         .minimum = 0});
    visit(self.settings,
          {.name = "settings", .help = "of the task's generator"});
    visit(self.max_length, {.name = "max_length",
                            .help = "cut sequences to this; 0: not",
                            .minimum = 0});
    visit(self.augment, {.name = "augment",
                         .help = "pictures: flip and shift while training"});
    visit(self.mixup, {.name = "mixup",
                       .help = "a ViT's pictures: the share that is mixed "
                               "with another, and its label with that one's",
                       .minimum = 0,
                       .maximum = 1});
    visit(self.cutmix, {.name = "cutmix",
                        .help = "a ViT's pictures: the share that gets a "
                                "piece of another, and of its label",
                        .minimum = 0,
                        .maximum = 1});
  }
};

struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double feature_map_lr = 1.0;
  double sigma = 0.01;
  double clip_each = 0.0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.name, {.name = "name",
                      .help = "adam and apollo add weight decay to the "
                              "gradient, adamw to the weights",
                      .choices = {"adam", "adamw", "apollo"}});
    visit(self.lr,
          {.name = "lr", .help = "highest learning rate", .minimum = 0});
    visit(self.beta1, {.name = "beta1",
                       .help = "decay of the first moment",
                       .minimum = 0,
                       .maximum = 1});
    visit(self.beta2, {.name = "beta2",
                       .help = "decay of the second moment",
                       .minimum = 0,
                       .maximum = 1});
    visit(self.eps, {.name = "eps",
                     .help = "added to the root of the second moment; apollo: "
                             "to the direction's norm, divided by sigma",
                     .minimum = 0});
    visit(self.weight_decay,
          {.name = "weight_decay", .help = "weight decay", .minimum = 0});
    visit(self.feature_map_lr,
          {.name = "feature_map_lr",
           .help = "learning rate of attention's feature maps, as a multiple "
                   "of the others'",
           .minimum = 0});
    visit(self.sigma,
          {.name = "sigma", .help = "apollo: least curvature", .minimum = 0});
    visit(self.clip_each, {.name = "clip_each",
                           .help = "greatest norm of each parameter's "
                                   "gradient; 0: any",
                           .minimum = 0});
  }
};

struct ScheduleConfig {
  std::string name = "cosine";
  int64_t warmup = 0;
  double start = 0.0;
  double floor = 0.0;
  double power = 1.0;
  std::string milestones{};
  double factor = 0.1;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.name, {.name = "name",
                      .help = "of the learning rate after the warm-up",
                      .choices = {"constant", "cosine", "inverse_sqrt",
                                  "polynomial", "milestones"}});
    visit(self.warmup,
          {.name = "warmup", .help = "steps of linear warm-up", .minimum = 0});
    visit(self.start, {.name = "start",
                       .help = "where the warm-up starts, as a share of lr",
                       .minimum = 0,
                       .maximum = 1});
    visit(self.floor, {.name = "floor",
                       .help = "where the schedule ends, as a share of lr",
                       .minimum = 0,
                       .maximum = 1});
    visit(self.power,
          {.name = "power", .help = "of the polynomial", .minimum = 0});
    visit(self.milestones,
          {.name = "milestones",
           .help = "steps at which lr is multiplied by factor, with commas "
                   "between them"});
    visit(self.factor, {.name = "factor",
                        .help = "of the milestones",
                        .minimum = 0,
                        .maximum = 1});
  }
};

/// Read where the task is translation.
struct TranslationConfig {
  int64_t batch_tokens = 4096;
  int64_t beam = 4;
  double length_penalty = 1.0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.batch_tokens,
          {.name = "batch_tokens",
           .help = "most tokens of either language in a batch of training, "
                   "padding counted",
           .minimum = 1});
    visit(self.beam, {.name = "beam",
                      .help = "of the test; validations are greedy",
                      .minimum = 1});
    visit(self.length_penalty,
          {.name = "length_penalty",
           .help = "of the test: scores are divided by length to this power"});
  }
};

/// A run: one JSON file. Every field is stated here once.
struct TrainConfig {
  std::string name{};
  DataConfig data{};
  models::ModelConfig model{};
  OptimizerConfig optimizer{};
  ScheduleConfig schedule{};
  TranslationConfig translation{};
  int64_t steps = 1000;
  int64_t batch = 32;
  int64_t accumulate = 1;
  double clip = 0.0;
  double label_smoothing = 0.0;
  std::string autocast = "none";
  std::string pack = "auto";
  bool repeatable = true;
  int64_t seed = 1;
  int64_t log_every = 50;
  int64_t eval_every = 500;
  int64_t eval_batch = 0;
  int64_t eval_samples = 0;
  int64_t checkpoint_every = 500;
  int64_t keep_checkpoints = 2;
  int64_t patience = 0;
  std::string best_by = "metric";
  int64_t average = 0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor&& visit) {
    visit(self.name, {.name = "name", .help = "what the run is called"});
    visit(self.data, {.name = "data", .help = "what is learnt"});
    visit(self.model, {.name = "model", .help = "what learns it"});
    visit(self.optimizer, {.name = "optimizer", .help = "how a step is made"});
    visit(self.schedule, {.name = "schedule", .help = "the learning rate"});
    visit(self.translation,
          {.name = "translation", .help = "of translation alone"});
    visit(self.steps,
          {.name = "steps", .help = "optimizer steps", .minimum = 1});
    visit(self.batch,
          {.name = "batch",
           .help = "samples in a batch; of translation, in one of evaluation",
           .minimum = 1});
    visit(self.accumulate, {.name = "accumulate",
                            .help = "batches whose gradients make one step",
                            .minimum = 1});
    visit(self.clip, {.name = "clip",
                      .help = "greatest norm of the gradient; 0: any",
                      .minimum = 0});
    visit(self.label_smoothing, {.name = "label_smoothing",
                                 .help = "share given to all classes",
                                 .minimum = 0,
                                 .maximum = 1});
    visit(self.autocast, {.name = "autocast",
                          .help = "lower precision for matrix products",
                          .choices = {"none", "bf16"}});
    visit(self.pack,
          {.name = "pack",
           .help = "sequences one after the other in place of padding; auto: "
                   "on a GPU, where much would be padding",
           .choices = {"auto", "on", "off"}});
    visit(self.repeatable,
          {.name = "repeatable",
           .help = "the same bits each time; false: softmax of packed "
                   "sequences on a GPU adds its gradients in any order, which "
                   "is faster"});
    visit(self.seed, {.name = "seed",
                      .help = "of weights, data order and dropout",
                      .minimum = 0});
    visit(self.log_every, {.name = "log_every",
                           .help = "steps between lines of metrics",
                           .minimum = 1});
    visit(self.eval_every, {.name = "eval_every",
                            .help = "steps between validations",
                            .minimum = 1});
    visit(self.eval_batch, {.name = "eval_batch",
                            .help = "samples in a batch of evaluation; 0: as "
                                    "in training",
                            .minimum = 0});
    visit(self.eval_samples, {.name = "eval_samples",
                              .help = "samples of each validation; 0: all",
                              .minimum = 0});
    visit(self.checkpoint_every, {.name = "checkpoint_every",
                                  .help = "steps between checkpoints",
                                  .minimum = 1});
    visit(self.keep_checkpoints, {.name = "keep_checkpoints",
                                  .help = "how many are kept beside the best",
                                  .minimum = 1});
    visit(self.patience, {.name = "patience",
                          .help = "stop after this many validations without "
                                  "a better one; 0: never",
                          .minimum = 0});
    visit(self.best_by, {.name = "best_by",
                         .help = "what makes a validation the best: the "
                                 "task's metric, then loss; or loss alone",
                         .choices = {"metric", "loss"}});
    visit(self.average, {.name = "average",
                         .help = "the mean of the last so many checkpoints "
                                 "is what is tested; 0: the best weights are",
                         .minimum = 0});
  }
};

}  // namespace luna::train
