#pragma once

#include <luna/models/bert.h>
#include <luna/models/layered_model.h>

namespace luna::models {

/// A BERT with a classifier as a model of a task of texts. An id of the data is
/// token + vocabulary * type: a pair of texts is one sequence.
/// Names: those of Bert.
class BertClassifier : public LayeredModel {
 public:
  explicit BertClassifier(Bert bert);

  at::Tensor forward(const data::Batch& batch) override;
  data::BatchOptions batch_options() const override { return {}; }
  void train(bool on = true) override;
  const std::vector<EncoderLayer>& layers() const override {
    return bert_->layers;
  }
  Attended attended(const data::Batch& batch) override;

  /// What Bert reads of a batch.
  BertInput input(const data::Sequences& sequences) const;
  const Bert& bert() const { return bert_; }

 private:
  Bert bert_;
};

}  // namespace luna::models
