#include "luna/bench/model_bench.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <set>

#include "luna/bench/dtype.h"
#include "luna/convert/hugging_face.h"

namespace luna::bench {
namespace {

using Clock = std::chrono::steady_clock;
using convert::HuggingFaceModel;

const models::EncoderLayerOptions& layer_of(const HuggingFaceModel& model) {
  return model.bert().is_empty() ? model.vit()->config().layer
                                 : model.bert()->config().layer;
}

std::int64_t layers_of(const HuggingFaceModel& model) {
  return model.bert().is_empty() ? model.vit()->config().layers
                                 : model.bert()->config().layers;
}

std::int64_t weight_bytes(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const auto& tensor : module.parameters()) bytes += tensor.nbytes();
  for (const auto& tensor : module.buffers()) bytes += tensor.nbytes();
  return bytes;
}

/// The model with that attention: the folder's own options if it is its own.
HuggingFaceModel open_with(const std::string& folder, const std::string& name,
                           const std::string& own, c10::ScalarType dtype) {
  convert::OpenOptions options;
  if (name != own) options.attention = name;
  auto model = HuggingFaceModel::open(folder, options);
  model.module().to(dtype);
  return model;
}

/// The side of the square of patches with about so many tokens.
std::int64_t patches_a_side(std::int64_t length) {
  const auto root = std::sqrt(static_cast<double>(length - 1));
  return std::max<std::int64_t>(1, std::llround(root));
}

/// What the model is given: ids [B,n], or pixels [B,C,s,s].
at::Tensor make_input(const HuggingFaceModel& model, std::int64_t batch,
                      std::int64_t length, c10::ScalarType dtype) {
  if (!model.bert().is_empty()) {
    return at::randint(model.bert()->config().vocabulary, {batch, length},
                       at::kLong);
  }
  const auto& config = model.vit()->config();
  const auto side = patches_a_side(length) * config.patch_size;
  return at::randn({batch, config.channels, side, side}, dtype);
}

Contestant make_contestant(const HuggingFaceModel& model,
                           const std::string& name, const at::Tensor& input) {
  return {name,
          [bert = model.bert(), vit = model.vit(), input]() mutable {
            at::NoGradGuard no_grad;
            if (bert.is_empty()) {
              vit(input);
            } else {
              bert(models::BertInput{input});
            }
          },
          {}};
}

std::vector<std::string> line_up(const Settings& settings,
                                 const std::string& own) {
  std::vector<std::string> names = {std::string(kReference)};
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  add(own);
  for (const std::string& name : settings.attentions) add(name);
  if (names.size() == 1) names.emplace_back("universal");
  return names;
}

/// Lengths that can be: a ViT's are squares of patches and [CLS].
std::vector<std::int64_t> possible_lengths(const Settings& settings,
                                           const HuggingFaceModel& model) {
  if (!model.bert().is_empty()) return settings.lengths;
  std::set<std::int64_t> lengths;
  for (const std::int64_t length : settings.lengths) {
    const auto side = patches_a_side(length);
    lengths.insert(side * side + 1);
  }
  return {lengths.begin(), lengths.end()};
}

struct Case {
  std::string name;
  std::int64_t length, batch;
  std::int64_t bytes;  ///< of weights and input
};

}  // namespace

Settings model_settings(bool quick) {
  Settings settings = quick ? quick_settings() : Settings{};
  settings.tokens = 4096;
  settings.lengths = {128, 256, 512, 1024, 2048, 4096};
  settings.modes = {Mode::kForward};
  settings.plain = "none";
  return settings;
}

Results bench_model(const Settings& settings, const Hooks& hooks) {
  check_settings(settings);
  const std::string& folder = settings.model;
  const auto dtype = parse_dtype(settings.dtype);
  const auto original = HuggingFaceModel::open(folder);
  const auto layer = layer_of(original);
  Results results = start_results(settings);
  Settings& done = results.settings;
  done.attentions = line_up(settings, layer.attention);
  done.lengths = possible_lengths(settings, original);
  done.heads = layer.heads;
  done.width = layer.width / layer.heads;
  done.modes = {Mode::kForward};
  done.model = fmt::format("{} of {}, {} layers", original.architecture(),
                           folder, layers_of(original));

  std::vector<HuggingFaceModel> models;
  for (const std::string& name : done.attentions) {
    models.push_back(open_with(folder, name, layer.attention, dtype));
  }
  std::vector<Case> cases;
  std::vector<Contestant> contestants;
  for (const std::int64_t length : done.lengths) {
    const auto& bert = original.bert();
    if (!bert.is_empty() && length > bert->config().positions) {
      for (const std::string& name : done.attentions) {
        results.skipped.push_back({name, Mode::kForward, length,
                                   fmt::format("the model has {} positions "
                                               "(max_position_embeddings)",
                                               bert->config().positions)});
      }
      continue;
    }
    const auto batch = std::max<std::int64_t>(1, settings.tokens / length);
    const auto input = make_input(original, batch, length, dtype);
    for (std::size_t i = 0; i < models.size(); ++i) {
      const auto& name = done.attentions[i];
      const auto bytes = weight_bytes(models[i].module()) +
                         static_cast<std::int64_t>(input.nbytes());
      cases.push_back({name, length, batch, bytes});
      contestants.push_back(make_contestant(models[i], name, input));
    }
  }

  const auto start = Clock::now();
  std::size_t runs = 0;
  RaceOptions options;
  options.repeat = settings.repeat;
  options.budget = settings.budget;
  options.stop = hooks.stop;
  options.enter = [&](std::size_t i) {
    const std::chrono::duration<double> spent = Clock::now() - start;
    if (spent.count() < settings.budget) return true;
    results.skipped.push_back(
        {cases[i].name, Mode::kForward, cases[i].length,
         fmt::format("the time budget of {:g} s", settings.budget)});
    return false;
  };
  options.after_run = [&](std::size_t i, int round, double seconds) {
    const auto all = static_cast<double>(cases.size()) * (settings.repeat + 1);
    hooks.progress({static_cast<double>(++runs) / all, cases[i].name,
                    Mode::kForward, cases[i].length, round, seconds});
  };
  const auto outcomes = race(contestants, options);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    if (outcomes[i].time.runs == 0) continue;
    results.measurements.push_back({c.name, Mode::kForward, c.length, c.batch,
                                    outcomes[i].time,
                                    outcomes[i].peak + c.bytes});
  }
  results.complete = !hooks.stop();
  return results;
}

}  // namespace luna::bench
