#include <nlohmann/json.hpp>

#include "luna/data/splits.h"
#include "luna/report/psi_measures.h"
#include "luna/report/run_report.h"

namespace luna::report {
namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json to_json(const std::optional<Statistic>& s) {
  if (!s) return nullptr;
  return {{"mean", s->mean}, {"sd", or_null(s->sd)}, {"count", s->count}};
}

Json to_json(const std::optional<std::array<std::int64_t, 3>>& samples) {
  if (!samples) return nullptr;
  Json json = Json::object();
  for (std::size_t i = 0; i < samples->size(); ++i) {
    json[data::kSplitNames[i]] = (*samples)[i];
  }
  return json;
}

Json to_json(const Curve& curve) {
  Json lines = Json::array();
  for (const auto& [step, metric] : curve) {
    lines.push_back({{"step", step},
                     {"loss", or_null(metric.loss)},
                     {"accuracy", or_null(metric.accuracy)},
                     {"steps_per_s", or_null(metric.steps_per_s)}});
  }
  return lines;
}

Json to_json(const std::optional<train::FeatureUse>& use) {
  if (!use) return nullptr;
  const auto side = [](const train::FeatureUse::Side& of) {
    return Json{{"live", of.live}, {"silent", of.silent}};
  };
  return {{"query", side(use->query)}, {"key", side(use->key)}};
}

Json to_json(const LearnedPsi& psi) {
  const Kernel kernel = kernel_of(psi.now);
  return {{"layer", psi.layer},
          {"live", psi.live},
          {"live_share", psi.live_share},
          {"knots_inside", psi.knots_inside},
          {"effective_channels", effective_channels(psi.now)},
          {"like_bell", kernel_alignment(kernel, bell_kernel(psi.u))},
          {"like_line", kernel_alignment(kernel, straight_kernel(psi.u))},
          {"change", psi.change < 0 ? Json() : Json(psi.change)},
          {"use", to_json(psi.use)},
          {"u", psi.u},
          {"psi", psi.now},
          {"start", psi.start}};
}

Json to_json(const Run& run, const Prediction& p) {
  return {{"kind", p.kind},
          {"text", p.text},
          {"label", run.class_name(p.label)},
          {"predicted", run.class_name(p.predicted)},
          {"right", p.right()},
          {"probabilities", p.probabilities}};
}

Json to_json(const Run& run) {
  Json psi = Json::array(), predictions = Json::array();
  for (const LearnedPsi& layer : run.psi) psi.push_back(to_json(layer));
  for (const Prediction& p : run.predictions) {
    predictions.push_back(to_json(run, p));
  }
  return {{"name", run.name},
          {"folder", run.folder},
          {"task", run.task},
          {"attention", run.attention},
          {"title", run.title},
          {"seed", run.seed},
          {"finished", run.finished},
          {"steps", or_null(run.steps)},
          {"planned_steps", or_null(run.planned_steps)},
          {"best_step", or_null(run.best_step)},
          {"length", or_null(run.length)},
          {"batch", or_null(run.batch)},
          {"data_samples", to_json(run.samples)},
          {"parameters", or_null(run.parameters)},
          {"attention_parameters", or_null(run.attention_parameters)},
          {"validation_accuracy", or_null(run.validation_accuracy)},
          {"test_accuracy", or_null(run.test_accuracy)},
          {"test_loss", or_null(run.test_loss)},
          {"steps_per_s", or_null(run.steps_per_s)},
          {"tokens_per_s", or_null(run.tokens_per_s)},
          {"peak_memory_bytes", or_null(run.peak_memory)},
          {"load_share", or_null(run.load_share)},
          {"seconds", or_null(run.seconds)},
          {"side_by_side", or_null(run.side_by_side)},
          {"data", run.data_name},
          {"scores", run.scores},
          {"skipped_steps", run.skipped_steps},
          {"machine", run.machine},
          {"versions", run.versions},
          {"commit", run.commit},
          {"notes", run.notes},
          {"train", to_json(run.train)},
          {"validation", to_json(run.validation)},
          {"psi", psi},
          {"samples", predictions}};
}

Json to_json(const RunReport& report, const RunGroup& group) {
  Json published = Json::array(), runs = Json::array();
  for (const PaperRow* row : group.published) {
    const double theirs = row->accuracy.at(group.task);
    published.push_back(
        {{"paper", row->paper},
         {"row", row->row},
         {"accuracy_percent", theirs},
         {"difference_points",
          group.accuracy ? Json(100 * group.accuracy->mean - theirs) : Json()},
         {"reached", or_null(reached(report, group, *row))}});
  }
  for (const std::size_t i : group.runs) runs.push_back(report.runs[i].name);
  Json scores = Json::object();
  for (const auto& [name, score] : group.scores) scores[name] = to_json(score);
  return {{"title", group.title},
          {"task", group.task},
          {"data", group.data},
          {"scores", scores},
          {"minutes", to_json(group.minutes)},
          {"parameters", or_null(group.parameters)},
          {"runs", runs},
          {"measured_on", group.tested ? "test" : "validation"},
          {"accuracy", to_json(group.accuracy)},
          {"steps_per_s", to_json(group.steps_per_s)},
          {"peak_memory_bytes", to_json(group.peak_memory)},
          {"published", published}};
}

Json to_json(const RunReport& report, const Comparison& comparison) {
  Json groups = Json::array();
  for (const Beside& beside : comparison.groups) {
    Json line = {{"title", report.groups[beside.group].title},
                 {"times_softmax_speed", beside.speed},
                 {"times_softmax_memory", or_null(beside.memory)}};
    if (beside.published) {
      line["published_times_softmax_speed"] = beside.published->speed;
      line["published_times_softmax_memory"] = beside.published->memory;
    }
    groups.push_back(line);
  }
  return {{"title", comparison.title},     {"task", comparison.task},
          {"length", comparison.length},   {"batch", comparison.batch},
          {"machine", comparison.machine}, {"attentions", groups}};
}

}  // namespace

std::string report_json(const RunReport& report) {
  Json groups = Json::array(), comparisons = Json::array(),
       runs = Json::array();
  for (const RunGroup& group : report.groups) {
    groups.push_back(to_json(report, group));
  }
  for (const Comparison& comparison : report.comparisons) {
    comparisons.push_back(to_json(report, comparison));
  }
  std::vector<const Run*> all_runs;
  for (const Run& run : report.runs) {
    runs.push_back(to_json(run));
    all_runs.push_back(&run);
  }
  Json alignments = Json::array();
  for (const PsiAlignment& pair : psi_alignments(all_runs)) {
    alignments.push_back({{"runs", {pair.run_a->name, pair.run_b->name}},
                          {"layers", {pair.layer_a, pair.layer_b}},
                          {"alignment", pair.alignment}});
  }
  const Json json = {{"format", "luna-report/1"},
                     {"results", groups},
                     {"beside_softmax", comparisons},
                     {"kernel_alignment", alignments},
                     {"runs", runs}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace luna::report
