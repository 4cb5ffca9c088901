#include "luna/data/tasks.h"

#include <c10/util/Exception.h>
#include <luna/data/glue.h>
#include <luna/data/listops.h>
#include <luna/data/needles.h>

#include "data/imdb.h"
#include "data/loaders.h"
#include "data/subsets.h"

namespace luna::data {
namespace {

constexpr int64_t kTextLength = 4000;

TaskInfo symbols(const std::string& task, int64_t vocabulary) {
  return {.task = task, .vocabulary = vocabulary, .classes = 10};
}

TaskInfo texts(const std::string& task, bool pairs) {
  return {.task = task, .vocabulary = 256, .classes = 2, .pairs = pairs};
}

TaskInfo pictures(const std::string& task, int64_t classes,
                  int64_t channels = 1) {
  return {.task = task,
          .vocabulary = 256,
          .classes = classes,
          .height = 32,
          .width = 32,
          .channels = channels};
}

std::vector<std::string> cifar10_classes() {
  return {"airplane", "automobile", "bird",  "cat",  "deer",
          "dog",      "frog",       "horse", "ship", "truck"};
}

std::string how_to_get_cifar10() {
  return "get CIFAR-10's binary version from "
         "https://www.cs.toronto.edu/~kriz/cifar.html, unpack it, and give its "
         "folder";
}

std::vector<std::string> digits() {
  return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
}

std::string how_to_get_lra() {
  return "get lra_release.gz of the Long Range Arena "
         "(https://github.com/google-research/long-range-arena), unpack it, "
         "and give its folder";
}

std::vector<Task> make_tasks() {
  const std::string generate = "luna generates it";
  std::vector<Task> all;
  all.push_back(
      {.name = "listops",
       .what = "what is the value of a long nested expression over digits?",
       .how = generate + "; or, to read the Long Range Arena's own files, " +
              how_to_get_lra(),
       .info = symbols("listops", kListOpsSymbols),
       .classes = digits(),
       .samples = {96000, 2000, 2000},
       .generated = true,
       .settings = config::describe_options<ListOpsOptions>(),
       .load = load_listops,
       .adjust = adjust_listops});
  all.push_back(
      {.name = "text",
       .what = "is a film review, read byte by byte, positive or negative?",
       .how = how_to_get_imdb(),
       .info = texts("text", /*pairs=*/false),
       .classes = {"negative", "positive"},
       .samples = {23000, 2000, 25000},
       .max_length = kTextLength,
       .load = load_text});
  all.push_back(
      {.name = "retrieval",
       .what = "does one paper of AAN cite the other, from their texts alone?",
       .how = how_to_get_lra(),
       .info = texts("retrieval", /*pairs=*/true),
       .classes = {"unrelated", "cites"},
       .samples = {147086, 18090, 17437},
       .max_length = kTextLength,
       .load = load_retrieval});
  all.push_back(
      {.name = "retrieval-imdb",
       .what = "are two reviews of the same film? (a stand-in for retrieval; "
               "its numbers are not AAN's)",
       .how = how_to_get_imdb(),
       .info = texts("retrieval-imdb", /*pairs=*/true),
       .classes = {"different films", "same film"},
       .samples = {44750, 3502, 48154},
       .max_length = kTextLength,
       .load = load_retrieval_imdb});
  all.push_back(
      {.name = "image",
       .what = "what is on a picture of 32 x 32 grey pixels, read in a row?",
       .how = how_to_get_cifar10(),
       .info = pictures("image", 10),
       .classes = cifar10_classes(),
       .samples = {45000, 5000, 10000},
       .load = load_cifar10});
  all.push_back(
      {.name = "pathfinder",
       .what = "does one of the dashed paths on a picture join both dots?",
       .how = generate,
       .info = pictures("pathfinder", 2),
       .classes = {"apart", "joined"},
       .samples = {160000, 20000, 20000},
       .generated = true,
       .settings = pathfinder_settings(),
       .load = load_pathfinder,
       .adjust = adjust_pathfinder});
  all.push_back(
      {.name = "needles",
       .what = "which is the largest of the few marked digits in a long row? "
               "(small, learnt in a minute)",
       .how = generate,
       .info = symbols("needles", kNeedlesSymbols),
       .classes = digits(),
       .samples = {20000, 1000, 1000},
       .generated = true,
       .settings = config::describe_options<NeedlesOptions>(),
       .load = load_needles,
       .adjust = adjust_needles});
  all.push_back({.name = "cifar10",
                 .what = "what is on a picture of 32 x 32 pixels in colour?",
                 .how = how_to_get_cifar10(),
                 .info = pictures("cifar10", 10, /*channels=*/3),
                 .classes = cifar10_classes(),
                 .samples = {45000, 5000, 10000},
                 .load = load_cifar10});
  return all;
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = make_tasks();
  return all;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) names.push_back(task.name);
  return names;
}

std::vector<std::string> colour_task_names() {
  std::vector<std::string> names;
  for (const Task& task : tasks()) {
    if (task.info.channels == 3) names.push_back(task.name);
  }
  return names;
}

const Task& find_task(const std::string& name) {
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
  }
  TORCH_CHECK_VALUE(false, "task: expected one of ",
                    config::known_and_nearest(name, task_names()), ", got ",
                    name);
}

std::vector<std::string> class_names(const TaskInfo& info) {
  for (const Task& task : tasks()) {
    if (task.name == info.task) return task.classes;
  }
  for (const GlueTask& task : glue_tasks()) {
    if (task.name == info.task) return task.classes;
  }
  std::vector<std::string> names;
  for (int64_t c = 0; c < info.classes; ++c) {
    names.push_back(std::to_string(c));
  }
  return names;
}

TaskFacts task_facts(const Task& task, const config::OptionMap& settings) {
  TaskFacts facts{.info = task.info,
                  .longest = task.info.height > 0 ? picture_size(task.info)
                                                  : task.max_length,
                  .samples = task.samples};
  if (task.adjust) task.adjust(settings, facts);
  return facts;
}

Splits load_task(const std::string& name, const LoadOptions& options) {
  const Task& task = find_task(name);
  TORCH_CHECK_VALUE(options.samples >= 0, "samples: expected 0 or more, got ",
                    options.samples);
  TORCH_CHECK_VALUE(options.max_length < 0 || task.max_length > 0,
                    "max_length: expected a task of texts, got ", task.name);
  config::check_option_names(task.name, task.settings, options.settings);
  Splits splits = task.load(task, options);
  for (auto* split : {&splits.train, &splits.validation, &splits.test}) {
    *split = at_most(*split, options.samples, options.seed);
  }
  return splits;
}

}  // namespace luna::data
