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

train::Objective stage_two_objective(
    std::shared_ptr<models::LayeredModel> learner,
    std::shared_ptr<models::LayeredModel> teacher, const StageTwoLoss& loss) {
  return [=](const data::Batch& batch) -> train::Learnt {
    const at::Tensor logits = learner->forward(batch);
    const at::Tensor of_labels = train::task_loss(logits, batch);
    if (loss.teacher_weight == 0) return {logits, of_labels};
    at::Tensor taught;
    {
      const at::NoGradGuard no_grad;
      teacher->eval();
      taught = teacher->forward(batch);
    }
    return {logits, (1 - loss.teacher_weight) * of_labels +
                        loss.teacher_weight *
                            logits_loss(logits, taught, loss.temperature)};
  };
}

}  // namespace luna::distill
