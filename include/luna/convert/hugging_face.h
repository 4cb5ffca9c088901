#pragma once

#include <luna/config/options.h>
#include <luna/io/weights.h>
#include <luna/models/bert.h>
#include <luna/models/vit.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

// Folders as Hugging Face's transformers writes them: config.json and weights
// in safetensors, one file or shards, with a tokenizer's or a pre-processor's
// files beside them. docs/hugging_face.md says what is read.

namespace luna::convert {

struct OpenOptions {
  /// A head-level mechanism instead of the folder's own. Its parameters start
  /// fresh, all others are the folder's.
  std::optional<std::string> attention{};
  config::OptionMap attention_options{};
  /// A classifier of so many classes instead of the folder's head; 0: its own.
  int64_t classes = 0;
};

/// A BERT or a ViT out of such a folder, on the CPU, in float32.
class HuggingFaceModel {
 public:
  /// Throws ValueError that names file and field; one message has every weight
  /// that is missing, of another shape, and unused.
  static HuggingFaceModel open(const std::string& folder,
                               const OpenOptions& options = {});

  const std::string& folder() const { return folder_; }
  /// Such as BertForSequenceClassification.
  const std::string& architecture() const { return architecture_; }
  /// One of the two is null.
  const models::Bert& bert() const { return bert_; }
  const models::Vit& vit() const { return vit_; }
  torch::nn::Module& module() const;
  /// Names of the classes, by index; empty without a classifier.
  const std::vector<std::string>& labels() const { return labels_; }
  /// Tensors of the files that the model has no use for.
  const std::vector<std::string>& unused() const { return unused_; }
  /// Parameters of the model (our names) that the files do not have.
  const std::vector<std::string>& fresh() const { return fresh_; }

  /// Writes a folder that transformers and open() read, in place of what is
  /// there: tensors of the names, types and order that the files had, those
  /// without a use with the very bytes, then the fresh ones; the metadata; the
  /// files of tokenizer and pre-processor.
  void write(const std::string& folder) const;

 private:
  explicit HuggingFaceModel(io::Weights weights)
      : weights_(std::move(weights)) {}
  void load_weights(const OpenOptions& options);

  std::string folder_{}, architecture_{}, config_text_{};
  models::Bert bert_{nullptr};
  models::Vit vit_{nullptr};
  std::vector<std::string> labels_{}, unused_{}, fresh_{};
  bool new_head_ = false;
  io::Weights weights_;
};

}  // namespace luna::convert
