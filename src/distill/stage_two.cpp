#include "luna/distill/stage_two.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mse_loss.h>
#include <c10/core/GradMode.h>

#include "train/train_step.h"

namespace luna::distill {

at::Tensor logits_loss(const at::Tensor& logits, const at::Tensor& taught,
                       double temperature) {
  const at::Tensor given = logits.to(at::kFloat),
                   wanted = taught.to(at::kFloat);
  if (given.size(-1) == 1) return at::mse_loss(given, wanted);
  const at::Tensor sum =
      at::kl_div(at::log_softmax(given / temperature, -1),
                 at::log_softmax(wanted / temperature, -1), at::Reduction::Sum,
                 /*log_target=*/true);
  return sum * (temperature * temperature / static_cast<double>(given.size(0)));
}

at::Tensor states_loss(const models::LayeredModel::Attended& given,
                       const models::LayeredModel::Attended& taught) {
  at::Tensor sum;
  for (size_t layer = 1; layer < given.x.size(); ++layer) {
    const at::Tensor wanted = taught.x[layer].to(at::kFloat);
    at::Tensor error = (given.x[layer].to(at::kFloat) - wanted).square(),
               size = wanted.square();
    if (taught.mask) {
      const at::Tensor real = taught.mask->unsqueeze(-1).to(at::kFloat);
      error = error * real;
      size = size * real;
    }
    const at::Tensor share = error.sum() / size.sum();
    sum = sum.defined() ? sum + share : share;
  }
  return sum / static_cast<double>(given.x.size() - 1);
}

train::Objective stage_two_objective(
    std::shared_ptr<models::LayeredModel> learner,
    std::shared_ptr<models::LayeredModel> teacher, const StageTwoLoss& loss) {
  const bool states = loss.states_weight > 0 && learner->layers().size() > 1;
  const auto ask = [states](models::LayeredModel& model,
                            const data::Batch& batch) {
    return states
               ? model.attended(batch)
               : models::LayeredModel::Attended{.logits = model.forward(batch)};
  };
  return [=](const data::Batch& batch) -> train::Learnt {
    const auto given = ask(*learner, batch);
    at::Tensor sum = train::task_loss(given.logits, batch);
    if (loss.teacher_weight == 0 && !states) return {given.logits, sum};
    models::LayeredModel::Attended taught;
    {
      const at::NoGradGuard no_grad;
      teacher->eval();
      taught = ask(*teacher, batch);
    }
    sum = (1 - loss.teacher_weight) * sum +
          loss.teacher_weight *
              logits_loss(given.logits, taught.logits, loss.temperature);
    if (states) sum = sum + loss.states_weight * states_loss(given, taught);
    return {given.logits, sum};
  };
}

}  // namespace luna::distill
