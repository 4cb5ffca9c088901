#pragma once

#include <luna/config/options.h>
#include <luna/data/splits.h>

#include <vector>

namespace luna::data {

struct LoadOptions {
  std::string folder{};     ///< where the task's files are (--data)
  int64_t samples = 0;      ///< at most this many in each split; 0: all
  uint64_t seed = 1;        ///< of what is generated, or of the choice of
                            ///< `samples`; never of the validation split
  int64_t max_length = -1;  ///< cut sequences to this; -1: as the task does
  config::OptionMap settings{};  ///< of a generator
  LoadProgress progress{};
};

/// What is known of a task's samples before they are read or made.
struct TaskFacts {
  TaskInfo info{};
  int64_t longest = 0;               ///< most ids that a sequence can have
  std::array<int64_t, 3> samples{};  ///< train, validation, test
};

/// A task of luna data: what it is, how to get it, and what it is made by.
struct Task {
  std::string name{};
  std::string what{};
  std::string how{};                   ///< to get it
  TaskInfo info{};                     ///< as the defaults make it
  std::vector<std::string> classes{};  ///< their names, by label
  std::array<int64_t, 3> samples{};    ///< usual sizes: train, validation, test
  int64_t max_length = 0;              ///< ids kept of a sequence; 0: all
  bool generated = false;              ///< or read from files
  std::vector<config::OptionInfo> settings{};  ///< that its generator reads
  std::function<Splits(const Task&, const LoadOptions&)> load{};
  /// Corrects info and longest by a generator's settings; empty: nothing to.
  std::function<void(const config::OptionMap& settings, TaskFacts&)> adjust{};
};

/// All tasks, in the order of the documentation.
const std::vector<Task>& tasks();
std::vector<std::string> task_names();
/// Those of pictures in colour, which a ViT reads.
std::vector<std::string> colour_task_names();
/// The task of that name; an unknown one lists the known ones.
const Task& find_task(const std::string& name);

/// Names of the classes, by label: the task's own, also of GLUE's; numbers for
/// a task that nobody knows.
std::vector<std::string> class_names(const TaskInfo& info);

/// The task's facts as its settings make them.
TaskFacts task_facts(const Task& task, const config::OptionMap& settings);

/// Reads or generates a task.
Splits load_task(const std::string& name, const LoadOptions& options);

}  // namespace luna::data
