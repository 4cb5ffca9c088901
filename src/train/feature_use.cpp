#include "luna/train/feature_use.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <luna/data/batch.h>
#include <luna/models/model.h>
#include <luna/nn/feature_map.h>

#include <algorithm>
#include <memory>

#include "luna/data/translation.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

constexpr int64_t kSamples = 32;
constexpr int64_t kTokens = 256;  // of one sample

/// What one map was seen to do, in sums.
class Watcher {
 public:
  Watcher(std::string name, std::shared_ptr<nn::FeatureMapImpl> map)
      : name_(std::move(name)), map_(std::move(map)) {
    map_->watch = [this](const at::Tensor& query, const at::Tensor& key,
                         const nn::AttendOptions& options) {
      query_.add(*map_, chosen(query, options.query_mask));
      key_.add(*map_, chosen(key, options.key_weight));
    };
  }
  ~Watcher() { map_->watch = nullptr; }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  FeatureUse use() const {
    FeatureUse use{.map = name_, .query = query_.side(), .key = key_.side()};
    std::vector<at::Tensor> both = query_.u;
    both.insert(both.end(), key_.u.begin(), key_.u.end());
    if (both.empty()) return use;
    const at::Tensor sorted = std::get<0>(at::cat(both).sort());
    if (sorted.numel() == 0) return use;  // pictures without a token
    const double count = static_cast<double>(sorted.numel());
    for (int64_t i = 0; i < kQuantiles; ++i) {
      const double level = (static_cast<double>(i) + 0.5) / kQuantiles;
      use.u.push_back(
          sorted[static_cast<int64_t>(level * count)].item<double>());
    }
    return use;
  }

 private:
  struct Sums {
    /// x [1,H,n,d].
    void add(nn::FeatureMapImpl& map, const at::Tensor& x) {
      u.push_back(map.projections(x).flatten().to(at::kCPU, at::kDouble));
      const at::Tensor alive = map.forward(x).ne(0);
      live += alive.sum().item<double>();
      features += static_cast<double>(alive.numel());
      silent += alive.any(-1).logical_not().sum().item<double>();
      tokens += static_cast<double>(alive.numel() / alive.size(-1));
    }
    FeatureUse::Side side() const {
      return {live / std::max(1.0, features), silent / std::max(1.0, tokens)};
    }

    std::vector<at::Tensor> u{};
    double live = 0, features = 0, silent = 0, tokens = 0;
  };

  /// Up to kTokens tokens of x [1,H,n,d], of those that take part.
  at::Tensor chosen(const at::Tensor& x,
                    const std::optional<at::Tensor>& part) const {
    const auto dtype = map_->projection.scalar_type();
    at::Tensor tokens = at::arange(x.size(2), x.options().dtype(at::kLong));
    // Where few rows of a layer are read, fewer ask than there are.
    if (part && part->dim() == 2 && part->size(1) == x.size(2)) {
      tokens = tokens.masked_select(part->select(0, 0).gt(0));
    }
    const int64_t every =
        std::max<int64_t>(1, (tokens.size(0) + kTokens - 1) / kTokens);
    return x.index_select(2, tokens.slice(0, 0, std::nullopt, every)).to(dtype);
  }

  std::string name_;
  std::shared_ptr<nn::FeatureMapImpl> map_;
  Sums query_{}, key_{};
};

}  // namespace

std::vector<FeatureUse> feature_use(models::Model& model,
                                    const data::Dataset& data,
                                    const data::BatchOptions& form) {
  if (data::as_translation(data) != nullptr) return {};
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (const auto& module : model.named_modules()) {
    auto map = std::dynamic_pointer_cast<nn::FeatureMapImpl>(module.value());
    if (map) {
      watchers.push_back(
          std::make_unique<Watcher>(module.key(), std::move(map)));
    }
  }
  if (watchers.empty()) return {};
  const at::NoGradGuard no_grad;
  const c10::Device device = model.parameters().front().device();
  const bool was_training = model.is_training();
  model.eval();
  const int64_t count = std::min(kSamples, data.size());
  for (int64_t i = 0; i < count; ++i) {
    // Alone: nothing is padded.
    const int64_t index = i * data.size() / count;
    model.forward(
        to_device(make_batch(data, std::span(&index, 1), form), device));
  }
  model.train(was_training);
  std::vector<FeatureUse> uses;
  for (const auto& watcher : watchers) uses.push_back(watcher->use());
  return uses;
}

}  // namespace luna::train
