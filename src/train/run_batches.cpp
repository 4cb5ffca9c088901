#include "train/run_batches.h"

namespace luna::train {

RunBatches::RunBatches(const data::Dataset& data, const TrainConfig& config,
                       const data::BatchOptions& form, Layout layout)
    : data_(data),
      pairs_(data::as_translation(data)),
      config_(config),
      form_(form),
      layout_(layout) {
  form_.augment = config.data.augment;
  form_.mixup = config.data.mixup;
  form_.cutmix = config.data.cutmix;
  if (pairs_ == nullptr) {
    order_.emplace(data.size(), config.batch, config.seed);
    return;
  }
  const bool packed = layout == Layout::kPacked;
  token_order_.emplace(pairs_->pairs(), config.translation.batch_tokens,
                       config.seed, packed);
  if (packed) {
    packed_shape_ =
        data::packed_shape(pairs_->pairs(), token_order_->batches());
  }
}

data::Batch RunBatches::translation(int64_t number) {
  const std::vector<int64_t>& indices = token_order_->batch(number);
  if (layout_ == Layout::kPacked) {
    return data::make_packed_translation_batch(
        pairs_->pairs(), indices, pairs_->specials(), packed_shape_);
  }
  std::optional<data::BatchShape> shape;
  if (layout_ == Layout::kFewShapes) {
    shape = data::token_batch_shape(pairs_->pairs(), indices,
                                    config_.translation.batch_tokens);
  }
  return data::make_translation_batch(pairs_->pairs(), indices,
                                      pairs_->specials(), shape);
}

std::vector<data::Batch> RunBatches::of_step(int64_t step) {
  std::vector<data::Batch> batches;
  for (int64_t part = 0; part < config_.accumulate; ++part) {
    const int64_t number = step * config_.accumulate + part;
    batches.push_back(pairs_ != nullptr
                          ? translation(number)
                          : make_batch(data_, order_->batch(number), form_,
                                       config_.seed, number * config_.batch));
  }
  return batches;
}

int64_t RunBatches::steps_in_epoch() const {
  const int64_t all = token_order_
                          ? token_order_->batches_in_epoch()
                          : (data_.size() + config_.batch - 1) / config_.batch;
  return (all + config_.accumulate - 1) / config_.accumulate;
}

}  // namespace luna::train
