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

/// How far what a model's layers are given is from what a teacher's are, as a
/// share of the latter: the squared error over real tokens divided by the
/// square, the mean over all layers but the first.
at::Tensor states_loss(const models::LayeredModel::Attended& given,
                       const models::LayeredModel::Attended& taught);

struct StageTwoLoss {
  double teacher_weight = 0.0;  ///< of logits_loss; labels have the rest
  double temperature = 1.0;
  double states_weight = 0.0;  ///< of states_loss, which is added
};

/// Stage 2's loss: of the labels, the teacher's logits and its states. The
/// teacher, on the learner's device, is asked without dropout and learns
/// nothing.
train::Objective stage_two_objective(
    std::shared_ptr<models::LayeredModel> learner,
    std::shared_ptr<models::LayeredModel> teacher, const StageTwoLoss& loss);

}  // namespace luna::distill
