#include <fmt/format.h>

#include "luna/report/psi_measures.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

struct Layer {
  const Run* run;
  const LearnedPsi* psi;
};

std::vector<Layer> layers_of(const std::vector<const Run*>& runs) {
  std::vector<Layer> layers;
  for (const Run* run : runs) {
    for (const LearnedPsi& psi : run->psi) layers.push_back({run, &psi});
  }
  return layers;
}

double alignment(const Layer& a, const Layer& b) {
  return kernel_alignment(a.psi->now, b.psi->now, a.psi->u);
}

std::string mean_text(const std::vector<double>& values) {
  return fmt::format("{:.2f}", statistic(values)->mean);
}

}  // namespace

Table psi_alignment_table(const std::vector<const Run*>& runs) {
  const std::vector<Layer> layers = layers_of(runs);
  std::vector<Column> columns = {{"", false}, {"run and layer", false}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    columns.push_back({std::to_string(i + 1)});
  }
  Table table(columns);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    std::vector<std::string> row = {
        std::to_string(i + 1),
        fmt::format("{}, {}: {}", layers[i].run->task, layers[i].run->name,
                    layers[i].psi->layer)};
    for (std::size_t j = 0; j < layers.size(); ++j) {
      row.push_back(
          j < i ? fmt::format("{:.2f}", alignment(layers[i], layers[j])) : "");
    }
    table.add_row(row);
  }
  return table;
}

std::string psi_alignment_text(const std::vector<const Run*>& runs) {
  const std::vector<Layer> layers = layers_of(runs);
  if (layers.size() < 2) return "";
  std::vector<double> within, between, channels;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    channels.push_back(
        effective_channels(layers[i].psi->now, layers[i].psi->u));
    for (std::size_t j = 0; j < i; ++j) {
      const bool same = layers[i].run == layers[j].run;
      (same ? within : between).push_back(alignment(layers[i], layers[j]));
    }
  }
  std::string text =
      fmt::format("The {} layers have {} channels that differ, in the mean.",
                  layers.size(), mean_text(channels));
  if (!within.empty()) {
    text +=
        fmt::format(" Layers of one run are alike by {}.", mean_text(within));
  }
  if (!between.empty()) {
    text += fmt::format(" Layers of different runs are alike by {}.",
                        mean_text(between));
  }
  return text;
}

}  // namespace luna::report
