#include "luna/train/run_model.h"

#include <c10/util/Exception.h>
#include <luna/data/glue.h>
#include <luna/data/translation.h>
#include <luna/models/bert_classifier.h>
#include <luna/models/translator.h>

#include "luna/train/read_config.h"
#include "train/checkpoint.h"
#include "train/train_step.h"

namespace luna::train {

convert::HuggingFaceModel open_base(const models::ModelConfig& config,
                                    int64_t classes) {
  auto model = convert::HuggingFaceModel::open(
      config.base, {.attention = config.attention,
                    .attention_options = config.attention_options,
                    .classes = classes});
  TORCH_CHECK_VALUE(!model.bert().is_empty(), config.base,
                    ": expected a BERT, got ", model.architecture());
  return model;
}

std::shared_ptr<models::Model> make_run_model(const models::ModelConfig& config,
                                              const data::TaskInfo& task,
                                              int64_t longest) {
  if (task.task == data::kTranslationTask) {
    return std::make_shared<models::Translator>(config, task.vocabulary);
  }
  if (config.base.empty()) return models::make_model(config, task, longest);
  const auto model = open_base(config, task.classes);
  TORCH_CHECK_VALUE(longest <= model.bert()->config().positions, config.base,
                    ": expected positions for the ", longest,
                    " ids of the longest sequence, got ",
                    model.bert()->config().positions);
  return std::make_shared<models::BertClassifier>(model.bert());
}

convert::HuggingFaceModel open_trained(const std::string& folder) {
  const RunFolder run(folder);
  if (!run.holds_run()) return convert::HuggingFaceModel::open(folder);
  const TrainConfig config = read_train_config(run.config());
  TORCH_CHECK_VALUE(!config.model.base.empty(), folder,
                    ": expected a run that started from a Hugging Face folder "
                    "(model.base), got one that did not");
  const auto& classes = data::find_glue_task(config.data.task).classes;
  auto model = open_base(config.model, std::ssize(classes));
  load_tensors(run.best() + "/model.safetensors",
               named_state(models::BertClassifier(model.bert())));
  return model;
}

}  // namespace luna::train
