#include "train/step_table.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "data/augment.h"
#include "data/blend.h"
#include "luna/train/schedule.h"

namespace luna::train {
namespace {

/// Pinned where the device can read it beside other work.
at::Tensor host_like(const at::Tensor& there) {
  return at::empty(
      there.sizes(),
      at::dtype(there.scalar_type()).pinned_memory(there.is_cuda()));
}

}  // namespace

StepTable::StepTable(const TrainConfig& config, const DeviceData& data,
                     const c10::Device& device, int64_t rows)
    : config_(config),
      data_(data),
      order_(data.size(), config.batch, config.seed),
      rows_(rows) {
  const at::TensorOptions whole = at::device(device).dtype(at::kLong);
  row_ = at::zeros({1}, whole);
  indices_ = at::zeros({rows, config.accumulate, config.batch}, whole);
  if (config.data.augment) {
    moves_ = at::zeros({rows, config.accumulate, config.batch, 3}, whole);
  }
  if (data::BlendShares{config.data.mixup, config.data.cutmix}.any()) {
    blends_ = at::zeros(
        {rows, config.accumulate, config.batch, data::Blend::kColumns},
        whole.dtype(at::kFloat));
  }
  rates_ = at::zeros({rows}, whole.dtype(at::kFloat));
}

void StepTable::fill(int64_t first) {
  const at::Tensor indices = host_like(indices_), rates = host_like(rates_);
  at::Tensor moves, blends;
  if (moves_.defined()) moves = host_like(moves_);
  if (blends_.defined()) blends = host_like(blends_);
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  int64_t* move = moves.defined() ? moves.mutable_data_ptr<int64_t>() : nullptr;
  float* blend = blends.defined() ? blends.mutable_data_ptr<float>() : nullptr;
  const data::BlendShares shares{config_.data.mixup, config_.data.cutmix};
  const int64_t sides = data_.sides();
  tokens_.assign(rows_ * config_.accumulate * sides, 0);
  int64_t* tokens = tokens_.data();
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t step = first + row;
    rates.mutable_data_ptr<float>()[row] = static_cast<float>(learning_rate(
        config_.schedule, config_.optimizer.lr, config_.steps, step));
    for (int64_t part = 0; part < config_.accumulate; ++part) {
      const int64_t number = step * config_.accumulate + part;
      int64_t position = number * config_.batch;
      for (const int64_t sample : order_.batch(number)) {
        *index++ = sample;
        for (int64_t side = 0; side < sides; ++side) {
          tokens[side] += data_.tokens(sample, side);
        }
        if (move != nullptr) {
          const data::Move drawn = data::draw_move(config_.seed, position);
          *move++ = drawn.flip ? 1 : 0;
          *move++ = drawn.down;
          *move++ = drawn.right;
        }
        if (blend != nullptr) {
          const data::Blend drawn =
              data::draw_blend(config_.seed, position, shares,
                               data_.info().height, data_.info().width);
          blend = std::ranges::copy(drawn.row(), blend).out;
        }
        ++position;
      }
      tokens += sides;
    }
  }
  indices_.copy_(indices, /*non_blocking=*/true);
  rates_.copy_(rates, /*non_blocking=*/true);
  if (moves_.defined()) moves_.copy_(moves, /*non_blocking=*/true);
  if (blends_.defined()) blends_.copy_(blends, /*non_blocking=*/true);
  first_ = first;
}

int64_t StepTable::turn_to(int64_t step) {
  const bool there = first_ >= 0 && step >= first_ && step < first_ + rows_;
  if (!there) fill(step);
  // Also where a step is done a second time.
  if (!there || step != next_) row_.fill_(step - first_);
  next_ = step + 1;
  const auto tokens = part_tokens();
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

std::span<const int64_t> StepTable::part_tokens() const {
  const int64_t parts = config_.accumulate * data_.sides();
  return std::span(tokens_).subspan((next_ - 1 - first_) * parts, parts);
}

at::Tensor StepTable::indices(int64_t part) const {
  return indices_.select(1, part).index_select(0, row_).squeeze(0);
}

std::optional<at::Tensor> StepTable::moves(int64_t part) const {
  if (!moves_.defined()) return std::nullopt;
  return moves_.select(1, part).index_select(0, row_).squeeze(0);
}

at::Tensor StepTable::blends(int64_t part) const {
  if (!blends_.defined()) return {};
  return blends_.select(1, part).index_select(0, row_).squeeze(0);
}

at::Tensor StepTable::lr() const {
  return rates_.index_select(0, row_).squeeze(0);
}

void StepTable::advance() { row_.add_(1); }

}  // namespace luna::train
