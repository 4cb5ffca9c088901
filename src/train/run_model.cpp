#include "luna/train/run_model.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <luna/convert/glue_data.h>
#include <luna/data/image_processor.h>
#include <luna/data/tasks.h>
#include <luna/data/translation.h>
#include <luna/models/bert_classifier.h>
#include <luna/models/translator.h>
#include <luna/models/vit_classifier.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "luna/train/open_data.h"
#include "luna/train/read_config.h"
#include "train/checkpoint.h"
#include "train/train_step.h"

namespace luna::train {
namespace {

/// Pictures that need no other size than they have.
void check_pictures(const convert::HuggingFaceModel& model,
                    const data::TaskInfo& info) {
  const models::VitConfig& vit = model.vit()->config();
  TORCH_CHECK_VALUE(
      info.channels == vit.channels && info.height == vit.image_size &&
          info.width == vit.image_size,
      model.folder(), ": expected the pictures of ", info.task, ", ",
      info.channels, " x ", info.height, " x ", info.width, ", got a model of ",
      vit.channels, " x ", vit.image_size, " x ", vit.image_size);
}

/// Of a task's classes, by index; none: a score.
const std::vector<std::string>& names_of(const std::string& task) {
  return data::is_glue_task(task) ? data::find_glue_task(task).classes
                                  : data::find_task(task).classes;
}

std::vector<std::string> in_small_letters(std::vector<std::string> names) {
  for (std::string& name : names) {
    std::ranges::transform(name, name.begin(), [](unsigned char letter) {
      return static_cast<char>(std::tolower(letter));
    });
  }
  return names;
}

/// A model may call the classes as it likes, but if it has the task's names,
/// then in the task's order: labels are compared by index.
void check_order(const convert::HuggingFaceModel& model,
                 const std::string& task) {
  const auto want = in_small_letters(names_of(task));
  const auto got = in_small_letters(model.labels());
  TORCH_CHECK_VALUE(
      want == got || !std::ranges::is_permutation(want, got), model.folder(),
      "/config.json: id2label: expected the classes of ", task,
      " in the order of its files, ",
      fmt::format("{}", fmt::join(names_of(task), ", ")), ", got ",
      fmt::format("{}", fmt::join(model.labels(), ", ")));
}

}  // namespace

int64_t classes_of(const std::string& task) {
  return std::max<int64_t>(1, std::ssize(names_of(task)));
}

convert::HuggingFaceModel open_base(const models::ModelConfig& config,
                                    int64_t classes) {
  return convert::HuggingFaceModel::open(
      config.base, {.attention = config.attention,
                    .attention_options = config.attention_options,
                    .classes = classes});
}

std::shared_ptr<models::LayeredModel> as_classifier(
    const convert::HuggingFaceModel& model) {
  TORCH_CHECK_VALUE(!model.labels().empty(), model.folder(),
                    ": expected a model with a classifier, got ",
                    model.architecture());
  if (!model.bert().is_empty()) {
    return std::make_shared<models::BertClassifier>(model.bert());
  }
  data::ImageProcessorOptions processor;
  const auto file =
      std::filesystem::path(model.folder()) / "preprocessor_config.json";
  if (std::filesystem::exists(file)) {
    processor = data::ImageProcessor::open(file.string()).options();
  }
  return std::make_shared<models::VitClassifier>(model.vit(), processor);
}

data::Splits open_task(const convert::HuggingFaceModel& model,
                       const std::string& task,
                       const TaskDataOptions& options) {
  const bool bert = !model.bert().is_empty();
  const auto known = bert ? data::glue_task_names() : data::colour_task_names();
  TORCH_CHECK_VALUE(std::ranges::count(known, task) > 0,
                    "task: expected for a ", model.architecture(), " one of ",
                    config::known_and_nearest(task, known), ", got ", task);
  TORCH_CHECK_VALUE(std::ssize(model.labels()) == classes_of(task),
                    model.folder(), ": expected a classifier of the ",
                    classes_of(task), " classes of ", task, ", got one of ",
                    model.labels().size(), "; luna train fine-tunes one");
  check_order(model, task);
  if (bert) {
    return convert::open_glue(
        task, options.data, text::WordPiece::open(model.folder()),
        model.bert()->config(),
        {.max_length = options.max_length, .samples = options.samples});
  }
  const data::Splits splits = open_data(
      DataConfig{
          .task = task, .path = options.data, .samples = options.samples},
      "");
  check_pictures(model, splits.train->info());
  return splits;
}

std::shared_ptr<models::Model> make_run_model(const models::ModelConfig& config,
                                              const data::TaskInfo& task,
                                              int64_t longest) {
  if (task.task == data::kTranslationTask) {
    return std::make_shared<models::Translator>(config, task.vocabulary);
  }
  if (config.base.empty()) return models::make_model(config, task, longest);
  const auto model = open_base(config, task.classes);
  if (model.bert().is_empty()) {
    check_pictures(model, task);
  } else {
    TORCH_CHECK_VALUE(task.height == 0, config.base,
                      ": expected a ViT for the pictures of ", task.task,
                      ", got ", model.architecture());
    TORCH_CHECK_VALUE(longest <= model.bert()->config().positions, config.base,
                      ": expected positions for the ", longest,
                      " ids of the longest sequence, got ",
                      model.bert()->config().positions);
  }
  return as_classifier(model);
}

convert::HuggingFaceModel open_trained(const std::string& folder) {
  const RunFolder run(folder);
  if (!run.holds_run()) return convert::HuggingFaceModel::open(folder);
  const TrainConfig config = read_train_config(run.config());
  if (config.model.base.empty()) {
    TORCH_CHECK_VALUE(config.model.patch > 0, folder,
                      ": expected a run of a ViT (model.patch) or one that "
                      "started from a Hugging Face folder (model.base), got "
                      "another");
    TORCH_CHECK_VALUE(std::filesystem::exists(run.hugging_face()), folder,
                      ": expected a run that has ended, got one without ",
                      run.hugging_face(),
                      "; go on with it by: luna train "
                      "--resume ",
                      folder);
    return convert::HuggingFaceModel::open(run.hugging_face());
  }
  auto model = open_base(config.model, classes_of(config.data.task));
  load_tensors(run.best() + "/model.safetensors",
               named_state(*as_classifier(model)));
  return model;
}

}  // namespace luna::train
