#include <c10/util/Exception.h>
#include <luna/models/classifier.h>
#include <luna/nn/attention_registry.h>

namespace luna::models {
namespace {

std::string mechanisms_with_memory() {
  std::string names;
  for (const auto& info : nn::attentions()) {
    if (info.traits.memory) names += (names.empty() ? "" : ", ") + info.name;
  }
  return names;
}

void check(const ModelConfig& config, const data::TaskInfo& task,
           int64_t longest) {
  ModelConfig::visit(
      config, [](const auto& field, const config::OptionInfo& info) {
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (!std::is_same_v<Field, config::OptionMap>) {
          config::check_option_value("make_model", info, field);
        }
      });
  TORCH_CHECK_VALUE(task.vocabulary >= 1 && task.classes >= 2,
                    "make_model: expected a task with a vocabulary and two "
                    "classes or more, got ",
                    task.task, " with ", task.vocabulary, " ids and ",
                    task.classes, " classes");
  TORCH_CHECK_VALUE(longest >= 0, "make_model: expected longest >= 0, got ",
                    longest);
  TORCH_CHECK_VALUE(config.pooling != "memory" ||
                        nn::find_attention(config.attention).traits.memory,
                    "make_model: expected a mechanism with a memory (",
                    mechanisms_with_memory(), ") for pooling = memory, got ",
                    config.attention);
  TORCH_CHECK_VALUE((config.head == "mlp") == (config.head_hidden > 0),
                    "make_model: expected head_hidden > 0 for head = mlp and "
                    "0 for linear, got ",
                    config.head_hidden, " for ", config.head);
  TORCH_CHECK_VALUE(
      config.width % config.heads == 0,
      "make_model: expected width to be a multiple of heads, got ",
      config.width, " and ", config.heads, " heads");
}

}  // namespace

std::shared_ptr<Model> make_model(const ModelConfig& config,
                                  const data::TaskInfo& task, int64_t longest) {
  check(config, task, longest);
  if (task.pairs)
    return std::make_shared<PairClassifier>(config, task, longest);
  return std::make_shared<Classifier>(config, task, longest);
}

}  // namespace luna::models
