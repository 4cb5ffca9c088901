#pragma once

#include <luna/models/layered_model.h>
#include <luna/train/objective.h>

#include <memory>

namespace luna::distill {

/// How far logits [B,classes] are from a teacher's, the mean over a batch:
/// T^2 KL(softmax(taught / T) || softmax(logits / T)), whose gradient has about
/// one size at every temperature T; of scores (one class) the squared error.
at::Tensor logits_loss(const at::Tensor& logits, const at::Tensor& taught,
                       double temperature);

struct StageTwoLoss {
  double teacher_weight = 0.0;  ///< of logits_loss; labels have the rest
  double temperature = 1.0;
};

/// Stage 2's loss: of the labels and of the teacher's logits. The teacher, on
/// the learner's device, is asked without dropout and learns nothing.
train::Objective stage_two_objective(
    std::shared_ptr<models::LayeredModel> learner,
    std::shared_ptr<models::LayeredModel> teacher, const StageTwoLoss& loss);

}  // namespace luna::distill
