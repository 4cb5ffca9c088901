#include <c10/util/Exception.h>
#include <luna/models/check_model.h>
#include <luna/models/classifier.h>
#include <luna/models/vit_classifier.h>

#include "models/start.h"

namespace luna::models {

std::shared_ptr<Model> make_model(const ModelConfig& config,
                                  const data::TaskInfo& task, int64_t longest) {
  check_model("model", config);
  TORCH_CHECK_VALUE(task.vocabulary >= 1 && task.classes >= 2,
                    "make_model: expected a task with a vocabulary and two "
                    "classes or more, got ",
                    task.task, " with ", task.vocabulary, " ids and ",
                    task.classes, " classes");
  TORCH_CHECK_VALUE(config.embedding == "table" || task.height > 0,
                    "model.embedding: expected table for ", task.task,
                    ", whose ids are no grey values, got ", config.embedding);
  TORCH_CHECK_VALUE(config.black == "pixel" || task.height > 0,
                    "model.black: expected pixel for ", task.task,
                    ", whose ids are no grey values, got ", config.black);
  TORCH_CHECK_VALUE(longest >= 0, "make_model: expected longest >= 0, got ",
                    longest);
  if (config.patch > 0) {
    const auto model =
        std::make_shared<VitClassifier>(Vit(vit_config(config, task)));
    start_weights(*model, config);
    return model;
  }
  if (task.pairs)
    return std::make_shared<PairClassifier>(config, task, longest);
  return std::make_shared<Classifier>(config, task, longest);
}

}  // namespace luna::models
