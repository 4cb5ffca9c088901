#include "luna/report/conversion_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <numeric>

#include "luna/data/glue.h"
#include "luna/report/learned_psi.h"

namespace luna::report {
namespace {

using distill::Conversion;
using Heads = std::vector<std::vector<double>>;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

Table heads_table(const Conversion& conversion) {
  std::vector<Column> columns = {{"layer", true}, {"", false}, {"mean", true}};
  for (size_t h = 0; h < conversion.after.front().size(); ++h) {
    columns.push_back({fmt::format("head {}", h), true});
  }
  Table table(columns);
  for (size_t layer = 0; layer < conversion.after.size(); ++layer) {
    const auto add = [&](const char* when, const Heads& heads) {
      std::vector<std::string> cells = {
          std::to_string(layer), when,
          fmt::format("{:.3f}", mean(heads[layer]))};
      for (const double value : heads[layer]) {
        cells.push_back(fmt::format("{:.3f}", value));
      }
      table.add_row(std::move(cells));
    };
    add("before", conversion.before);
    add("after", conversion.after);
  }
  return table;
}

void add_psi(Page& page, const Conversion& conversion,
             const std::string& folder) {
  const std::string model = folder + "/model.safetensors";
  const std::string start = folder + "/start.safetensors";
  if (conversion.attention != "universal" || !std::filesystem::exists(model)) {
    return;
  }
  const auto nonneg = conversion.options.attention_options.find("nonneg");
  const bool kept = nonneg == conversion.options.attention_options.end() ||
                    std::get<bool>(nonneg->second);
  const std::vector<LearnedPsi> layers =
      learned_psi(model, start, kept, {}, even_u());
  if (layers.empty()) return;
  page.add_heading("Learned ψ");
  page.add_paragraph(
      "The scalar functions of a token's projections u that stand where exp "
      "was. Solid: now. Dashed: right after the swap.");
  for (const LearnedPsi& psi : layers) {
    SmallMultiples drawing{.title = "psi of " + psi.layer,
                           .x = {.label = "u"},
                           .y = {.label = "ψ"}};
    for (size_t c = 0; c < psi.now.size(); ++c) {
      Panel panel{fmt::format("ψ{}", c), {}};
      const auto add = [&](const std::vector<double>& values, bool dashed) {
        Series series{dashed ? "start" : "now", dashed ? 0 : 1, dashed, {}};
        for (size_t i = 0; i < values.size(); ++i) {
          series.points.push_back({psi.u[i], values[i], values[i], values[i]});
        }
        panel.series.push_back(std::move(series));
      };
      if (!psi.start.empty()) add(psi.start[c], true);
      add(psi.now[c], false);
      drawing.panels.push_back(std::move(panel));
    }
    page.add_multiples(drawing, psi.layer);
  }
}

/// What the milestones are, of those that there are.
std::string milestones_note(const Conversion& conversion) {
  const distill::ConversionOptions& o = conversion.options;
  // GLUE keeps the labels of its test files to itself.
  std::string note =
      fmt::format("Test split of {} samples: the task's published {} file.",
                  conversion.milestones.front().test.samples,
                  data::is_glue_task(conversion.task) ? "validation" : "test");
  const auto add = [&](const char* name, const std::string& text) {
    if (conversion.find(name) != nullptr) note += text;
  };
  add("swapped", " Swapped: the new attention as it starts.");
  add("fitted",
      fmt::format(" Fitted: after {} steps that fit it.", o.fit_steps));
  add("stage 1",
      fmt::format(" Stage 1: {} numbers of the attention learn the softmax {}, "
                  "the labels unseen.",
                  conversion.stage_one_parameters, o.stage_one_loss));
  std::vector<std::string> learnt;
  if (o.teacher_weight < 1) learnt.push_back("the labels");
  if (o.teacher_weight > 0) learnt.push_back("the original's logits");
  if (o.states_weight > 0) learnt.push_back("its hidden states");
  add("stage 2", fmt::format(" Stage 2: all weights learn {}.",
                             fmt::join(learnt, " and ")));
  return note;
}

}  // namespace

Table milestones_table(const Conversion& conversion) {
  Table table({{"", false},
               {conversion.metric, true},
               {"of the original", true},
               {"accuracy", true},
               {"seconds", true}});
  for (const distill::Milestone& m : conversion.milestones) {
    table.add_row({m.name, fmt::format("{:.4f}", m.test.score),
                   fmt::format("{:.1f} %", 100 * conversion.kept(m.name)),
                   fmt::format("{:.1f} %", 100 * m.test.accuracy),
                   fmt::format("{:.1f}", m.seconds)});
  }
  return table;
}

Page conversion_page(const Conversion& conversion, const std::string& folder) {
  Page page(fmt::format("{} made linear on {}", conversion.architecture,
                        conversion.task));
  page.add_lead(fmt::format(
      "{} attention in place of softmax keeps {:.1f} % of the original's {} "
      "({:.4f}).",
      conversion.attention,
      100 * conversion.kept(conversion.milestones.back().name),
      conversion.metric, conversion.milestones.front().test.score));
  page.add_table(milestones_table(conversion));
  page.add_note(milestones_note(conversion));
  if (!conversion.after.empty()) {
    page.add_heading("How far each head is from softmax");
    page.add_paragraph(
        "The divergence of the linear rows from the softmax rows (nats, mean "
        "over tokens of the validation split), right after the swap and after "
        "stage 1. 0 is the same attention.");
    page.add_table(heads_table(conversion));
  }
  add_psi(page, conversion, folder);
  return page;
}

}  // namespace luna::report
