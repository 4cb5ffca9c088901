#pragma once

#include <luna/convert/hugging_face.h>
#include <luna/data/splits.h>
#include <luna/models/layered_model.h>
#include <luna/train/run_folder.h>

#include <memory>
#include <string>

namespace luna::train {

/// The model that a config asks for: models::make_model, a Translator, or a
/// Hugging Face folder's with a classifier for the task.
std::shared_ptr<models::Model> make_run_model(const models::ModelConfig& config,
                                              const data::TaskInfo& task,
                                              int64_t longest);

/// Opens the folder that a config starts from, with its attention.
convert::HuggingFaceModel open_base(const models::ModelConfig& config,
                                    int64_t classes);

/// A Hugging Face folder, or the best weights of a run that started from one or
/// trained a ViT.
convert::HuggingFaceModel open_trained(const std::string& folder);

/// A Hugging Face model with a classifier as what trains and is evaluated.
std::shared_ptr<models::LayeredModel> as_classifier(
    const convert::HuggingFaceModel& model);

struct TaskDataOptions {
  std::string data{};      ///< folder of the task's files
  int64_t max_length = 0;  ///< of texts, in ids; 0: what the model can take
  int64_t samples = 0;     ///< at most so many in each split; 0: all
};

/// A task as a Hugging Face model with a classifier reads it: one of GLUE's for
/// a BERT, one of pictures for a ViT. Refuses a task that the model is not for.
data::Splits open_task(const convert::HuggingFaceModel& model,
                       const std::string& task, const TaskDataOptions& options);

/// Classes of a task of GLUE or of luna data; 1: a score.
int64_t classes_of(const std::string& task);

}  // namespace luna::train
