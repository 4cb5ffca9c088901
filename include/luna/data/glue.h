#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Sentences and pairs with a label, from the tsv files of GLUE and SICK.

namespace luna::data {

/// A task as its files have it.
struct GlueTask {
  std::string name{};                  ///< sst2, cola, mrpc, ...
  std::string what{};                  ///< in a few words
  std::string first{}, second{};       ///< columns of the text; second: pairs
  std::string label{};                 ///< column of the label
  std::vector<std::string> classes{};  ///< as the files write them, in the
                                       ///< order of their ids; none: a score
  std::vector<std::string> metrics{};  ///< the first is the one that counts
  std::vector<std::string> train{}, validation{};  ///< where the files may be
  bool header = true;        ///< or the columns source, label, star, sentence
  bool broken_rows = false;  ///< the published files have rows cut short, which
                             ///< everybody leaves out

  bool pairs() const { return !second.empty(); }
};

struct GlueExample {
  std::string first{};
  std::optional<std::string> second{};
  double label = 0;  ///< a class's id, or a score
};

struct GlueFile {
  std::vector<GlueExample> examples{};
  int64_t left_out = 0;  ///< broken rows
};

const std::vector<GlueTask>& glue_tasks();
std::vector<std::string> glue_task_names();
bool is_glue_task(const std::string& name);
/// The task of that name; an unknown one lists the known ones.
const GlueTask& find_glue_task(const std::string& name);

/// The task's file of a split, train or validation, under `folder`; if there
/// is none, an error that says where it was looked for.
std::string find_glue_file(const GlueTask& task, const std::string& folder,
                           const std::string& split);
/// Reads a file; an error names file, line and column.
GlueFile read_glue(const GlueTask& task, const std::string& path);

}  // namespace luna::data
