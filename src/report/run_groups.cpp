#include <fmt/format.h>
#include <luna/nn/attention_registry.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "luna/report/format.h"
#include "luna/report/paper_recipes.h"
#include "luna/report/run_report.h"
#include "luna/train/open_data.h"
#include "train/result_key.h"

namespace luna::report {
namespace {

using Json = nlohmann::ordered_json;

/// What a run's result hangs on but for the seed.
Json essence(const Run& run) {
  train::TrainConfig config = *run.config;
  config.seed = 0;
  // Where the data had fewer than was asked for, what it had.
  if (run.samples && !train::shortfall(config.data, *run.samples).empty()) {
    config.data.samples = (*run.samples)[0];
  }
  Json key = train::result_key(config);
  key["/data/path"] = run.data_key;
  return key;
}

std::string key_of(const Run& run) {
  // In the order of the keys: options come in any.
  if (run.config) return run.task + nlohmann::json(essence(run)).dump();
  return run.folder;  // nothing says what it was: it stands alone
}

std::size_t task_place(const std::string& task) {
  static const std::vector<std::string> kOrder = {
      "listops", "text", "retrieval", "retrieval-imdb", "image", "pathfinder"};
  return static_cast<std::size_t>(
      std::find(kOrder.begin(), kOrder.end(), task) - kOrder.begin());
}

std::size_t attention_place(const std::string& attention) {
  const auto& all = nn::attentions();
  return static_cast<std::size_t>(
      std::find_if(all.begin(), all.end(),
                   [&](const auto& info) { return info.name == attention; }) -
      all.begin());
}

/// "nested-16" before "nested-128".
auto title_order(const std::string& title) {
  return std::pair(title.size(), title);
}

/// A group's config, and how many runs have it.
struct Counted {
  Json config{};
  std::size_t runs = 0;
};

/// Of keys in which groups differ: the value that most runs have; of several
/// luna's default, or nothing. What models are made of is told from the default
/// wherever a group has it, however many do not.
std::map<std::string, std::string> usual_values(
    const std::vector<Counted>& groups, const Json& defaults) {
  std::map<std::string, std::map<std::string, std::size_t>> counts;
  std::size_t all = 0;
  for (const Counted& group : groups) {
    all += group.runs;
    for (const auto& [key, value] : group.config.items()) {
      counts[key][value.dump()] += group.runs;
    }
  }
  std::map<std::string, std::string> usual;
  for (const auto& [key, values] : counts) {
    std::size_t most = 0, known = 0;
    for (const auto& [value, count] : values) {
      known += count;
      most = std::max(most, count);
    }
    if (values.size() == 1 && known == all) continue;
    const std::string standard =
        defaults.contains(key) ? defaults.at(key).dump() : "";
    std::string& chosen = usual[key];
    if (key.starts_with("/model/") && values.contains(standard)) {
      chosen = standard;
      continue;
    }
    int as_many = 0;
    for (const auto& [value, count] : values) {
      if (count < most) continue;
      ++as_many;
      if (as_many == 1 || value == standard) chosen = value;
    }
    if (as_many > 1 && chosen != standard) chosen.clear();
  }
  return usual;
}

/// What tells groups of one task and one title apart, appended to the title:
/// where a group is not as usual.
void name_differences(const std::vector<Run>& runs,
                      const std::vector<RunGroup*>& alike) {
  std::vector<Counted> all;
  for (const RunGroup* group : alike) {
    const Run& run = runs[group->runs[0]];
    all.push_back(
        {run.config ? essence(run) : Json::object(), group->runs.size()});
  }
  train::TrainConfig standard;
  standard.model.attention = runs[alike[0]->runs[0]].attention;
  const auto usual = usual_values(all, train::result_key(standard));
  for (std::size_t i = 0; i < alike.size(); ++i) {
    const Run& run = runs[alike[i]->runs[0]];
    std::string differences;
    for (const auto& [key, most] : usual) {
      const auto value = all[i].config.find(key);
      if (value == all[i].config.end() || value->dump() == most) continue;
      const std::string word =
          value->is_string() ? value->get<std::string>() : value->dump();
      differences += fmt::format("{}{} {}", differences.empty() ? "" : ", ",
                                 key.substr(key.rfind('/') + 1), word);
    }
    if (!run.config) differences = run.name;
    if (!differences.empty()) alike[i]->title += " (" + differences + ")";
  }
}

/// " on multi30k", where data has a name.
std::string on(const std::string& data) {
  return data.empty() ? "" : " on " + data;
}

constexpr const char* kBehind = ", norms behind";

/// The two papers' recipes differ in all but a few keys; one tells them apart.
bool norms_behind(const Run& run) {
  return run.config && run.config->model.norm == "post";
}

void name_groups(const std::vector<Run>& runs, std::vector<RunGroup>& groups) {
  using Key = std::tuple<std::string, std::string, std::string>;
  std::map<Key, std::array<std::vector<RunGroup*>, 2>> alike;
  std::set<std::string> data;
  for (RunGroup& group : groups) {
    const bool behind = norms_behind(runs[group.runs[0]]);
    alike[{group.task, group.data, group.title}][behind].push_back(&group);
    if (!group.data.empty()) data.insert(group.data);
  }
  for (auto& [key, recipes] : alike) {
    const bool both = !recipes[0].empty() && !recipes[1].empty();
    for (RunGroup* group : recipes[1]) group->title += both ? kBehind : "";
    for (const auto& some : recipes) {
      if (some.size() > 1) name_differences(runs, some);
    }
  }
  if (data.size() < 2) return;
  for (RunGroup& group : groups) {
    group.title += on(group.data);
  }
}

/// Softmax, by itself or as the data's own.
bool is_reference(const RunGroup& group) {
  return group.title == kReference ||
         group.title == std::string(kReference) + kBehind ||
         group.title == kReference + on(group.data);
}

void choose_colours(const std::vector<Run>& runs,
                    std::vector<RunGroup>& groups) {
  // Those that stand beside the papers on some task have the first colours.
  std::set<std::string> papers;
  for (const RunGroup& group : groups) {
    if (!group.published.empty()) papers.insert(group.title);
  }
  std::set<std::tuple<bool, std::size_t, std::pair<std::size_t, std::string>>>
      titles;
  for (const RunGroup& group : groups) {
    if (is_reference(group)) continue;
    titles.insert({!papers.contains(group.title),
                   attention_place(runs[group.runs[0]].attention),
                   title_order(group.title)});
  }
  std::map<std::string, int> places;
  for (const auto& [other, attention, title] : titles) {
    const int place = static_cast<int>(places.size());
    places[title.second] = place;
  }
  for (RunGroup& group : groups) {
    if (is_reference(group)) {  // colour 0
      group.dashed = group.title.ends_with(kBehind);
      continue;
    }
    const int place = places[group.title];
    group.colour = 1 + place % (kColours - 1);
    group.dashed = place >= kColours - 1;
  }
}

std::optional<Statistic> over(const std::vector<Run>& runs,
                              const RunGroup& group,
                              std::optional<double> Run::*field) {
  std::vector<double> values;
  for (const std::size_t i : group.runs) {
    if (runs[i].*field) values.push_back(*(runs[i].*field));
  }
  return statistic(values);
}

void summarise(const std::vector<Run>& runs, RunGroup& group) {
  group.accuracy = over(runs, group, &Run::test_accuracy);
  group.tested = group.accuracy.has_value();
  if (!group.tested) {
    group.accuracy = over(runs, group, &Run::validation_accuracy);
  }
  group.steps_per_s = over(runs, group, &Run::steps_per_s);
  group.peak_memory = over(runs, group, &Run::peak_memory);
  group.published = paper_rows_for(runs[group.runs[0]]);
  group.parameters = runs[group.runs[0]].parameters;
  std::vector<double> minutes;
  std::map<std::string, std::vector<double>> scores;
  for (const std::size_t i : group.runs) {
    if (runs[i].seconds) minutes.push_back(*runs[i].seconds / 60);
    for (const auto& [name, score] : runs[i].scores) {
      scores[name].push_back(score);
    }
  }
  group.minutes = statistic(minutes);
  for (const auto& [name, values] : scores) {
    group.scores[name] = *statistic(values);
  }
}

/// The same work: task, length, batch, shape of the model, precision, machine.
std::string work_of(const Run& run) {
  if (!run.config || !run.length || !run.batch) return "";
  const train::TrainConfig& c = *run.config;
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", run.task, run.data_key,
                     *run.length, *run.batch, c.accumulate, c.model.layers,
                     c.model.width, c.model.ffn, c.model.heads, c.autocast,
                     run.machine);
}

std::vector<Comparison> compare_groups(const std::vector<Run>& runs,
                                       const std::vector<RunGroup>& groups) {
  std::vector<Comparison> all;
  std::set<std::string> done;
  std::map<std::string, int64_t> widths;  // by title
  for (const RunGroup& reference : groups) {
    const Run& first = runs[reference.runs[0]];
    const std::string work = work_of(first);
    if (first.attention != kReference || !reference.steps_per_s ||
        reference.steps_per_s->mean <= 0 || work.empty() ||
        !done.insert(work).second) {
      continue;
    }
    std::string title =
        fmt::format("{}{}, n = {}, batch {}", first.task, on(reference.data),
                    grouped(*first.length), grouped(*first.batch));
    // Of another model: the papers' recipes have other widths.
    const int64_t width = first.config->model.width;
    if (widths.emplace(title, width).first->second != width) {
      title += fmt::format(", width {}", grouped(width));
    }
    Comparison comparison{title,        first.task,    *first.length,
                          *first.batch, first.machine, {}};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const RunGroup& group = groups[i];
      if (work_of(runs[group.runs[0]]) != work || !group.steps_per_s) continue;
      Beside beside{i, group.steps_per_s->mean / reference.steps_per_s->mean,
                    std::nullopt, paper_speed_for(runs[group.runs[0]])};
      if (group.peak_memory && reference.peak_memory &&
          reference.peak_memory->mean > 0) {
        beside.memory = group.peak_memory->mean / reference.peak_memory->mean;
      }
      comparison.groups.push_back(beside);
    }
    if (comparison.groups.size() > 1) all.push_back(comparison);
  }
  return all;
}

}  // namespace

std::optional<Statistic> statistic(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  Statistic result;
  result.count = values.size();
  for (const double value : values) result.mean += value;
  result.mean /= static_cast<double>(values.size());
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) {
      squares += (value - result.mean) * (value - result.mean);
    }
    result.sd = std::sqrt(squares / static_cast<double>(values.size() - 1));
  }
  return result;
}

std::optional<bool> reached(const RunReport& report, const RunGroup& group,
                            const PaperRow& published) {
  constexpr std::size_t kSeeds = 3;
  const auto& config = report.runs[group.runs[0]].config;
  const PaperRecipe* recipe = config ? recipe_of(*config) : nullptr;
  if (recipe == nullptr || recipe->paper != published.paper ||
      config->steps != recipe->config.steps || !group.tested ||
      group.accuracy->count < kSeeds) {
    return std::nullopt;
  }
  return 100 * (group.accuracy->mean + *group.accuracy->sd) >=
         published.accuracy.at(group.task);
}

RunReport make_report(std::vector<Run> runs) {
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    const auto order = [](const Run& run) {
      return std::tuple(task_place(run.task), run.task, run.data_key,
                        attention_place(run.attention), title_order(run.title),
                        run.seed, run.folder);
    };
    return order(a) < order(b);
  });
  RunReport report;
  report.runs = std::move(runs);
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const Run& run = report.runs[i];
    const auto [place, fresh] =
        places.insert({key_of(run), report.groups.size()});
    if (fresh) {
      RunGroup group;
      group.title = run.title;
      group.task = run.task;
      group.data = run.data_name;
      report.groups.push_back(group);
    }
    report.groups[place->second].runs.push_back(i);
  }
  name_groups(report.runs, report.groups);
  for (RunGroup& group : report.groups) summarise(report.runs, group);
  choose_colours(report.runs, report.groups);
  report.comparisons = compare_groups(report.runs, report.groups);
  return report;
}

}  // namespace luna::report
