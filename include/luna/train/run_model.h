#pragma once

#include <luna/convert/hugging_face.h>
#include <luna/models/model.h>
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

/// A Hugging Face folder, or the best weights of a run that started from one.
convert::HuggingFaceModel open_trained(const std::string& folder);

}  // namespace luna::train
