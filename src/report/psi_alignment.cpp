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

std::string mean_text(const std::vector<double>& values) {
  return fmt::format("{:.2f}", statistic(values)->mean);
}

}  // namespace

std::vector<PsiAlignment> psi_alignments(const std::vector<const Run*>& runs) {
  const std::vector<Layer> layers = layers_of(runs);
  std::vector<Kernel> kernels;
  for (const Layer& layer : layers) {
    kernels.push_back(kernel_of(layer.psi->now));
  }
  std::vector<PsiAlignment> all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto& [run_a, a] = layers[i];
      const auto& [run_b, b] = layers[j];
      all.push_back({run_a, run_b, a->layer, b->layer,
                     kernel_alignment(kernels[i], kernels[j])});
    }
  }
  return all;
}

Table psi_alignment_table(const std::vector<const Run*>& runs) {
  const std::vector<Layer> layers = layers_of(runs);
  std::vector<Column> columns = {{"", false}, {"run and layer", false}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    columns.push_back({std::to_string(i + 1)});
  }
  Table table(columns);
  const std::vector<PsiAlignment> pairs = psi_alignments(runs);
  auto next = pairs.begin();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& [run, psi] = layers[i];
    std::vector<std::string> row = {
        std::to_string(i + 1),
        fmt::format("{}, {}: {}", run->task, run->name, psi->layer)};
    for (std::size_t j = 0; j < layers.size(); ++j) {
      row.push_back(j < i ? fmt::format("{:.2f}", next++->alignment) : "");
    }
    table.add_row(row);
  }
  return table;
}

std::string psi_alignment_text(const std::vector<const Run*>& runs) {
  const std::vector<Layer> layers = layers_of(runs);
  if (layers.size() < 2) return "";
  std::vector<double> within, between, channels;
  for (const auto& [run, psi] : layers) {
    channels.push_back(effective_channels(psi->now));
  }
  for (const PsiAlignment& pair : psi_alignments(runs)) {
    (pair.run_a == pair.run_b ? within : between).push_back(pair.alignment);
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
