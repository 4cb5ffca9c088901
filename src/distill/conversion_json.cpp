#include <nlohmann/json.hpp>

#include "bench/machine_json.h"
#include "config/json.h"
#include "luna/bench/machine.h"
#include "luna/distill/conversion.h"

namespace luna::distill {

std::string conversion_json(const Conversion& conversion) {
  using Json = nlohmann::ordered_json;
  const ConversionOptions& o = conversion.options;
  Json milestones = Json::array();
  for (const Milestone& m : conversion.milestones) {
    milestones.push_back({{"name", m.name},
                          {"score", m.test.score},
                          {"accuracy", m.test.accuracy},
                          {"loss", m.test.loss},
                          {"samples", m.test.samples},
                          {"kept", conversion.kept(m.name)},
                          {"seconds", m.seconds}});
  }
  const bench::Machine machine = bench::this_machine();
  const Json json = {
      {"task", conversion.task},
      {"metric", conversion.metric},
      {"model", o.model},
      {"architecture", conversion.architecture},
      {"attention", conversion.attention},
      {"attention_options", config::detail::to_json(o.attention_options)},
      {"max_length", o.max_length},
      {"seed", o.seed},
      {"start", o.start},
      {"bases", o.bases},
      {"fit_steps", o.fit_steps},
      {"stage_one",
       {{"loss", o.stage_one_loss},
        {"epochs", o.stage_one_epochs},
        {"lr", o.stage_one_lr},
        {"batch", o.batch},
        {"parameters", conversion.stage_one_parameters},
        {"losses", conversion.stage_one_losses}}},
      {"stage_two",
       {{"epochs", o.stage_two_epochs},
        {"lr", o.stage_two_lr},
        {"patience", o.patience},
        {"teacher_weight", o.teacher_weight},
        {"temperature", o.temperature},
        {"states_weight", o.states_weight},
        {"best_step", conversion.stage_two_step}}},
      {"milestones", milestones},
      {"divergence",
       {{"before", conversion.before}, {"after", conversion.after}}},
      {"device", o.device.str()},
      {"machine", bench::machine_json(machine)},
      {"luna", machine.luna_version},
      {"torch", machine.torch_version}};
  return json.dump(1) + "\n";
}

}  // namespace luna::distill
