#include <ATen/ATen.h>
#include <luna/models/bert_classifier.h>

#include <utility>

namespace luna::models {

BertClassifier::BertClassifier(Bert bert) : bert_(std::move(bert)) {
  TORCH_CHECK_VALUE(bert_->config().classes > 0,
                    "BertClassifier: expected a Bert with classes, got none");
  for (const auto& child : bert_->named_children()) {
    register_module(child.key(), child.value());
  }
}

void BertClassifier::train(bool on) {
  Model::train(on);
  bert_->train(on);  // only its children are this model's own
}

BertInput BertClassifier::input(const data::Sequences& sequences) const {
  const auto vocabulary = bert_->config().vocabulary;
  BertInput input{sequences.ids};
  if (!sequences.full) {
    input.mask = at::arange(sequences.ids.size(1), sequences.lengths.options())
                     .lt(sequences.lengths.unsqueeze(1));
    // Padding has an id beyond the vocabulary.
    input.ids = input.ids.masked_fill(input.mask->logical_not(), 0);
  }
  input.type_ids = input.ids.ge(vocabulary).to(at::kLong);
  input.ids = input.ids - *input.type_ids * vocabulary;
  return input;
}

LayeredModel::Attended BertClassifier::attended(const data::Batch& batch) {
  const BertInput read = input(batch.first);
  BertOutput output = bert_(read);
  Attended attended{std::move(output.hidden), read.mask, output.logits};
  // The layers are post-norm: what enters a layer enters its attention.
  attended.x.pop_back();
  return attended;
}

at::Tensor BertClassifier::forward(const data::Batch& batch) {
  return bert_(input(batch.first)).logits;
}

}  // namespace luna::models
