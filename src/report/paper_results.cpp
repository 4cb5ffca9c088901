#include "luna/report/paper_results.h"

#include "luna/report/paper_recipes.h"

#include <luna/nn/attention_registry.h>

#include <algorithm>
#include <cmath>

namespace luna::report {
namespace {

// Tokens of the longest input, as the papers have them.
const std::map<std::string, double> kLengths = {{"listops", 2000},
                                                {"text", 4000},
                                                {"retrieval", 4000},
                                                {"image", 1024},
                                                {"pathfinder", 1024}};

PaperRow row(std::string paper, std::string name, std::string mechanism,
             std::vector<double> accuracy) {
  const std::vector<std::string> tasks = {"listops", "text", "retrieval",
                                          "image", "pathfinder"};
  PaperRow result{
      std::move(paper), std::move(name), std::move(mechanism), "", {}};
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    result.accuracy[tasks[i]] = accuracy[i];
  }
  return result;
}

PaperRow variant(std::string paper, std::string name, std::string mechanism,
                 std::string which, std::map<std::string, double> accuracy) {
  return {std::move(paper), std::move(name), std::move(mechanism),
          std::move(which), std::move(accuracy)};
}

std::vector<PaperRow> all_rows() {
  const std::string u = "universal", n = "nested";
  return {
      row(u, "Transformer", "softmax", {38.71, 61.55, 80.93, 39.14, 70.39}),
      row(u, "Skyformer", "", {38.69, 64.70, 82.06, 40.77, 70.73}),
      row(u, "Hedgehog", "", {37.15, 64.60, 82.24, 40.15, 74.16}),
      row(u, "PolaFormer", "", {37.35, 73.06, 80.50, 42.15, 70.53}),
      row(u, "LOTFormer", "", {38.5, 71.1, 80.9, 54.1, 69.9}),
      row(u, "LUNA", "universal", {38.94, 73.41, 81.02, 64.32, 69.52}),
      variant(u, "LUNA, gated", "universal", "gated", {{"image", 41.52}}),
      variant(u, "fixed random features", "rff", "", {{"image", 35.72}}),
      row(n, "Transformer (re-impl)", "softmax",
          {37.11, 65.21, 79.14, 42.94, 71.83}),
      row(n, "Local Attention", "", {15.82, 52.98, 53.39, 41.46, 66.63}),
      row(n, "Sparse Trans.", "", {17.07, 63.58, 59.59, 44.24, 71.71}),
      row(n, "Longformer", "", {35.63, 62.85, 56.89, 42.22, 69.71}),
      row(n, "Linformer", "", {35.70, 53.94, 52.27, 38.56, 76.34}),
      row(n, "Reformer", "", {37.27, 56.10, 53.40, 38.07, 68.50}),
      row(n, "Sinkhorn Trans.", "", {33.67, 61.20, 53.83, 41.23, 67.45}),
      row(n, "Synthesizer", "", {36.99, 61.68, 54.67, 41.61, 69.45}),
      row(n, "BigBird", "", {36.05, 64.02, 59.29, 40.83, 74.87}),
      row(n, "Linear Trans.", "linear", {16.13, 65.90, 53.09, 42.34, 75.30}),
      row(n, "Performer", "", {18.01, 65.40, 53.82, 42.77, 77.05}),
      row(n, "Luna-16", "nested-16", {37.43, 65.74, 79.38, 46.39, 78.36}),
      row(n, "Luna-128", "nested-128", {38.01, 65.74, 79.55, 47.47, 78.89}),
      row(n, "Luna-256", "nested-256", {37.98, 65.78, 79.56, 47.86, 78.55}),
      variant(n, "Luna-16, P pooled", "nested-16", "memory pooling",
              {{"listops", 38.06}, {"text", 65.81}, {"retrieval", 80.22}}),
      variant(n, "Luna-128, P pooled", "nested-128", "memory pooling",
              {{"listops", 38.27}, {"text", 65.89}, {"retrieval", 80.27}}),
      variant(n, "Luna-256, P pooled", "nested-256", "memory pooling",
              {{"listops", 38.36}, {"text", 66.07}, {"retrieval", 80.25}}),
  };
}

/// What the run has of the mechanism: "nested-16" from its own options, since
/// a title may say more.
std::string mechanism_of(const Run& run) {
  if (run.attention != "nested") return run.attention;
  return run.config
             ? "nested-" + std::to_string(run.config->model.memory_length)
             : run.title;
}

/// "gated", "memory pooling", "" or something no paper has.
std::string variant_of(const Run& run) {
  if (run.attention == "nested") {
    return run.config->model.pooling == "memory" ? "memory pooling" : "";
  }
  std::string changed;
  for (const auto& [name, value] : changed_options(run)) {
    // The paper says nothing of how its random features were kept in hand.
    if (run.attention == "rff" && (name == "unit" || name == "eps")) continue;
    changed += (changed.empty() ? "" : " ") + name;
  }
  return changed;
}

bool known(const std::string& attention) {
  const auto& all = nn::attentions();
  return std::any_of(all.begin(), all.end(),
                     [&](const auto& info) { return info.name == attention; });
}

}  // namespace

const std::vector<PaperRow>& paper_rows() {
  static const std::vector<PaperRow> kRows = all_rows();
  return kRows;
}

std::vector<const PaperRow*> paper_rows_for(const Run& run) {
  const auto length = kLengths.find(run.task);
  if (length == kLengths.end() || !known(run.attention) || !run.config) {
    return {};
  }
  const PaperRecipe* recipe = recipe_of(*run.config);
  if (recipe == nullptr) return {};
  // Short sequences are another task, whatever they are called.
  if (run.length &&
      std::abs(static_cast<double>(*run.length) / length->second - 1) > 0.1) {
    return {};
  }
  std::vector<const PaperRow*> rows;
  for (const PaperRow& row : paper_rows()) {
    if (row.mechanism == mechanism_of(run) && row.variant == variant_of(run) &&
        row.accuracy.contains(run.task)) {
      rows.push_back(&row);
    }
  }
  const auto is_others = [&](const PaperRow* row) {
    return row->paper != recipe->paper;
  };
  if (!std::ranges::all_of(rows, is_others)) std::erase_if(rows, is_others);
  return rows;
}

config::OptionMap changed_options(const Run& run) {
  if (!run.config) return {};
  config::OptionMap changed = run.config->model.attention_options;
  const auto& all = nn::attentions();
  const auto known =
      std::ranges::find(all, run.attention, &nn::AttentionInfo::name);
  if (known == all.end()) return changed;
  for (const config::OptionInfo& info : known->options) {
    const auto found = changed.find(info.name);
    if (found != changed.end() && found->second == info.default_value) {
      changed.erase(found);
    }
  }
  return changed;
}

std::optional<PaperSpeed> paper_speed_for(const Run& run) {
  struct Table {
    const char* mechanism;
    PaperSpeed at[4];  // 1K, 2K, 3K, 4K
  };
  static const Table kTable[] = {
      {"linear", {{1.1, .44}, {1.9, .22}, {3.7, .15}, {5.6, .11}}},
      {"nested-16", {{1.2, .44}, {1.8, .23}, {3.7, .17}, {5.5, .10}}},
      {"nested-128", {{1.1, .49}, {1.7, .28}, {3.4, .21}, {5.1, .14}}},
      {"nested-256", {{1.1, .60}, {1.7, .33}, {3.3, .23}, {4.9, .16}}},
  };
  if (run.task != "text" || !run.length) return std::nullopt;
  const double thousands = static_cast<double>(*run.length) / 1000;
  const int column = static_cast<int>(std::floor(thousands + 0.01));
  if (column < 1 || column > 4 || thousands / column > 1.03) {
    return std::nullopt;
  }
  for (const Table& line : kTable) {
    if (mechanism_of(run) == line.mechanism) return line.at[column - 1];
  }
  return std::nullopt;
}

}  // namespace luna::report
