#pragma once

#include <luna/distill/row_loss.h>
#include <luna/io/safetensors.h>
#include <luna/models/layered_model.h>
#include <luna/nn/multi_head_attention.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace luna::distill {

/// What stage 1 holds a student against.
enum class StageOneLoss {
  kRows,     ///< the teacher's attention rows, by cross-entropy
  kOutputs,  ///< what the heads give, by squared error
};

/// One layer's attention learning from a softmax layer of the same weights.
/// Beside the mechanism's own parameters it may learn bases: a linear map for
/// each head's queries and one for its keys, phi_q(x) = phi(A x + a) and
/// phi_k(x) = phi(B x + b), which are folded into the student's projections,
/// so that they cost nothing afterwards. They start at 1, or balanced. rff has
/// none: its features have either sign.
class LayerStudent {
 public:
  LayerStudent(std::shared_ptr<nn::MultiHeadAttentionImpl> teacher,
               std::shared_ptr<nn::MultiHeadAttentionImpl> student, bool bases);

  /// Whether there is anything to learn.
  bool learns() const { return !parameters_.empty(); }
  /// The mechanism's, then the bases'.
  const std::vector<std::pair<std::string, at::Tensor>>& parameters() const {
    return parameters_;
  }

  /// Second moments of the teacher's queries, and of its keys less their mean.
  struct Moments {
    at::Tensor query, key;  ///< [H,d,d], sums
    at::Tensor key_sum;     ///< [H,d]
    double tokens = 0;
  };
  void add_moments(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                   Moments& moments) const;
  /// Bases in which keys have the mean 0, and queries and keys one and the same
  /// diagonal covariance, the coordinates that matter most to q.k first. The
  /// softmax rows stay what they are: (A q).(B k + b) is q.k / sqrt d but for a
  /// number that a whole row shares.
  void balance(const Moments& moments) const;

  /// x [B,n,D]: what the teacher's attention is given.
  at::Tensor loss(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                  StageOneLoss kind) const;
  /// By head, [H]: how far its rows are from the teacher's.
  at::Tensor divergence(const at::Tensor& x,
                        const std::optional<at::Tensor>& mask) const;
  /// By head, [H]: whether any feature of a key is not 0.
  at::Tensor alive(const at::Tensor& x) const;
  /// Puts the bases into the student's projections.
  void fold() const;

 private:
  Rows rows(const at::Tensor& x, const std::optional<at::Tensor>& mask) const;
  at::Tensor in_basis(const at::Tensor& heads, const at::Tensor& matrix,
                      const at::Tensor& shift) const;

  std::shared_ptr<nn::MultiHeadAttentionImpl> teacher_, student_;
  at::Tensor query_basis_, query_shift_, key_basis_, key_shift_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_{};
};

/// A model learning from another of the same weights but for the attention,
/// all layers at once, each from what the teacher gives its own layer.
class Student {
 public:
  /// Both on one device.
  Student(std::shared_ptr<models::LayeredModel> teacher,
          const models::LayeredModel& student, bool bases);

  bool learns() const;
  io::NamedTensors parameters() const;
  c10::Device device() const { return teacher_->parameters().front().device(); }
  /// How the teacher wants its batches.
  data::BatchOptions batch_options() const { return teacher_->batch_options(); }
  /// Balances the bases by what the teacher makes of some batches.
  void balance(const std::vector<data::Batch>& batches);
  /// The mean over layers, from one pass of the teacher.
  at::Tensor loss(const data::Batch& batch, StageOneLoss kind);
  /// By layer and head, [layers,H], and the rows that it is the mean of.
  struct Divergence {
    at::Tensor mean;
    double rows = 0;
  };
  Divergence divergence(const data::Batch& batch);
  /// [layers,H] bool: heads without one can never learn.
  at::Tensor alive(const data::Batch& batch);
  void fold() const;

 private:
  /// Gives the teacher's mask.
  template <class Visit>
  std::optional<at::Tensor> each_layer(const data::Batch& batch, Visit&& visit);

  std::shared_ptr<models::LayeredModel> teacher_;
  std::vector<LayerStudent> layers_{};
};

}  // namespace luna::distill
